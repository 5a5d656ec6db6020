"""How many spans are under way at once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlflow_perf import spans
from mlflow_perf.spans.analyses.concurrency import count_running, summarise_concurrency

_EPOCH = 1795176000.0


@pytest.fixture
def simple(make: Any, tmp_path: Path, spans_of: Callable[..., Path]) -> Path:
    """Task n starts at second n, takes two, runs one, and needs task n-1."""
    return spans_of(make.simple_monitoring(tmp_path / "monitoring.db"))


def test_concurrency_at_each_change(simple: Path) -> None:
    """Tasks of two seconds, one started each second, overlap in pairs."""
    rows = spans.concurrency(simple)
    assert [(r["time_s"] - _EPOCH, r["spans"]) for r in rows] == [(0, 1), (1, 2), (3, 1), (4, 0)]
    running = spans.concurrency(simple, start="running", end="running_ended")
    assert {r["spans"] for r in running} == {0, 1}


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 10)), max_size=20))
def test_the_running_count_is_what_counting_gives(intervals: list[tuple[int, int]]) -> None:
    """At each moment as many are under way as have begun and not ended."""
    import numpy as np

    begins = np.array([b for b, _ in intervals], dtype=np.int64)
    ends = begins + np.array([length for _, length in intervals], dtype=np.int64)
    times, counts = count_running(begins, ends)
    for time, count in zip(times.tolist(), counts.tolist(), strict=True):
        assert count == sum(1 for b, length in intervals if b <= time < b + length)
    assert not len(counts) or counts[-1] == 0


def test_the_summary_of_concurrency_weighs_by_time() -> None:
    """One span for three seconds and two for one make a mean of 1.25."""
    rows = [{"time_s": 0.0, "spans": 1}, {"time_s": 3.0, "spans": 2}, {"time_s": 4.0, "spans": 0}]
    found = summarise_concurrency(rows)
    assert found == {"max": 2, "mean": 1.25, "busy_s": 4.0, "total_s": 4.0}
