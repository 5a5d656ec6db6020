"""Wrong names of types and events, and empty databases."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mlflow_perf import spans
from mlflow_perf.errors import SpansError


@pytest.fixture
def simple(make: Any, tmp_path: Path, spans_of: Callable[..., Path]) -> Path:
    """Task n starts at second n, takes two, runs one, and needs task n-1."""
    return spans_of(make.simple_monitoring(tmp_path / "monitoring.db"))


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
