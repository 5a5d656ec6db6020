"""Binding spans of two sources that are the same thing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mlflow_perf import spans


def test_spans_are_bound_by_rule(make: Any, tmp_path: Path, spans_of: Any) -> None:
    """Spans of two types are the same where their keys agree in one run; bound twice is once."""
    db = spans_of(make.simple_monitoring(tmp_path / "m.db"))
    assert spans.bind(db, "parsl.monitoring.workflow", "parsl.monitoring.task") == 1
    assert spans.bind(db, "parsl.monitoring.workflow", "parsl.monitoring.task") == 0
    with pytest.raises(ValueError, match="by 'key' or by 'name'"):
        spans.bind(db, "a", "b", by="luck")


def test_monitoring_and_logs_of_a_run_are_one(make: Any, tmp_path: Path, spans_of: Any) -> None:
    """The same workflow, tasks and tries are bound, and each state is stored once."""
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
