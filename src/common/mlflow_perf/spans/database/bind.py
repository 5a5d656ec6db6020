"""Binding by rule what two sources tell of the same thing.

May import spans.store, spans.schema, spans.cache, spans.columns.
"""

from __future__ import annotations

from pathlib import Path

from mlflow_perf.spans.database import cache
from mlflow_perf.spans.database.event_arrays import columns_of
from mlflow_perf.spans.database.schema import connect, naming_damage, reading
from mlflow_perf.spans.database.store import Store

__all__ = ["bind", "bind_known"]

# Spans of these types with the same scope and key are the same thing.
_KNOWN = (
    ("parsl.monitoring.workflow", "parsl.rundir.workflow"),
    ("parsl.monitoring.task", "parsl.rundir.task"),
    ("parsl.monitoring.try", "parsl.rundir.try"),
    ("mlflow.run", "mlflow_perf.component"),
)
_BY_KEY = (
    "INSERT OR IGNORE INTO facet_row"
    " SELECT a.id, b.id, :note FROM span_row a JOIN span_row b"
    " ON b.type_id = :right AND b.scope_id = a.scope_id AND b.key = a.key WHERE a.type_id = :left"
)
_BY_NAME = (
    "INSERT OR IGNORE INTO facet_row"
    " SELECT a.id, b.id, :note FROM span_row a JOIN span_row b"
    " ON b.type_id = :right AND b.name_id = a.name_id WHERE a.type_id = :left AND a.id <> b.id"
)


def bind(db: str | Path, left: str, right: str, *, by: str = "key") -> int:
    """Say that spans of two types are the same thing where they agree.

    Args:
        db: The database.
        left: One span type.
        right: The other.
        by: `key`: they have the same key in the same run; `name`: the same name, anywhere.

    Returns:
        How many pairs were new.

    Raises:
        ValueError: `by` is neither.
        SpansError: The database cannot be used, or has no spans of such a type.
    """
    if by not in ("key", "name"):
        raise ValueError(f"Spans can be bound by 'key' or by 'name', not by {by!r}.")
    with reading(db) as connection:
        columns = columns_of(connection)
    for span_type in (left, right):
        columns.check_type(span_type)
    connection = connect(db, write=True)
    sql = _BY_KEY if by == "key" else _BY_NAME
    try:
        with naming_damage(db):
            connection.execute("BEGIN IMMEDIATE")
            bound = _bind(Store(connection), left, right, sql=sql, note=f"same {by}")
            connection.execute("COMMIT")
            cache.update(connection)
    finally:
        connection.close()
    return bound


def bind_known(store: Store) -> int:
    """Bind what Parsl's monitoring and its logs tell of the same run; return how many were new."""
    return sum(
        _bind(store, left, right, sql=_BY_KEY, note="joined by importer") for left, right in _KNOWN
    )


def _bind(store: Store, left: str, right: str, *, sql: str, note: str) -> int:
    return store.execute(
        sql,
        {"left": store.string(left), "right": store.string(right), "note": store.string(note)},
    )
