"""Local times of Parsl's logs and monitoring database, and their offsets from UTC.

Parsl's text logs have the Unix time and the local time on each line. Its monitoring database has
local times only, without an offset.
"""

from __future__ import annotations

import re
from datetime import date, datetime, timezone
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from mlflow_perf.spans.database.bulk import Ints

__all__ = [
    "NO_TIME",
    "Offset",
    "machine_offsets",
    "offsets_of_log",
    "offsets_of_run",
    "parse_times",
]

NO_TIME = -(1 << 63)
"""Replaces a missing or malformed time in an array."""

_STAMP = re.compile(rb"^(\d{9,11})\.\d+ (\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)(?=[ ,.])", re.MULTILINE)
_RUN_ID = re.compile(rb"Run id is: (\S+)")
_JSON_RUN_ID = re.compile(rb'"created": ([\d.]+).*"Run id is: ([^"\s]+)"')
_HEAD_BYTES = 1 << 18
_QUARTER_HOUR = 900
# `2026-11-20 12:00:00.000000`: the place of each digit, and its value within the date, in seconds
# or in microseconds.
_CHARS = 26
_DATE = ((0, 10_000_000), (1, 1_000_000), (2, 100_000), (3, 10_000), (5, 1000), (6, 100), (8, 10),
         (9, 1))  # fmt: skip
_SECONDS = ((11, 36_000), (12, 3600), (14, 600), (15, 60), (17, 10), (18, 1))
_MICROS = tuple((20 + n, 10 ** (5 - n)) for n in range(6))
_MARKS = ((4, b"-"), (7, b"-"), (13, b":"), (16, b":"), (19, b"."))
_EPOCH = date(1970, 1, 1).toordinal()
_DAY_US = 86_400_000_000


class Offset(NamedTuple):
    """How many seconds local time is ahead of UTC, from the local time `since` on."""

    since: str
    seconds: int


def offsets_of_log(log: Path) -> list[Offset]:
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


def offsets_of_run(folder: Path, run_id: str, began: str) -> list[Offset]:
    """Return the offsets that a run's folder shows.

    Args:
        folder: The run's folder (`runinfo/000`).
        run_id: The run; the folder of another run is ignored.
        began: The beginning of the run in its local time, for JSON logs, which show no local time.

    Returns:
        The offsets in time order; none if the folder does not exist or shows none.
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
            epoch = shown[1].split(b".")[0]
            return [Offset("", _calculate_offset(epoch, began[:19].encode()))]
    return []


def machine_offsets(local: str) -> list[Offset]:
    """Return this machine's own offset at a local time; none if it is not a time."""
    try:
        moment = datetime.fromisoformat(local)
    except ValueError:
        return []
    offset = moment.astimezone().utcoffset()
    return [Offset("", int(offset.total_seconds()) if offset else 0)]


def parse_times(text: str) -> Ints:
    """Return the microseconds since 1970 of concatenated times of 26 characters each.

    This takes a tenth of the time of SQLite's own functions, which were half of an import.

    Returns:
        The times, `NO_TIME` for what is not a time; nothing if the length of the text is wrong.
    """
    data = np.frombuffer(text.encode("ascii", "replace"), dtype=np.uint8)
    if len(data) % _CHARS:
        return np.zeros(0, dtype=np.int64)
    chars = data.reshape(-1, _CHARS)
    good = np.isin(chars[:, 10], np.frombuffer(b" T", dtype=np.uint8))
    for place, mark in _MARKS:
        good &= chars[:, place] == mark[0]
    for place, _ in (*_DATE, *_SECONDS, *_MICROS):
        good &= (chars[:, place] - 48) < 10  # characters below "0" wrap round to large numbers
    # A run takes few days: only the different dates are converted.
    dates, place_of_date = np.unique(_add_digits(chars, _DATE), return_inverse=True)
    days = []
    for number in dates.tolist():
        try:
            day = date(number // 10_000, number // 100 % 100, number % 100)
            days.append(day.toordinal() - _EPOCH)
        except ValueError:
            days.append(NO_TIME)
    day_by_row = np.array(days, dtype=np.int64)[place_of_date]
    times = _add_digits(chars, _SECONDS) * 1_000_000 + _add_digits(chars, _MICROS)
    return np.where(good & (day_by_row != NO_TIME), times + day_by_row * _DAY_US, NO_TIME)


def _add_digits(chars: npt.NDArray[np.uint8], digits: tuple[tuple[int, int], ...]) -> Ints:
    total = np.zeros(len(chars), dtype=np.int64)
    for place, value in digits:
        total += (chars[:, place] - 48).astype(np.int64) * value
    return total


def _calculate_offset(epoch: bytes, local: bytes) -> int:
    utc = datetime.fromisoformat(local.decode()).replace(tzinfo=timezone.utc)
    # Zones lie on quarters of an hour; the rest is the time between reading the two clocks.
    return round((utc.timestamp() - int(epoch)) / _QUARTER_HOUR) * _QUARTER_HOUR
