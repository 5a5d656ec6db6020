"""The chain of tasks that determined when the workflow ended."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mlflow_perf import spans
from mlflow_perf.errors import SpansError

_EPOCH = 1795176000.0


@pytest.fixture
def simple(make: Any, tmp_path: Path, spans_of: Callable[..., Path]) -> Path:
    """Task n starts at second n, takes two, runs one, and needs task n-1."""
    return spans_of(make.simple_monitoring(tmp_path / "monitoring.db"))


def test_the_critical_path_follows_what_each_task_needed(simple: Path) -> None:
    """The path leads from the last task back to the first, with waiting and running times."""
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


def test_a_task_that_ended_later_delayed_nothing(make: Any, tmp_path: Path, utc: None) -> None:
    """A task cannot have waited for a task that ended later, even if the database says so."""
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
    """A part of its id selects one of several runs."""
    for run, tasks in (("run-a", 2), ("run-b", 3)):
        make.simple_monitoring(tmp_path / "m.db", run=run, tasks=tasks)
    db = spans_of(tmp_path / "m.db")
    assert len(spans.critical_path(db, run="run-a")) == 2
    with pytest.raises(SpansError, match="'run-c'"):
        spans.critical_path(db, run="run-c")
