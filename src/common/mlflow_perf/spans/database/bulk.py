"""Whole numbers in bulk: into tables, out of tables, and sorted on the way.

Imports nothing of ours. A row for each call costs a million events two to three times what these
do: SQLite joins columns to text that numpy parses, and takes hundreds of rows in one statement.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = [
    "Ints",
    "distinct",
    "distinct_rows",
    "insert",
    "insert_columns",
    "joined",
    "occurrence",
    "parse_ints",
    "read",
    "read_parts",
    "sort",
]

Ints = npt.NDArray[np.int64]
"""Whole numbers; as a table, a row of the array for each column of the table."""

# From some hundred rows on a statement costs no less for each.
_ROWS = 250
# SQLite takes an array in pieces that do not show in the memory of the process.
_PIECE = _ROWS * 100
# As text a row takes some thirty characters, which must not show in the memory of the process.
_PART_ROWS = 100_000
_KEY_BITS = 63


def insert(db: sqlite3.Connection, table: str, rows: Iterable[Sequence[Any]]) -> int:
    """Store rows that are not there yet.

    Args:
        db: The connection.
        table: The table, one of ours.
        rows: The rows, each with a value for each column.

    Returns:
        How many were new.
    """
    new = 0
    rest = iter(rows)
    while several := list(islice(rest, _ROWS)):
        statement = _statement(table, len(several), len(several[0]))
        new += db.execute(statement, list(chain(*several))).rowcount
    return new


def insert_columns(db: sqlite3.Connection, table: str, columns: Sequence[Ints] | Ints) -> int:
    """Store the rows that some columns of the same length make, as `insert` does."""
    new, width = 0, len(columns)
    for start in range(0, len(columns[0]), _PIECE):
        piece = np.stack([column[start : start + _PIECE] for column in columns], axis=1)
        values = piece.ravel().tolist()
        for at in range(0, len(values), _ROWS * width):
            several = values[at : at + _ROWS * width]
            new += db.execute(_statement(table, len(several) // width, width), several).rowcount
    return new


def read(db: sqlite3.Connection, table: str, *columns: str) -> Ints:
    """Return columns of whole numbers of a table, in the order of the first, its key."""
    parts = [np.zeros((len(columns), 0), dtype=np.int64), *read_parts(db, table, *columns)]
    return np.concatenate(parts, axis=1)


def read_parts(db: sqlite3.Connection, table: str, *columns: str) -> Iterator[Ints]:
    """Yield what `read` returns, some hundred thousand rows at a time; a key stands in one part."""
    key, joined = columns[0], ", ".join(f"group_concat({c})" for c in columns)
    # Asked for together, SQLite reads the whole table for its ends.
    asked = (f"SELECT {what} FROM {table}" for what in (f"min({key})", f"max({key})", "count(*)"))  # noqa: S608 - names of ours
    low, high, rows = (db.execute(query).fetchone()[0] for query in asked)
    step = (high - low) // (rows // _PART_ROWS + 1) + 1 if rows else 1
    for start in range(low, high + 1, step) if rows else ():
        # Each table is kept in the order of its key, and read in it: sorting takes twice as long.
        (texts,) = db.execute(
            f"SELECT {joined} FROM {table} WHERE {key} >= ? AND {key} < ?",  # noqa: S608 - names of ours
            (start, start + step),
        )
        if texts[0]:
            yield np.stack([parse_ints(text) for text in texts])


def parse_ints(text: str | None) -> Ints:
    """Return what `group_concat` joined; it must be whole numbers."""
    return np.fromstring(text, dtype=np.int64, sep=",") if text else np.zeros(0, dtype=np.int64)


def distinct(values: Ints) -> Ints:
    """Return the values that there are, ascending; numpy's `unique` takes three times as long."""
    ordered = np.sort(values, kind="stable")
    return ordered[_is_first(ordered[None])]


def distinct_rows(columns: Ints) -> Ints:
    """Return the rows that there are, ascending."""
    return sort(columns)[:, _is_first(columns)]


def joined(tables: list[Ints]) -> Ints:
    """Return tables of three columns below each other, and empty the list on the way."""
    whole = np.empty((3, sum(table.shape[1] for table in tables)), dtype=np.int64)
    at = whole.shape[1]
    while tables:
        table = tables.pop()
        at -= table.shape[1]
        whole[:, at : at + table.shape[1]] = table
    return whole


def sort(columns: Ints) -> Ints:
    """Sort the rows of an array of columns in place, by the first column, then by the next."""
    if not columns.shape[1]:
        return columns
    low, high = columns.min(axis=1), columns.max(axis=1)
    bits = [int(span).bit_length() for span in high - low]
    if sum(bits) > _KEY_BITS:
        columns[:] = columns[:, np.lexsort(columns[::-1])]
        return columns
    # As one number, rows are sorted in a third of the time.
    key = columns[0] - low[0]
    for column, start, width in zip(columns[1:], low[1:], bits[1:], strict=True):
        key <<= width
        key += column
        key -= start
    key.sort()
    for row in reversed(range(len(columns))):
        np.bitwise_and(key, (1 << bits[row]) - 1, out=columns[row])
        columns[row] += low[row]
        key >>= bits[row]
    return columns


def occurrence(columns: Ints) -> Ints:
    """Return for each of the sorted rows how many equal ones stand before it."""
    position = np.arange(columns.shape[1])
    return position - np.maximum.accumulate(np.where(_is_first(columns), position, 0))


def _is_first(columns: Ints) -> npt.NDArray[np.bool_]:
    """Say which of the sorted rows differ from the one before."""
    first = np.ones(columns.shape[1], dtype=bool)
    first[1:] = False
    for column in columns:
        first[1:] |= column[1:] != column[:-1]
    return first


def _statement(table: str, rows: int, width: int) -> str:
    row = f"({', '.join('?' * width)})"
    return f"INSERT OR IGNORE INTO {table} VALUES {', '.join([row] * rows)}"  # noqa: S608 - names of ours
