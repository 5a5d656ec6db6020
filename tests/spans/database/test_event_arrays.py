"""The closure and the columns, against SQL and against plain Python."""

from __future__ import annotations

import sqlite3
import tempfile
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlflow_perf.spans.analyses.sequences import sequences
from mlflow_perf.spans.analyses.state_curves import states
from mlflow_perf.spans.database import cache
from mlflow_perf.spans.database.event_arrays import Columns, load_columns
from mlflow_perf.spans.database.schema import connect
from mlflow_perf.spans.database.store import Store

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


def _build(path: Path, subspans: list, facets: list, events: list) -> sqlite3.Connection:
    """Write eight spans of two types with relations of any shape."""
    db = connect(path, write=True)
    db.execute("BEGIN")
    store = Store(db)
    scope = store.scope("test")
    ids = {n: store.span(f"kind{n % 2}", scope, n) for n in range(8)}
    store.add_subspans((ids[a], ids[b], b) for a, b in subspans)
    store.add_facets(((ids[a], ids[b]) for a, b in facets), note="same")
    store.add_events(
        [ids[n] for n, _, _ in events],
        [t for _, t, _ in events],
        [store.string(name) for _, _, name in events],
    )
    db.execute("COMMIT")
    return db


@settings(max_examples=25)
@given(_pairs, _pairs, _events)
def test_the_closure_is_dnpcsqls(subspans: list, facets: list, events: list) -> None:
    """Down subspans, both ways over facets, cycles and duplicates included, as its SQL has it."""
    with tempfile.TemporaryDirectory() as folder:
        db = _build(Path(folder) / "db", subspans, facets, events)
        columns = load_columns(db)
        streams = columns.streams("kind0")
        found = Counter(
            (int(streams.roots[root]), int(time) / 1e6, *columns.kinds[kind])
            for root, time, kind in zip(streams.root, streams.time, streams.kind, strict=True)
        )
        assert found == Counter(db.execute(_EVENTS_SQL).fetchall())
        order = list(zip(streams.root.tolist(), streams.time.tolist(), strict=True))
        assert order == sorted(order)
        db.close()


@settings(max_examples=25)
@given(_pairs, _events)
def test_orderings_are_those_of_plain_python(subspans: list, events: list) -> None:
    """Each root counts in one ordering, whose means are the means of its roots."""
    with tempfile.TemporaryDirectory() as folder:
        db = _build(Path(folder) / "db", subspans, [], events)
        streams = load_columns(db).streams("kind0")
        plain: dict[tuple, list[list[float]]] = {}
        for root in sorted(set(streams.root.tolist())):
            at = streams.root == root
            name = tuple(streams.columns.kinds[k] for k in streams.kind[at])
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


@settings(max_examples=25)
@given(_pairs, _events)
def test_states_add_up_to_the_roots_that_have_begun(subspans: list, events: list) -> None:
    """At each time every root whose first event has come is in exactly one state."""
    with tempfile.TemporaryDirectory() as folder:
        db = _build(Path(folder) / "db", subspans, [], events)
        streams = load_columns(db).streams("kind0")
        first = streams.time[streams.starts]
        for row in states(db, "kind0", points=None):
            time = round(row.pop("time_s") * 1e6)
            assert all(count >= 0 for count in row.values())
            assert sum(row.values()) == int((first <= time).sum())
        db.close()


@settings(max_examples=25)
@given(_pairs, _pairs, _events)
def test_the_cache_holds_what_the_tables_hold(subspans: list, facets: list, events: list) -> None:
    """Read from the cache or from the tables, the columns are the same."""
    with tempfile.TemporaryDirectory() as folder:
        db = _build(Path(folder) / "db", subspans, facets, events)
        fresh = load_columns(db)
        cache.update(db)
        cached = load_columns(db)
        for name in Columns.__dataclass_fields__:
            left, right = getattr(fresh, name), getattr(cached, name)
            assert (left == right) if name == "names" else np.array_equal(left, right)
        db.close()


def test_a_cache_that_others_made_stale_is_not_used(tmp_path: Path) -> None:
    """What another program adds to the tables is seen, although the cache does not hold it."""
    db = _build(tmp_path / "db", [], [], [(0, 1, "a")])
    cache.update(db)
    db.execute("INSERT INTO event_row SELECT id, 99, type_id, 0 FROM span_row WHERE key = 0")
    assert load_columns(db).event_time.tolist() == [1, 99]
    db.close()


def _import(db: sqlite3.Connection, pieces: cache.EventPieces, events: list) -> None:
    """Store events of one span type as an importer does, each of the key and time that it names."""
    db.execute("BEGIN IMMEDIATE")
    pieces.start()
    store = Store(db, pieces=pieces)
    spans = store.add_spans("kind0", store.scope("test"), sorted({key for key, _ in events}))
    kind = store.string("a")
    store.add_events([spans[k] for k, _ in events], [t for _, t in events], [kind] * len(events))
    pieces.write()
    db.execute("COMMIT")


@settings(max_examples=25)
@given(
    st.lists(
        st.lists(st.tuples(st.integers(0, 5), st.integers(0, 9)), min_size=1, max_size=9),
        max_size=5,
    )
)
def test_what_an_import_keeps_is_what_the_table_holds(imports: list) -> None:
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


def test_events_of_one_microsecond_are_all_kept(tmp_path: Path) -> None:
    """The same event twice in one microsecond counts twice; written again, still twice."""
    db = _build(tmp_path / "db", [], [], [(0, 5, "a"), (0, 5, "a"), (0, 5, "b")])
    store = Store(db)
    span, kind = store.span("kind0", store.scope("test"), 0), store.string("a")
    store.add_events([span, span], [5, 5], [kind, kind])
    assert store.events == 0
    assert db.execute("SELECT count(*) FROM event").fetchone() == (3,)
    db.close()


def test_a_table_longer_than_one_part_is_read_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tables of more rows than one string of SQLite takes are read in parts."""
    db = _build(tmp_path / "db", [], [], [(n, t, "a") for n in range(8) for t in range(5)])
    whole = load_columns(db)
    monkeypatch.setattr("mlflow_perf.spans.database.bulk._PART_ROWS", 3)
    parts = load_columns(db)
    assert np.array_equal(whole.event_span, parts.event_span)
    assert np.array_equal(whole.event_time, parts.event_time)
    db.close()
