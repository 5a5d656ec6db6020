"""The column cache, against the tables."""

from __future__ import annotations

import sqlite3
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.spans.conftest import build_database

from mlflow_perf.spans.database import cache
from mlflow_perf.spans.database.event_arrays import Columns, load_columns
from mlflow_perf.spans.database.schema import connect
from mlflow_perf.spans.database.store import Store

_nodes = st.integers(0, 7)


_pairs = st.lists(st.tuples(_nodes, _nodes), max_size=14)


_events = st.lists(
    st.tuples(_nodes, st.integers(0, 50), st.sampled_from(["a", "b", "c"])), max_size=25
)


@settings(max_examples=25)
@given(_pairs, _pairs, _events)
def test_the_cache_holds_what_the_tables_hold(
    subspans: list[Any], facets: list[Any], events: list[Any]
) -> None:
    """Read from the cache or from the tables, the columns are the same."""
    with tempfile.TemporaryDirectory() as folder:
        db = build_database(Path(folder) / "db", subspans, facets, events)
        fresh = load_columns(db)
        cache.update(db)
        cached = load_columns(db)
        for name in Columns.__dataclass_fields__:
            left, right = getattr(fresh, name), getattr(cached, name)
            assert (left == right) if name == "names" else np.array_equal(left, right)
        db.close()


def test_a_cache_that_others_made_stale_is_not_used(tmp_path: Path) -> None:
    """Analyses see rows that another program adds, although the cache does not hold them."""
    db = build_database(tmp_path / "db", [], [], [(0, 1, "a")])
    cache.update(db)
    db.execute("INSERT INTO event_row SELECT id, 99, type_id, 0 FROM span_row WHERE key = 0")
    assert load_columns(db).event_time.tolist() == [1, 99]
    db.close()


def _import(db: sqlite3.Connection, pieces: cache.EventPieces, events: list[Any]) -> None:
    """Store events of one span type as an importer does, each of the key and time that it names."""
    db.execute("BEGIN IMMEDIATE")
    pieces.start()
    store = Store(db, pieces=pieces)
    spans = store.add_spans("kind0", store.scope("test"), sorted({key for key, _ in events}))
    store.add_events((spans[key], time, "a") for key, time in events)
    pieces.write()
    db.execute("COMMIT")


@settings(max_examples=25)
@given(
    st.lists(
        st.lists(st.tuples(st.integers(0, 5), st.integers(0, 9)), min_size=1, max_size=9),
        max_size=5,
    )
)
def test_what_an_import_keeps_is_what_the_table_holds(imports: list[Any]) -> None:
    """In whatever order spans and events come, and come again, the kept pieces never differ."""
    with tempfile.TemporaryDirectory() as folder:
        db = connect(Path(folder) / "db", write=True)
        pieces = cache.EventPieces(db)
        for events in imports:
            _import(db, pieces, events)
            found = load_columns(db)
            rows = db.execute("SELECT span_id, time_us FROM event_row").fetchall()
            kept = list(zip(found.event_span.tolist(), found.event_time.tolist(), strict=True))
            assert kept == rows
        db.close()


def test_events_are_kept_while_they_are_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Events behind all that are known need not be read from their table again."""
    db = connect(tmp_path / "db", write=True)
    pieces = cache.EventPieces(db)
    _import(db, pieces, [(0, 1), (1, 2)])
    _import(db, pieces, [(2, 1), (3, 7)])
    read = monkeypatch.setattr(
        "mlflow_perf.spans.database.bulk.read", lambda *_: pytest.fail("was read")
    )
    assert read is None
    assert cache.read(db, "event")[1].tolist() == [1, 2, 1, 7]
    db.close()


def test_what_another_process_writes_meanwhile_is_not_missed(tmp_path: Path) -> None:
    """Pieces of two imports at once do not overlap: where the other's end, it is asked anew."""
    one, other = (connect(tmp_path / "db", write=True) for _ in range(2))
    pieces, others = cache.EventPieces(one), cache.EventPieces(other)
    _import(one, pieces, [(0, 1)])
    _import(other, others, [(1, 5), (2, 6)])
    _import(one, pieces, [(1, 4), (2, 7)])
    assert load_columns(one).event_time.tolist() == [1, 4, 5, 6, 7]
    one.close()
    other.close()
