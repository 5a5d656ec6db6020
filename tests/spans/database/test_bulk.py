"""Whole numbers in bulk, against the same row by row."""

from __future__ import annotations

import sqlite3
import tempfile
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


_events = st.lists(st.tuples(st.integers(0, 30), st.integers(-9, 9), st.integers(0, 3)), max_size=9)


def _sorted(ranges: list[bulk.Ints]) -> list[tuple[int, ...]]:
    return [row for rows in ranges for row in zip(*bulk.sort(rows).tolist(), strict=True)]


@settings(max_examples=100)
@given(_rows)
def test_sorting_is_pythons(rows: list[Any]) -> None:
    """Rows are sorted like tuples, whether they fit in one number or not."""
    assert list(zip(*bulk.sort(_table(rows)).tolist(), strict=True)) == sorted(rows)


def test_joining_empties_the_list() -> None:
    """Joining frees each table as it goes, so that memory holds the rows once."""
    tables = [_table([(1, 2, 3)]), _table([]), _table([(4, 5, 6), (7, 8, 9)])]
    assert bulk.concatenate(tables).tolist() == [[1, 4, 7], [2, 5, 8], [3, 6, 9]]
    assert tables == []


@pytest.mark.parametrize("count", [0, 1, 249, 250, 251, 777])
def test_rows_of_any_number_are_stored_once(db: sqlite3.Connection, count: int) -> None:
    """Each row is stored, and only new rows are counted, for any number of rows."""
    numbers = np.arange(count, dtype=np.int64)
    assert bulk.insert_columns(db, "t", [numbers, numbers * 2]) == count
    assert bulk.insert(db, "t", ((n, 2 * n) for n in range(count + 1))) == 1
    assert bulk.read(db, "t", "a", "b").tolist() == [
        list(range(count + 1)), list(range(0, 2 * count + 1, 2)),
    ]  # fmt: skip


def test_other_writes_are_not_counted(db: sqlite3.Connection) -> None:
    """The iterable of rows may itself write to the database."""
    db.execute("CREATE TABLE word (text)")

    def rows() -> Iterator[tuple[int, int]]:
        for n in range(3):
            db.execute("INSERT INTO word VALUES (?)", (n,))
            yield n, n

    assert bulk.insert(db, "t", rows()) == 3


@settings(max_examples=40)
@given(st.lists(_events, max_size=6), st.integers(0, 600_000), st.integers(0, 10))
def test_ranges_hold_every_event_in_the_order_of_spans(
    parts: list[Any], expected: int, low: int
) -> None:
    """Sorted ranges make up the sorted whole, even if other spans or numbers were expected."""
    spans = (low, low + 9)
    with (
        tempfile.TemporaryDirectory() as folder,
        bulk.EventSorter(spans, expected, Path(folder)) as events,
    ):
        for rows in parts:
            events.add(_table(rows))
        assert _sorted(list(events.ranges())) == sorted(e for rows in parts for e in rows)


def test_many_events_wait_in_a_temporary_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More events than memory may hold come back from a file, which is gone afterwards."""
    monkeypatch.setattr(bulk, "_HELD_BYTES", 100)
    monkeypatch.setattr(bulk, "_RANGE_EVENTS", 10)
    rows = [(span, time, 0) for time in range(5) for span in range(20)]
    with bulk.EventSorter((0, 19), len(rows), tmp_path) as events:
        for at in range(0, len(rows), 7):
            events.add(_table(rows[at : at + 7]))
        ranges = list(events.ranges())
    assert len(ranges) > 5
    assert _sorted(ranges) == sorted(rows)
    assert list(tmp_path.iterdir()) == []
