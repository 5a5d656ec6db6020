"""The closure of spans below a root, against dnpcsql's SQL; wrong names, empty databases."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.spans.conftest import build_database

from mlflow_perf import spans
from mlflow_perf.errors import SpansError
from mlflow_perf.spans.database.event_arrays import load_columns

_EVENTS_SQL = """
WITH RECURSIVE descs(root, span) AS (
    SELECT uuid, uuid FROM span WHERE type = 'kind0'
    UNION SELECT root, subspan_uuid FROM subspan, descs WHERE superspan_uuid = span
    UNION SELECT root, right_uuid FROM facet, descs WHERE left_uuid = span
    UNION SELECT root, left_uuid FROM facet, descs WHERE right_uuid = span)
SELECT root, event.time, span.type, event.type FROM descs, span, event
WHERE span.uuid = descs.span AND event.span_uuid = span.uuid
"""


_nodes = st.integers(0, 7)


_pairs = st.lists(st.tuples(_nodes, _nodes), max_size=14)


_events = st.lists(
    st.tuples(_nodes, st.integers(0, 50), st.sampled_from(["a", "b", "c"])), max_size=25
)


@settings(max_examples=25)
@given(_pairs, _pairs, _events)
def test_the_closure_is_dnpcsqls(subspans: list[Any], facets: list[Any], events: list[Any]) -> None:
    """Down subspans, both ways over facets, cycles and duplicates included, as its SQL has it."""
    with tempfile.TemporaryDirectory() as folder:
        db = build_database(Path(folder) / "db", subspans, facets, events)
        columns = load_columns(db)
        streams = columns.streams("kind0")
        found = Counter(
            (int(streams.roots[root]), int(time) / 1e6, *streams.kinds[kind])
            for root, time, kind in zip(streams.root, streams.time, streams.kind, strict=True)
        )
        assert found == Counter(db.execute(_EVENTS_SQL).fetchall())
        order = list(zip(streams.root.tolist(), streams.time.tolist(), strict=True))
        assert order == sorted(order)
        db.close()


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
