"""Storing spans with a start, an end and a parent."""

from __future__ import annotations

from pathlib import Path

from mlflow_perf.spans import connect, sql
from mlflow_perf.spans.database.store import Store
from mlflow_perf.spans.importers.nested import Nested, store_nested


def test_a_missing_parent_and_a_time_out_of_range_are_left_out(tmp_path: Path) -> None:
    """A span is stored without the parent that was cut off; an impossible time is counted."""
    db = connect(tmp_path / "db", write=True)
    db.execute("BEGIN")
    store = Store(db)
    outer = Nested("kind", "trace", "outer", 1_000_000, 3_000_000)
    inner = Nested("kind", "trace", "inner", 2_000_000, 1 << 62, parent=("trace", "outer"))
    lost = Nested("kind", "trace", "lost", parent=("trace", "nowhere"))
    store_nested(store, [outer, inner, lost])
    db.execute("COMMIT")
    db.close()
    assert store.unread == {"a time that is out of range": 1}
    query = 'SELECT key, start, "end" FROM interval ORDER BY key'
    assert [tuple(row.values()) for row in sql(tmp_path / "db", query)] == [
        ("inner", 2.0, 2.0), ("lost", None, None), ("outer", 1.0, 3.0),
    ]  # fmt: skip
    assert len(sql(tmp_path / "db", "SELECT * FROM subspan")) == 1
