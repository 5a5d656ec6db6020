"""The large tables of a monitoring database as arrays, part by part.

May import spans.bulk, spans.importers.monitoring_sql. A time is parsed by numpy in a tenth of what
SQLite's own functions take for it, which were half of an import.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import date

import numpy as np
import numpy.typing as npt

from mlflow_perf.spans.database.bulk import Ints, parse_ints
from mlflow_perf.spans.importers.monitoring_sql import FIRST_STATE, Statements

__all__ = [
    "NO_TIME",
    "RUN_BITS",
    "TRY_BITS",
    "Numbers",
    "Part",
    "parts",
    "read_part",
    "row_ranges",
    "time_us",
]

NO_TIME = -(1 << 63)
"""Stands for a time that is none."""

RUN_BITS, TRY_BITS = 44, 16
"""A span's key stands below the run's number; a try's has its own number in the last bits."""

_ROWS = 100_000
_MOST_CARE = 2
_CHARS = 26
# Where the digits stand in `2026-11-20 12:00:00.000000`, and what each is worth.
_DIGITS = ((11, 36_000), (12, 3600), (14, 600), (15, 60), (17, 10), (18, 1))
_MICROS = tuple((20 + n, 10 ** (5 - n)) for n in range(6))
_DATE = ((0, 10_000_000), (1, 1_000_000), (2, 100_000), (3, 10_000), (5, 1000), (6, 100), (8, 10),
         (9, 1))  # fmt: skip
_MARKS = ((4, b"-"), (7, b"-"), (13, b":"), (16, b":"), (19, b"."))
_EPOCH = date(1970, 1, 1).toordinal()
_DAY_US = 86_400_000_000

_Text = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class Part:
    """Some rows of a table.

    Attributes:
        scope: The number of each row's run.
        ints: Its whole numbers, by column.
        times: Its local times in microseconds since 1970, by column; `NO_TIME` where it has none.
        state: The code of its state; see `parts`.
    """

    scope: Ints
    ints: Mapping[str, Ints]
    times: Mapping[str, Ints]
    state: Ints

    def is_regular(self) -> bool:
        """Say whether each time is one."""
        return all(not (times == NO_TIME).any() for times in self.times.values())


@dataclass(frozen=True)
class Numbers:
    """The numbers of spans by their keys.

    Attributes:
        key: The run's number and the span's key in one, ascending.
        span: The number of the span.
        host: The number of its host's name; 0 where it has none.
    """

    key: Ints
    span: Ints
    host: Ints

    def place(self, keys: Ints) -> Ints:
        """Return where each of some keys stands, or -1 where it does not."""
        if not len(self.key):
            return np.full(len(keys), -1)
        at = np.searchsorted(self.key, keys)
        at[at == len(self.key)] = 0
        at[self.key[at] != keys] = -1
        return at

    def parts(self, rows: int) -> Iterator[Numbers]:
        """Yield them some at a time, so that what is worked out of them is never there whole."""
        for at in range(0, len(self.key), rows):
            some = slice(at, at + rows)
            yield Numbers(self.key[some], self.span[some], self.host[some])


def parts(
    db: sqlite3.Connection, sql: Statements, table: str, wanted: Mapping[str, str]
) -> Iterator[Part]:
    """Yield a table of the attached source, some rows at a time; see `read_part`."""
    for rows in row_ranges(db, table):
        yield read_part(db, sql, table, wanted, rows=rows)


def read_part(
    db: sqlite3.Connection,
    sql: Statements,
    table: str,
    wanted: Mapping[str, str],
    *,
    rows: tuple[int, int],
) -> Part:
    """Read some rows of a table of the attached source, less those of unknown runs.

    Args:
        db: The connection.
        sql: What is known of the database.
        table: The table's name.
        wanted: Its columns, each with its kind: `int`, `time` or `state`.
        rows: The first and the last row number.

    Returns:
        The rows; a state's code is its place in `sql.states`, -1 where it is unknown.
    """
    for care in range(_MOST_CARE):
        part = _part(db.execute(sql.joined(table, wanted, care=care), rows).fetchone(), wanted)
        if part is not None and part.is_regular():
            return part
    row = db.execute(sql.joined(table, wanted, care=_MOST_CARE), rows).fetchone()
    part = _part(row, wanted)
    if part is None:
        raise ValueError(f"rows {rows[0]} to {rows[1]} of the table {table} cannot be read")
    return part


def row_ranges(db: sqlite3.Connection, table: str) -> Iterator[tuple[int, int]]:
    """Yield the first and the last row number of each part of a table of the source."""
    # Asked for together, SQLite reads the whole table for them.
    ends = (f"SELECT {end}(rowid) FROM source.{table}" for end in ("min", "max"))  # noqa: S608 - names of ours
    low, high = (db.execute(end).fetchone()[0] for end in ends)
    for start in range(low, high + 1, _ROWS) if low is not None else ():
        yield start, start + _ROWS - 1


def _part(row: tuple[int | str | None, ...], wanted: Mapping[str, str]) -> Part | None:
    """Return rows as arrays; None where a value is not of its kind."""
    count, scope, *texts = row
    length = int(count or 0)
    ints, times, state = {}, {}, np.zeros(0, dtype=np.int64)
    for (column, kind), text in zip(wanted.items(), texts, strict=True):
        if kind == "int":
            ints[column] = _ints(str(text or ""))
        elif kind == "time":
            times[column] = time_us(str(text or ""))
        else:
            state = _codes(str(text or ""))
    scopes = _ints(str(scope or ""))
    scopes = np.repeat(scopes, length) if len(scopes) == 1 else scopes
    found = [scopes, *ints.values(), *times.values(), *([state] if len(state) else [])]
    return Part(scopes, ints, times, state) if all(len(a) == length for a in found) else None


def _ints(text: str) -> Ints:
    """Return what is joined by commas; nothing where it is not all whole numbers."""
    rest = text.encode("utf-8", "replace").translate(None, b"0123456789-,")
    return parse_ints("" if rest else text)


def _codes(text: str) -> Ints:
    codes = np.frombuffer(text.encode("utf-32-le", "replace"), dtype=np.uint32).astype(np.int64)
    return codes - FIRST_STATE


def time_us(text: str) -> Ints:
    """Return the microseconds since 1970 of times of 26 characters each, one after the other."""
    data = np.frombuffer(text.encode("ascii", "replace"), dtype=np.uint8)
    chars = data[: len(data) // _CHARS * _CHARS].reshape(-1, _CHARS)
    if len(chars) * _CHARS != len(data):
        return np.zeros(0, dtype=np.int64)
    good = np.isin(chars[:, 10], np.frombuffer(b" T", dtype=np.uint8))
    for place, mark in _MARKS:
        good &= chars[:, place] == mark[0]
    for place, _ in (*_DATE, *_DIGITS, *_MICROS):
        good &= (chars[:, place] - 48) < 10  # below "0" wraps round to what is large
    days = _days(_number(chars, _DATE))
    times = _number(chars, _DIGITS) * 1_000_000 + _number(chars, _MICROS) + days * _DAY_US
    return np.where(good & (days != NO_TIME), times, NO_TIME)


def _number(chars: _Text, digits: tuple[tuple[int, int], ...]) -> Ints:
    total = np.zeros(len(chars), dtype=np.int64)
    for place, worth in digits:
        total += (chars[:, place] - 48).astype(np.int64) * worth
    return total


def _days(dates: Ints) -> Ints:
    """Return the days since 1970 of dates as numbers: 20261120."""
    different, place = np.unique(dates, return_inverse=True)
    return np.array([_day(int(d)) for d in different], dtype=np.int64)[place]


def _day(number: int) -> int:
    try:
        return date(number // 10_000, number // 100 % 100, number % 100).toordinal() - _EPOCH
    except ValueError:
        return NO_TIME
