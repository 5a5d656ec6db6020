"""Local times of Parsl's logs and monitoring database, and their offsets from UTC.

Parsl's text logs have the Unix time and the local time on each line. Its monitoring database has
local times only, without an offset.
"""

from __future__ import annotations

import re
from contextlib import suppress
from datetime import datetime, timezone, tzinfo
from pathlib import Path
from typing import NamedTuple
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import numpy as np

from mlflow_perf.errors import SettingError
from mlflow_perf.spans.database.bulk import Ints
from mlflow_perf.spans.database.store import Store

NO_TIME = -(1 << 63)
"""Replaces a missing or malformed time in an array."""

_STAMP = re.compile(rb"^(\d{9,11})\.\d+ (\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)(?=[ ,.])", re.MULTILINE)
_RUN_ID = re.compile(rb'(?:"created": (\d+).*)?Run id is: ([^"\s]+)')
_LOCAL = re.compile(rb"^\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d", re.MULTILINE)
_HEAD_BYTES = 1 << 18
_QUARTER_HOUR = 900
# The lowest characters of a local time, and how far each may lie above: 9 for a digit.
_SHAPE = np.frombuffer(b"0000-00-00 00:00:00.000000", dtype=np.uint8)
_ROOM = np.array([9 * (char == ord("0")) for char in _SHAPE], dtype=np.uint8)


class Offset(NamedTuple):
    """How many seconds local time is ahead of UTC, from the local time `since` on."""

    since: str
    seconds: int


def find_offsets(log: Path, store: Store) -> list[Offset]:
    """Return the offsets that a log shows, or else the assumed one at the log's first time."""
    with log.open("rb") as file:
        local = _LOCAL.search(file.read(_HEAD_BYTES))
    return find_log_offsets(log) or (assume_offsets(local[0].decode(), store) if local else [])


def find_log_offsets(log: Path) -> list[Offset]:
    """Return the offsets that a text log shows: one, or two if summer time began or ended.

    Returns:
        The offsets in time order; none if the log shows none.
    """
    with log.open("rb") as file:
        head = _STAMP.search(file.read(_HEAD_BYTES))
        file.seek(max(0, log.stat().st_size - _HEAD_BYTES))
        tail = _STAMP.findall(file.read())
    if head is None:
        return []
    first = _calculate_offset(*head.groups())
    last = _calculate_offset(*tail[-1]) if tail else first
    if first == last:
        return [Offset("", first)]
    # Clocks change on the hour. The new offset holds from the hour of the first line that shows it,
    # or from that line if an earlier line shows the same hour, as when an hour occurs twice.
    before = since = ""
    with log.open("rb") as file:
        for match in filter(None, map(_STAMP.match, file)):
            local = match[2].decode()
            if _calculate_offset(match[1], match[2]) == last:
                hour = f"{local[:13]}:00:00"
                since = hour if hour > before else local
                break
            before = local
    return [Offset("", first), Offset(since, last)]


def find_run_offsets(folder: Path, run_id: str, began: str) -> list[Offset]:
    """Return the offsets that a run's folder shows.

    Args:
        folder: The run's folder (`runinfo/000`).
        run_id: The run; the folder of another run is ignored.
        began: The beginning of the run in its local time, for JSON logs, which show no local time.

    Returns:
        The offsets in time order; none if the folder does not exist or shows none.
    """
    for main in (folder / "parsl.log", folder / "parsl.jsonlog"):
        if main.is_file():
            with main.open("rb") as file:
                found = _RUN_ID.search(file.read(_HEAD_BYTES))
            if found is None or found[2].decode() != run_id:
                return []
            if main.suffix == ".log":
                return find_log_offsets(main)
            if found[1]:
                return [Offset("", _calculate_offset(found[1], began[:19].encode()))]
    return []


def assume_offsets(local: str, store: Store) -> list[Offset]:
    """Return the offset at a local time whose zone is unknown; none if it is not a time.

    It is that of the store's time zone, or else this machine's own, which the store's notes say.
    """
    try:
        moment = datetime.fromisoformat(local)
    except ValueError:
        return []
    store.assumes_zone = True
    zoned = (
        moment.astimezone() if store.time_zone is None else moment.replace(tzinfo=store.time_zone)
    )
    note = (
        "the times show no zone: that of this machine is assumed "
        f"(UTC{zoned:%z}); give another one with --time-zone"
    )
    if store.time_zone is None and note not in store.notes:
        store.notes.append(note)
    offset = zoned.utcoffset()
    return [Offset("", int(offset.total_seconds()) if offset else 0)]


def read_time_zone(text: str) -> tzinfo:
    """Return the time zone of a name such as `Europe/Vienna`, or of an offset such as `+02:00`.

    Raises:
        SettingError: It is neither.
    """
    with suppress(ValueError):
        zone = datetime.fromisoformat(f"2000-01-01T00:00:00{text}").tzinfo
        if zone is not None:
            return zone
    try:
        return ZoneInfo(text)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise SettingError(
            f"There is no time zone {text!r}: give a name such as Europe/Vienna, or an offset from "
            "UTC such as +02:00."
        ) from None


def parse_times(text: str) -> Ints:
    """Return the microseconds since 1970 of concatenated times of 26 characters each.

    This takes a thirtieth of the time of SQLite's own functions, which were half of an import.

    Returns:
        The times, `NO_TIME` for what is not a time; nothing if the length of the text is wrong.
    """
    data = np.frombuffer(bytearray(text.replace("T", " ").encode("ascii", "replace")), np.uint8)
    if len(data) % len(_SHAPE):
        return np.zeros(0, dtype=np.int64)
    chars = data.reshape(-1, len(_SHAPE))
    # Lower characters wrap round to large numbers.
    good = (chars - _SHAPE <= _ROOM).all(axis=1)
    chars[~good] = np.frombuffer(b"NaT".ljust(len(_SHAPE), b"\0"), dtype=np.uint8)
    moments = chars.view(f"S{len(_SHAPE)}").ravel()
    if np.__version__.startswith("1."):  # it crashes on bytes that are no date
        moments = moments.astype(str)
    try:
        return moments.astype("datetime64[us]").astype(np.int64)
    except ValueError:  # one of the dates does not exist
        times = np.full(len(moments), NO_TIME)
        for place, moment in enumerate(moments.astype(str).tolist()):
            with suppress(ValueError):
                times[place] = np.datetime64(moment, "us").astype(np.int64)
        return times


def _calculate_offset(epoch: bytes, local: bytes) -> int:
    utc = datetime.fromisoformat(local.decode()).replace(tzinfo=timezone.utc)
    # Zones lie on quarters of an hour; the rest is the time between reading the two clocks.
    return round((utc.timestamp() - int(epoch)) / _QUARTER_HOUR) * _QUARTER_HOUR
