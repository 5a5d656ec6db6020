"""Times between events, and durations."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mlflow_perf import spans

_EPOCH = 1795176000.0


@pytest.fixture
def simple(make: Any, tmp_path: Path, spans_of: Callable[..., Path]) -> Path:
    """Task n starts at second n, takes two, runs one, and needs task n-1."""
    return spans_of(make.simple_monitoring(tmp_path / "monitoring.db"))


def test_times_between_two_events(simple: Path) -> None:
    """One row for each root that has both, in the order of start."""
    assert spans.between(simple, "invoked", "returned") == [
        {"start_s": _EPOCH + n, "duration_s": 2.0} for n in range(3)
    ]


def test_an_event_can_be_given_with_its_span_type(simple: Path) -> None:
    """`span type/event type` names one event where the bare type names several."""
    rows = spans.between(simple, "parsl.monitoring.try/running", "parsl.monitoring.task/returned")
    assert [r["duration_s"] for r in rows] == [1.5] * 3


def test_an_end_before_its_start_is_negative(simple: Path) -> None:
    """Nothing is hidden: dnpcsql gives the difference as it is, and so do we."""
    rows = spans.between(simple, "returned", "invoked")
    assert [r["duration_s"] for r in rows] == [-2.0] * 3


def test_roots_without_one_of_the_events_are_left_out(make: Any, tmp_path: Path, utc: None) -> None:
    """A task that has not returned has no duration."""
    rows = [(0, "f", make.at(0), make.at(1), ""), (1, "f", make.at(0), None, "")]
    make.monitoring(tmp_path / "m.db", tasks=rows).close()
    spans.import_sources(tmp_path / "m.db", tmp_path / "db")
    assert len(spans.between(tmp_path / "db", "invoked", "returned")) == 1


def test_durations_by_type(simple: Path) -> None:
    """First to last event of the span itself, with the usual statistics."""
    rows = {row["type"].rpartition(".")[2]: row for row in spans.durations(simple)}
    assert rows["task"]["count"] == 3
    assert rows["task"]["mean_s"] == rows["task"]["p99_s"] == pytest.approx(2.0)
    assert rows["try"]["max_s"] == pytest.approx(2.0)
    assert rows["workflow"]["total_s"] == pytest.approx(60.0)
