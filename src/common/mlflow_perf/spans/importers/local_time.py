"""Local times in logs, turned to Unix time by the offset that the logs themselves show.

Imports nothing of ours. Parsl's text logs carry the epoch and the local time on each line; its
monitoring database carries local times only, without an offset.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import NamedTuple

__all__ = ["Offset", "machine_offsets", "offsets_of_log", "offsets_of_run"]

_STAMP = re.compile(rb"^(\d{9,11})\.\d+ (\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)(?=[ ,.])", re.MULTILINE)
_RUN_ID = re.compile(rb"Run id is: (\S+)")
_JSON_RUN_ID = re.compile(rb'"created": ([\d.]+).*"Run id is: ([^"\s]+)"')
_HEAD_BYTES = 1 << 18
_QUARTER_HOUR = 900


class Offset(NamedTuple):
    """How far local time is ahead of UTC, in seconds, from a local time on."""

    since: str
    seconds: int


def offsets_of_log(log: Path) -> list[Offset]:
    """Return the offsets that a text log shows: one, or two where summer time began or ended.

    Returns:
        The offsets in order of time; none where the log shows none.
    """
    size = log.stat().st_size
    with log.open("rb") as file:
        head = _STAMP.search(file.read(_HEAD_BYTES))
        file.seek(max(0, size - _HEAD_BYTES))
        tail = _STAMP.findall(file.read())
    if head is None:
        return []
    first = _offset(*head.groups())
    last = _offset(*tail[-1]) if tail else first
    if first == last:
        return [Offset("", first)]
    return [Offset("", first), Offset(_since(log, last), last)]


def offsets_of_run(folder: Path, run_id: str, began: str) -> list[Offset]:
    """Return the offsets that a run's folder shows.

    Args:
        folder: The run's folder (`runinfo/000`).
        run_id: The run; a folder of another run shows none.
        began: When the run began, in its local time, for JSON logs, which show no local time.

    Returns:
        The offsets in order of time; none where the folder is not there or shows none.
    """
    main = folder / "parsl.log"
    if main.is_file():
        with main.open("rb") as file:
            found = _RUN_ID.search(file.read(_HEAD_BYTES))
        return offsets_of_log(main) if found and found[1].decode() == run_id else []
    main = folder / "parsl.jsonlog"
    if main.is_file():
        with main.open("rb") as file:
            shown = _JSON_RUN_ID.search(file.read(_HEAD_BYTES))
        if shown and shown[2].decode() == run_id:
            return [Offset("", _offset(shown[1].split(b".")[0], began[:19].encode()))]
    return []


def machine_offsets(local: str) -> list[Offset]:
    """Return this machine's own offset at a local time: the last resort; none for no time."""
    try:
        moment = datetime.fromisoformat(local)
    except ValueError:
        return []
    offset = moment.astimezone().utcoffset()
    return [Offset("", int(offset.total_seconds()) if offset else 0)]


def _offset(epoch: bytes, local: bytes) -> int:
    utc = datetime.fromisoformat(local.decode()).replace(tzinfo=timezone.utc)
    # Zones lie on quarters of an hour; the rest is what passed between taking the two times.
    return round((utc.timestamp() - int(epoch)) / _QUARTER_HOUR) * _QUARTER_HOUR


def _since(log: Path, offset: int) -> str:
    """Return the local time from which on `offset` holds.

    Clocks change on the hour: the hour of the first line that shows it, unless a line before shows
    that hour already, as it does where an hour comes twice.
    """
    before = ""
    with log.open("rb") as file:
        for epoch, shown in _stamps(file):
            local = shown.decode()
            if _offset(epoch, shown) == offset:
                hour = f"{local[:13]}:00:00"
                return hour if hour > before else local
            before = local
    return ""


def _stamps(lines: Iterable[bytes]) -> Iterator[tuple[bytes, bytes]]:
    for line in lines:
        match = _STAMP.match(line)
        if match:
            yield match[1], match[2]
