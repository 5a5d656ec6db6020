"""Chrome trace JSON, as browsers, PyTorch, Perfetto and we ourselves write it.

May import errors, spans.store, spans.importers. A span's type is `chrome.` and its category. What
lies within another on the same track is part of it.
"""

from __future__ import annotations

import gzip
import io
import json
import zlib
from collections import defaultdict
from contextlib import suppress
from math import inf
from pathlib import Path
from typing import Any

from mlflow_perf.errors import SpansError
from mlflow_perf.spans.database.store import Store
from mlflow_perf.spans.importers.lines import scope_of
from mlflow_perf.spans.importers.nested import Nested, store_nested

__all__ = ["ChromeTraceImporter"]

_MOST_BYTES = 4 << 30
_Track = tuple[Any, Any]


class ChromeTraceImporter:
    """Imports `traceEvents`: complete, begin/end, asynchronous and instant events."""

    name = "chrome-trace"

    def recognises(self, source: Path, head: bytes) -> bool:
        """Say whether it is JSON with `traceEvents`, or an array of events with phases."""
        head = _plain(head, 1 << 20).lstrip()
        if head[:1] == b"{":
            return b'"traceEvents"' in head
        return head[:1] == b"[" and b'"ph"' in head and b'"ts"' in head

    def load(self, source: Path, store: Store) -> None:
        """Import the events as spans, and instants as events of the span they fall in.

        Raises:
            SpansError: It is not JSON, or unpacks to more than fits in memory.
        """
        data = source.read_bytes()
        head = _plain(data[: 1 << 16], 1 << 16)
        trace = _Trace(scope_of("chrome", source, head[:4096]), store)
        for event in _events(source, data):
            trace.add(event)
        store_nested(store, trace.finish())


class _Trace:
    """The events of one file, gathered by track."""

    def __init__(self, scope: str, store: Store) -> None:
        self._scope = scope
        self._store = store
        self._spans: list[tuple[_Track, Nested]] = []
        self._open: dict[Any, list[tuple[_Track, Nested]]] = defaultdict(list)
        self._instants: dict[_Track, list[tuple[int, str]]] = defaultdict(list)
        self._count = 0
        self._process: dict[str, str] = {}

    def add(self, event: dict[str, Any]) -> None:
        """Take one event of the file; count it where it is of no known phase or has no time."""
        phase = str(event.get("ph"))
        if phase == "M":
            about = event.get("args")
            if event.get("name") == "process_name" and isinstance(about, dict):
                self._process[str(event.get("pid"))] = str(about.get("name"))
            return
        try:
            time = round(float(event["ts"]))
            self._take(phase, event, time)
        except (KeyError, TypeError, ValueError, OverflowError):
            self._store.not_read(f"an event of phase {phase} without a time")

    def finish(self) -> list[Nested]:
        """Return the spans, each with the one that it lies in as its parent."""
        for stack in self._open.values():
            self._spans += stack
        tracks: dict[_Track, list[Nested]] = defaultdict(list)
        for track, span in self._spans:
            span.about.setdefault("host", self._process.get(str(track[0])))
            tracks[track].append(span)
        for track, spans in tracks.items():
            _nest(spans, self._instants.get(track, []))
        return [span for _, span in self._spans]

    def _take(self, phase: str, event: dict[str, Any], time: int) -> None:
        track = (event.get("pid"), event.get("tid"))
        # Asynchronous events pair by their id, on whatever track; they may overlap there.
        call = (track[0], event.get("cat"), event.get("id", event.get("id2")), event.get("name"))
        if phase == "X":
            end = time + round(float(event.get("dur", 0)))
            self._spans.append((track, self._span(event, time, end)))
        elif phase in ("B", "b", "S"):
            home = track if phase == "B" else ("async", call)
            self._open[track if phase == "B" else call].append((home, self._span(event, time)))
        elif phase in ("E", "e", "F"):
            stack = self._open[track if phase == "E" else call]
            if not stack:
                self._store.not_read(f"an event of phase {phase} that ends nothing")
                return
            home, span = stack.pop()
            span.end_us = time
            self._spans.append((home, span))
        elif phase in ("i", "I", "n", "R"):
            self._instants[track].append((time, str(event.get("name"))))
        else:
            self._store.not_read(f"an event of phase {phase}")

    def _span(self, event: dict[str, Any], start: int, end: int | None = None) -> Nested:
        name = str(event.get("name", ""))
        arguments = event.get("args")
        about = dict(arguments) if isinstance(arguments, dict) else {}
        about.pop("host", None)
        self._count += 1
        key = f"{event.get('pid')}/{event.get('tid')}/{start}/{name}/{self._count}"
        kind = f"chrome.{event.get('cat') or 'event'}"
        return Nested(kind, self._scope, key, start, end, about={**about, "name": name})


def _nest(spans: list[Nested], instants: list[tuple[int, str]]) -> None:
    """Give each span of one track the innermost other that it lies in, and instants likewise."""
    # What did not end lasts longer than all that did.
    spans.sort(key=lambda s: (s.start_us or 0, -inf if s.end_us is None else -s.end_us))
    instants = sorted(instants, reverse=True)
    stack: list[Nested] = []
    for span in [*spans, None]:
        start = span.start_us if span is not None else None
        while instants and (start is None or instants[-1][0] < (start or 0)):
            time, name = instants.pop()
            within = [s for s in stack if s.end_us is None or time <= s.end_us]
            if within:
                within[-1].events.append((time, name))
        if span is None:
            return
        while stack and stack[-1].end_us is not None and stack[-1].end_us < (span.end_us or 0):
            stack.pop()
        while stack and stack[-1].end_us is not None and stack[-1].end_us <= (start or 0):
            stack.pop()
        if stack:
            span.parent = (stack[-1].scope, stack[-1].key)
        stack.append(span)


def _events(source: Path, data: bytes) -> list[dict[str, Any]]:
    plain = _plain(data, _MOST_BYTES + 1)
    if len(plain) > _MOST_BYTES:
        raise SpansError(
            f"{source} unpacks to more than {_MOST_BYTES >> 30} GiB: unpack it, and import parts."
        )
    text = plain.decode("utf-8", "replace")
    try:
        whole = json.loads(text)
    except ValueError:
        whole = _mended(source, text)
    events = whole.get("traceEvents", []) if isinstance(whole, dict) else whole
    return [event for event in events if isinstance(event, dict)]


def _mended(source: Path, text: str) -> list[Any]:
    """Return the whole events of an array that was not closed, as the format allows."""
    start = text.find("[")
    cut = text.rstrip().rstrip(",")
    while start >= 0 and (last := cut.rfind("}")) > start:
        try:
            return list(json.loads(cut[start : last + 1] + "]"))
        except ValueError:
            cut = cut[:last]
    raise SpansError(f"{source} is not JSON: it was cut off or damaged.")


def _plain(data: bytes, most: int) -> bytes:
    """Return so many bytes of the data, unpacked where they are packed, as far as it goes."""
    if data[:2] != b"\x1f\x8b":
        return data
    try:
        with gzip.open(io.BytesIO(data)) as file:
            return file.read(most)
    except (EOFError, OSError, zlib.error):
        # The head of a file, or a file that was cut off or damaged.
        with suppress(zlib.error):
            return zlib.decompressobj(wbits=31).decompress(data, most)
    return b""
