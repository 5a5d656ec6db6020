"""Searching a log for lines with a fixed wording, and reading the time of each.

The file is mapped into memory and searched for the wording: a regular expression on each line takes
six times as long.
"""

from __future__ import annotations

import hashlib
import mmap
import re
from collections.abc import Iterator, Sequence
from datetime import datetime, timezone
from pathlib import Path

from mlflow_perf.spans.database.store import Store
from mlflow_perf.spans.importers.local_time import Offset

_EPOCH = re.compile(rb"(\d{9,11})\.(\d{1,6})\d* ")
_LOCAL = re.compile(rb"(\d{4}-\d\d-\d\d)[ T](\d\d:\d\d:\d\d)[.,]?(\d{0,6})")
_CREATED = re.compile(rb'\{"created": (\d+)\.?(\d{0,6})')
_NUMBER = re.compile(r"0x[0-9a-f]+|\b[0-9a-f]{8,}\b|\d+")
UNENDED = "a last line that is not ended"
"""The wording under which an unfinished last line is counted."""

_LINE_BYTES = 1 << 20
_WORDING_CHARS = 100


class Log:
    """A log file, text or JSON lines, mapped for reading.

    Attributes:
        path: The file.
        offsets: How far its local times are ahead of UTC; for logs without Unix times.
        size: Its size in bytes.
    """

    def __init__(self, path: Path, offsets: Sequence[Offset] = ()) -> None:
        self.path = path
        self.offsets = list(offsets) or [Offset("", 0)]
        self.size = path.stat().st_size
        self._file = path.open("rb")
        # An empty file cannot be mapped.
        self._data: mmap.mmap | bytes = b""
        if self.size:
            self._data = mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_READ)

    def __enter__(self) -> Log:
        return self

    def __exit__(self, *error: object) -> None:
        if isinstance(self._data, mmap.mmap):
            self._data.close()
        self._file.close()

    def find(self, wording: bytes) -> Iterator[bytes]:
        """Yield each line that contains a fixed wording, without its line end.

        An unended last line is left out: it is still being written, and may end with half a number.
        """
        data, at = self._data, 0
        while (hit := data.find(wording, at)) >= 0:
            low = max(0, hit - _LINE_BYTES)
            # A longer line is cut at its start: a file without line ends is not searched again.
            start = data.rfind(b"\n", low, hit) + 1 or low
            end = data.find(b"\n", hit)
            if end < 0:
                return
            yield data[start:end]
            at = end + 1

    def search(
        self, wording: bytes, pattern: re.Pattern[bytes], store: Store
    ) -> Iterator[tuple[re.Match[bytes], int]]:
        """Yield the match and the Unix microseconds of each line with a fixed wording.

        A line that does not match, or has no time, is counted as not read.
        """
        for line in self.find(wording):
            match, time = pattern.search(line), self.time_us(line)
            if match is None or time is None:
                store.not_read(strip_numbers(line))
            else:
                yield match, time

    def has(self, wording: bytes) -> bool:
        """Return whether the log contains a fixed wording."""
        return self._data.find(wording) >= 0

    def count_unended(self, store: Store) -> None:
        """Count an unended last line as not read."""
        if self.size and self._data[-1:] != b"\n":
            store.not_read(UNENDED)

    def time_us(self, line: bytes) -> int | None:
        """Return the Unix microseconds at which a line was written; None if it shows no time."""
        stamp = _EPOCH.match(line) or _CREATED.match(line)
        if stamp:
            return int(stamp[1]) * 1_000_000 + int(stamp[2].ljust(6, b"0"))
        local = _LOCAL.match(line)
        if not local:
            return None
        moment = f"{local[1].decode()} {local[2].decode()}"
        try:
            seconds = datetime.fromisoformat(moment).replace(tzinfo=timezone.utc).timestamp()
        except ValueError:
            return None
        ahead = next(o.seconds for o in reversed(self.offsets) if moment >= o.since)
        return (int(seconds) - ahead) * 1_000_000 + int(local[3].ljust(6, b"0") or 0)


def strip_numbers(line: bytes) -> str:
    """Return a line without its time and numbers, to count lines of the same wording."""
    text = line[:400].decode("utf-8", "replace")
    stamp = _LOCAL.search(line[:80])
    if stamp:
        text = text[stamp.end() :]
    return _NUMBER.sub("N", text).strip()[:_WORDING_CHARS]


def make_log_scope(kind: str, path: Path, head: bytes) -> str:
    """Return the scope of a single log, made of its kind, its name and its first line.

    A log that has grown or was copied keeps its scope.
    """
    lines = head.split(b"\n")
    lines = lines[:-1] or lines
    first = next((line for line in lines if line and not line.startswith(b"#")), b"")
    return f"{kind}:{path.name}:{hashlib.sha256(first).hexdigest()[:16]}"
