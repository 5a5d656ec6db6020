"""How many root spans are in which state."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.spans.conftest import build_database

from mlflow_perf import spans
from mlflow_perf.errors import SettingError
from mlflow_perf.spans.analyses.state_curves import states
from mlflow_perf.spans.database.event_arrays import load_columns


@pytest.fixture
def simple(make: Any, tmp_path: Path, spans_of: Callable[..., Path]) -> Path:
    """Task n starts at second n, takes two, runs one, and needs task n-1."""
    return spans_of(make.simple_monitoring(tmp_path / "monitoring.db"))


@pytest.mark.parametrize("points", [1, 0, -3])
def test_a_curve_of_states_has_two_points(simple: Path, points: int) -> None:
    """Fewer are refused by name, not by an array's shape."""
    with pytest.raises(SettingError, match="points"):
        spans.states(simple, points=points)


_nodes = st.integers(0, 7)


_pairs = st.lists(st.tuples(_nodes, _nodes), max_size=14)


_events = st.lists(
    st.tuples(_nodes, st.integers(0, 50), st.sampled_from(["a", "b", "c"])), max_size=25
)


@settings(max_examples=25)
@given(_pairs, _events)
def test_states_add_up_to_the_roots_that_have_begun(subspans: list[Any], events: list[Any]) -> None:
    """At each time, every root that has begun is in exactly one state."""
    with tempfile.TemporaryDirectory() as folder:
        db = build_database(Path(folder) / "db", subspans, [], events)
        streams = load_columns(db).streams("kind0")
        first = streams.time[streams.starts]
        for row in states(db, "kind0", points=None):
            time = round(row.pop("time_s") * 1e6)
            assert all(count >= 0 for count in row.values())
            assert sum(row.values()) == int((first <= time).sum())
        db.close()
