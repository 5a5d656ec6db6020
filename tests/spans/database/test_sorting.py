"""Sorting events in memory that does not grow with them, against sorting them all at once."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlflow_perf.spans.database import bulk, sorting
from mlflow_perf.spans.database.sorting import EventSorter

_events = st.lists(st.tuples(st.integers(0, 30), st.integers(-9, 9), st.integers(0, 3)), max_size=9)


def _table(rows: list[tuple[int, int, int]]) -> bulk.Ints:
    table: bulk.Ints = np.array(rows, dtype=np.int64).reshape(-1, 3).T.copy()
    return table


def _sorted(ranges: list[bulk.Ints]) -> list[tuple[int, ...]]:
    return [row for rows in ranges for row in zip(*bulk.sort(rows).tolist(), strict=True)]


@settings(max_examples=40)
@given(st.lists(_events, max_size=6), st.integers(0, 600_000), st.integers(0, 10))
def test_ranges_hold_every_event_in_the_order_of_spans(
    parts: list[Any], expected: int, low: int
) -> None:
    """Whatever number and whichever spans were expected, sorted ranges are the sorted whole."""
    spans = (low, low + 9)
    with (
        tempfile.TemporaryDirectory() as folder,
        EventSorter(spans, expected, Path(folder)) as events,
    ):
        for rows in parts:
            events.add(_table(rows))
        assert _sorted(list(events.ranges())) == sorted(e for rows in parts for e in rows)


def test_many_events_wait_in_a_file_that_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beyond what is held in memory they come back from a file that nobody sees."""
    monkeypatch.setattr(sorting, "_HELD_BYTES", 100)
    monkeypatch.setattr(sorting, "_RANGE_EVENTS", 10)
    rows = [(span, time, 0) for time in range(5) for span in range(20)]
    with EventSorter((0, 19), len(rows), tmp_path) as events:
        for at in range(0, len(rows), 7):
            events.add(_table(rows[at : at + 7]))
        ranges = list(events.ranges())
    assert len(ranges) > 5
    assert _sorted(ranges) == sorted(rows)
    assert list(tmp_path.iterdir()) == []
