"""Times between events, durations, concurrency, the critical path, and what is asked wrongly."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlflow_perf import spans
from mlflow_perf.errors import SettingError, SpansError
from mlflow_perf.spans.analyses.concurrency import count_running, summarise_concurrency

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


def test_an_event_can_be_told_by_its_span_type(simple: Path) -> None:
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


def test_the_critical_path_follows_what_each_task_needed(simple: Path) -> None:
    """From the task that ended last back to the first, waiting told from running."""
    rows = spans.critical_path(simple)
    assert [r["task"] for r in rows] == [0, 1, 2]
    assert rows[0]["waited_s"] == pytest.approx(0.5)
    assert rows[0]["ran_s"] == pytest.approx(1.5)
    # It was released when the task before had returned, a second after it was invoked itself.
    assert rows[1]["released_s"] == _EPOCH + 2.0


def test_the_critical_path_of_a_cycle_ends(make: Any, tmp_path: Path, utc: None) -> None:
    """Dependencies that go round in a circle, which no workflow has, give a path all the same."""
    rows = [(0, "f", make.at(0), make.at(1), "1"), (1, "f", make.at(0), make.at(2), "0")]
    make.monitoring(tmp_path / "m.db", tasks=rows).close()
    spans.import_sources(tmp_path / "m.db", tmp_path / "db")
    assert [r["task"] for r in spans.critical_path(tmp_path / "db")] == [0, 1]


def test_what_ended_later_kept_nothing_waiting(make: Any, tmp_path: Path, utc: None) -> None:
    """A task cannot have waited for what ended after it, whatever the database says it needed."""
    rows = [
        (0, "f", make.at(0), make.at(9), ""),
        (1, "f", make.at(0), make.at(2), "0"),
        (2, "f", make.at(0), make.at(10), "1"),
    ]
    make.monitoring(tmp_path / "m.db", tasks=rows).close()
    spans.import_sources(tmp_path / "m.db", tmp_path / "db")
    path = spans.critical_path(tmp_path / "db")
    assert [r["task"] for r in path] == [1, 2]
    assert [r["ran_s"] for r in path] == [2.0, 8.0]


def test_the_critical_path_of_one_run(make: Any, tmp_path: Path, spans_of: Any) -> None:
    """Of several runs, the one that is named by a part of its id."""
    for run, tasks in (("run-a", 2), ("run-b", 3)):
        make.simple_monitoring(tmp_path / "m.db", run=run, tasks=tasks)
    db = spans_of(tmp_path / "m.db")
    assert len(spans.critical_path(db, run="run-a")) == 2
    with pytest.raises(SpansError, match="'run-c'"):
        spans.critical_path(db, run="run-c")


def test_wrong_names_are_answered_with_the_right_ones(simple: Path) -> None:
    """An unknown span type or event type is an error that lists what there is."""
    with pytest.raises(SpansError, match=r"parsl\.monitoring\.try"):
        spans.sequences(simple, "parsl.task")
    with pytest.raises(SpansError, match="running_ended"):
        spans.between(simple, "started", "returned")
    with pytest.raises(SpansError, match="Give both"):
        spans.concurrency(simple, start="running")


def test_an_empty_database_says_so(tmp_path: Path) -> None:
    """Analyses of a database without spans fail with one sentence; the types are none."""
    spans.connect(tmp_path / "db", write=True).close()
    assert spans.types(tmp_path / "db") == []
    assert spans.durations(tmp_path / "db") == []
    with pytest.raises(SpansError, match="the database is empty"):
        spans.sequences(tmp_path / "db")


def test_percentiles_of_each_step(simple: Path) -> None:
    """Asked for, they stand beside the means."""
    (row,) = spans.sequences(simple, percentiles=True)
    assert row["events"][4]["p50_s"] == row["events"][4]["p99_s"] == pytest.approx(1.0)


def test_spans_are_bound_by_rule(make: Any, tmp_path: Path, spans_of: Any) -> None:
    """Spans of two types are the same where their keys agree in one run; bound twice is once."""
    db = spans_of(make.simple_monitoring(tmp_path / "m.db"))
    assert spans.bind(db, "parsl.monitoring.workflow", "parsl.monitoring.task") == 1
    assert spans.bind(db, "parsl.monitoring.workflow", "parsl.monitoring.task") == 0
    with pytest.raises(ValueError, match="by 'key' or by 'name'"):
        spans.bind(db, "a", "b", by="luck")


def test_monitoring_and_logs_of_a_run_are_one(make: Any, tmp_path: Path, spans_of: Any) -> None:
    """The same workflow, tasks and tries are bound, and no state is told twice."""
    db = spans_of(make.recorded("text", tmp_path))
    counts = spans.sql(
        db,
        "SELECT a.type AS type, count(*) AS n FROM facet JOIN span a ON a.uuid = left_uuid"
        " GROUP BY 1 ORDER BY 1",
    )
    assert counts == [
        {"type": "parsl.monitoring.task", "n": 13},
        {"type": "parsl.monitoring.try", "n": 13},
        {"type": "parsl.monitoring.workflow", "n": 1},
    ]
    events = [e["event_type"] for e in spans.sequences(db)[0]["events"]]
    assert len(events) == len(set(events))
    assert events.index("interchange_to_manager") < events.index("worker_received_task")
    assert events.index("worker_received_task") < events.index("running")


@pytest.mark.parametrize("points", [1, 0, -3])
def test_a_curve_of_states_has_two_points(simple: Path, points: int) -> None:
    """Fewer are refused by name, not by an array's shape."""
    with pytest.raises(SettingError, match="points"):
        spans.states(simple, points=points)
