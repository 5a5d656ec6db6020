"""Sequences of events, against plain Python."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.spans.conftest import build_database

from mlflow_perf import spans
from mlflow_perf.spans.analyses.sequences import sequences
from mlflow_perf.spans.database.event_arrays import load_columns


@pytest.fixture
def simple(make: Any, tmp_path: Path, spans_of: Callable[..., Path]) -> Path:
    """Task n starts at second n, takes two, runs one, and needs task n-1."""
    return spans_of(make.simple_monitoring(tmp_path / "monitoring.db"))


def test_percentiles_of_each_step(simple: Path) -> None:
    """If asked for, percentiles are returned beside the means."""
    (row,) = spans.sequences(simple, percentiles=True)
    assert row["events"][4]["p50_s"] == row["events"][4]["p99_s"] == pytest.approx(1.0)


_nodes = st.integers(0, 7)


_pairs = st.lists(st.tuples(_nodes, _nodes), max_size=14)


_events = st.lists(
    st.tuples(_nodes, st.integers(0, 50), st.sampled_from(["a", "b", "c"])), max_size=25
)


@settings(max_examples=25)
@given(_pairs, _events)
def test_sequences_are_those_of_plain_python(subspans: list[Any], events: list[Any]) -> None:
    """Each root is counted in one sequence, and the means are those of its roots."""
    with tempfile.TemporaryDirectory() as folder:
        db = build_database(Path(folder) / "db", subspans, [], events)
        streams = load_columns(db).streams("kind0")
        plain: dict[tuple[Any, ...], list[list[float]]] = {}
        for root in sorted(set(streams.root.tolist())):
            at = streams.root == root
            name = tuple(streams.kinds[k] for k in streams.kind[at])
            plain.setdefault(name, []).append((streams.time[at] / 1e6).tolist())
        rows = sequences(db, "kind0")
        assert sum(r["count"] for r in rows) == sum(map(len, plain.values()))
        assert [r["count"] for r in rows] == sorted((r["count"] for r in rows), reverse=True)
        for row in rows:
            times = plain.pop(tuple((e["span_type"], e["event_type"]) for e in row["events"]))
            table = np.array(times)
            steps = np.diff(table, axis=1, prepend=table[:, :1])
            assert [e["mean_s"] for e in row["events"]] == pytest.approx(steps.mean(axis=0))
            assert [e["max_s"] for e in row["events"]] == pytest.approx(steps.max(axis=0))
            since = (table - table[:, :1]).mean(axis=0)
            assert [e["cumulative_mean_s"] for e in row["events"]] == pytest.approx(
                since, abs=1e-12
            )
        assert not plain
        db.close()
