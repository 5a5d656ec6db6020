"""Whole numbers in bulk: written to tables, read from tables, sorted.

For a million events this takes a third to half of the time of one call per row: SQLite joins whole
columns to text, which numpy parses, and inserts hundreds of rows with one statement.
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
    "concatenate",
    "distinct",
    "distinct_rows",
    "insert",
    "insert_columns",
    "occurrence",
    "parse_ints",
    "read",
    "read_parts",
    "sort",
]

Ints = npt.NDArray[np.int64]
"""Whole numbers. As a table, the array has one row for each column of the table."""

# More rows in a statement make it no faster.
_ROWS = 250
# Arrays are converted to Python's numbers in pieces, to save memory.
_PIECE = _ROWS * 100
# A row takes about thirty characters of text; parts of this size save memory.
_PART_ROWS = 100_000
_KEY_BITS = 63


def insert(db: sqlite3.Connection, table: str, rows: Iterable[Sequence[Any]]) -> int:
    """Store the rows that the table does not hold yet.

    Args:
        db: The connection.
        table: One of our tables.
        rows: The rows, each with a value for each column.

    Returns:
        How many rows were new.
    """
    new = 0
    rest = iter(rows)
    while several := list(islice(rest, _ROWS)):
        statement = _statement(table, len(several), len(several[0]))
        new += db.execute(statement, list(chain(*several))).rowcount
    return new


def insert_columns(db: sqlite3.Connection, table: str, columns: Sequence[Ints] | Ints) -> int:
    """Store rows as `insert` does, given as columns of the same length."""
    new, width = 0, len(columns)
    for start in range(0, len(columns[0]), _PIECE):
        piece = np.stack([column[start : start + _PIECE] for column in columns], axis=1)
        values = piece.ravel().tolist()
        for at in range(0, len(values), _ROWS * width):
            several = values[at : at + _ROWS * width]
            new += db.execute(_statement(table, len(several) // width, width), several).rowcount
    return new


def read(db: sqlite3.Connection, table: str, *columns: str) -> Ints:
    """Return columns of a table, ordered by the first column, the key of the table."""
    parts = [np.zeros((len(columns), 0), dtype=np.int64), *read_parts(db, table, *columns)]
    return np.concatenate(parts, axis=1)


def read_parts(db: sqlite3.Connection, table: str, *columns: str) -> Iterator[Ints]:
    """Yield the rows of `read` about 100,000 at a time; all rows of one key are in one part."""
    key, joined = columns[0], ", ".join(f"group_concat({c})" for c in columns)
    # Three queries: one query with both min and max would scan the whole table.
    asked = (f"SELECT {what} FROM {table}" for what in (f"min({key})", f"max({key})", "count(*)"))  # noqa: S608 - names of ours
    low, high, rows = (db.execute(query).fetchone()[0] for query in asked)
    step = (high - low) // (rows // _PART_ROWS + 1) + 1 if rows else 1
    for start in range(low, high + 1, step) if rows else ():
        # The table is stored in the order of its key: no ORDER BY, which would double the time.
        (texts,) = db.execute(
            f"SELECT {joined} FROM {table} WHERE {key} >= ? AND {key} < ?",  # noqa: S608 - names of ours
            (start, start + step),
        )
        if texts[0]:
            yield np.stack([parse_ints(text) for text in texts])


def parse_ints(text: str | None) -> Ints:
    """Return the whole numbers that `group_concat` joined."""
    return np.fromstring(text, dtype=np.int64, sep=",") if text else np.zeros(0, dtype=np.int64)


def distinct(values: Ints) -> Ints:
    """Return the distinct values, ascending, in a third of the time of numpy's `unique`."""
    ordered = np.sort(values, kind="stable")
    return ordered[_is_first(ordered[None])]


def distinct_rows(columns: Ints) -> Ints:
    """Return the distinct rows, ascending. The array is sorted in place."""
    return sort(columns)[:, _is_first(columns)]


def concatenate(tables: list[Ints]) -> Ints:
    """Concatenate tables of three columns; the list is emptied meanwhile, to save memory."""
    whole = np.empty((3, sum(table.shape[1] for table in tables)), dtype=np.int64)
    at = whole.shape[1]
    while tables:
        table = tables.pop()
        at -= table.shape[1]
        whole[:, at : at + table.shape[1]] = table
    return whole


def sort(columns: Ints) -> Ints:
    """Sort rows in place, by the first column, then by the next; return the same array."""
    if not columns.shape[1]:
        return columns
    low, high = columns.min(axis=1), columns.max(axis=1)
    bits = [int(span).bit_length() for span in high - low]
    if sum(bits) > _KEY_BITS:
        columns[:] = columns[:, np.lexsort(columns[::-1])]
        return columns
    # Packed into one number, rows are sorted in a third of the time.
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
    """Return for each of the sorted rows how many equal rows precede it."""
    position = np.arange(columns.shape[1])
    return position - np.maximum.accumulate(np.where(_is_first(columns), position, 0))


def _is_first(columns: Ints) -> npt.NDArray[np.bool_]:
    """Return which of the sorted rows differ from the row before."""
    first = np.ones(columns.shape[1], dtype=bool)
    first[1:] = False
    for column in columns:
        first[1:] |= column[1:] != column[:-1]
    return first


def _statement(table: str, rows: int, width: int) -> str:
    row = f"({', '.join('?' * width)})"
    return f"INSERT OR IGNORE INTO {table} VALUES {', '.join([row] * rows)}"  # noqa: S608 - names of ours
