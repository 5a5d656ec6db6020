"""Whole numbers in bulk, against the same row by row."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.spans.conftest import build_database

from mlflow_perf.spans.database import bulk
from mlflow_perf.spans.database.event_arrays import load_columns


def test_a_table_longer_than_one_part_is_read_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tables of more rows than one string of SQLite takes are read in parts."""
    db = build_database(tmp_path / "db", [], [], [(n, t, "a") for n in range(8) for t in range(5)])
    whole = load_columns(db)
    monkeypatch.setattr("mlflow_perf.spans.database.bulk._PART_ROWS", 3)
    parts = load_columns(db)
    assert np.array_equal(whole.event_span, parts.event_span)
    assert np.array_equal(whole.event_time, parts.event_time)
    db.close()


_BIG = st.one_of(st.integers(0, 4), st.integers(-(1 << 61), 1 << 61))


_rows = st.lists(st.tuples(_BIG, _BIG, st.integers(0, 3)), max_size=40)


@pytest.fixture
def db() -> Iterator[sqlite3.Connection]:
    """Give a database with one table."""
    connection = sqlite3.connect(":memory:")
    connection.execute("CREATE TABLE t (a INTEGER, b, PRIMARY KEY (a, b)) WITHOUT ROWID")
    yield connection
    connection.close()


def _table(rows: list[tuple[int, int, int]]) -> bulk.Ints:
    table: bulk.Ints = np.array(rows, dtype=np.int64).reshape(-1, 3).T.copy()
    return table


@settings(max_examples=100)
@given(_rows)
def test_sorting_is_pythons(rows: list[Any]) -> None:
    """Rows come in the order of tuples, whether they fit in one number or not."""
    assert list(zip(*bulk.sort(_table(rows)).tolist(), strict=True)) == sorted(rows)


def test_joining_empties_the_list() -> None:
    """Tables are let go of while they are joined, so that memory holds them once."""
    tables = [_table([(1, 2, 3)]), _table([]), _table([(4, 5, 6), (7, 8, 9)])]
    assert bulk.concatenate(tables).tolist() == [[1, 4, 7], [2, 5, 8], [3, 6, 9]]
    assert tables == []


@pytest.mark.parametrize("count", [0, 1, 249, 250, 251, 777])
def test_rows_of_any_number_are_stored_once(db: sqlite3.Connection, count: int) -> None:
    """Full statements, the rest, and nothing: each row is there, and only what is new counts."""
    numbers = np.arange(count, dtype=np.int64)
    assert bulk.insert_columns(db, "t", [numbers, numbers * 2]) == count
    assert bulk.insert(db, "t", ((n, 2 * n) for n in range(count + 1))) == 1
    assert bulk.read(db, "t", "a", "b").tolist() == [
        list(range(count + 1)), list(range(0, 2 * count + 1, 2)),
    ]  # fmt: skip


def test_what_else_the_rows_write_is_not_counted(db: sqlite3.Connection) -> None:
    """Rows may be made while they are stored, by statements of their own."""
    db.execute("CREATE TABLE word (text)")

    def rows() -> Iterator[tuple[int, int]]:
        for n in range(3):
            db.execute("INSERT INTO word VALUES (?)", (n,))
            yield n, n

    assert bulk.insert(db, "t", rows()) == 3
