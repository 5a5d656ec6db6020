"""Facets by rule: marking spans of two sources as the same thing."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from mlflow_perf.spans.database import cache
from mlflow_perf.spans.database.event_arrays import read_columns
from mlflow_perf.spans.database.schema import connect, name_damage
from mlflow_perf.spans.database.store import Store

# Spans of these types with the same scope and key are the same thing.
_KNOWN = (
    ("parsl.monitoring.workflow", "parsl.rundir.workflow"),
    ("parsl.monitoring.task", "parsl.rundir.task"),
    ("parsl.monitoring.try", "parsl.rundir.try"),
    ("mlflow.run", "mlflow_perf.component"),
)
_RULES = {
    "key": (
        "INSERT OR IGNORE INTO facet_row"
        " SELECT a.id, b.id, :note FROM span_row a JOIN span_row b"
        " ON b.type_id = :right AND b.scope_id = a.scope_id AND b.key = a.key"
        " WHERE a.type_id = :left"
    ),
    "name": (
        "INSERT OR IGNORE INTO facet_row"
        " SELECT a.id, b.id, :note FROM span_row a JOIN span_row b"
        " ON b.type_id = :right AND b.name_id = a.name_id WHERE a.type_id = :left AND a.id <> b.id"
    ),
}


def bind(db: str | Path, left: str, right: str, *, by: str = "key") -> int:
    """Mark spans of two types as the same thing where their key or name agrees.

    Args:
        db: The database.
        left: One span type.
        right: The other.
        by: `key`: same key in the same run; `name`: same name, in any run.

    Returns:
        How many pairs were new.

    Raises:
        ValueError: `by` is neither.
        SpansError: The database cannot be used, or has no spans of one of the types.
    """
    if by not in _RULES:
        raise ValueError(f"Spans can be bound by 'key' or by 'name', not by {by!r}.")
    columns = read_columns(db)
    for span_type in (left, right):
        columns.find_spans(span_type)  # raises the error that lists the types
    with closing(connect(db, write=True)) as connection, name_damage(db):
        connection.execute("BEGIN IMMEDIATE")
        bound = _bind(Store(connection), left, right, by=by, note=f"same {by}")
        connection.execute("COMMIT")
        cache.update(connection)
    return bound


def bind_known(store: Store) -> int:
    """Bind the spans of the same run that come from two known sources.

    Returns:
        How many pairs were new.
    """
    return sum(
        _bind(store, left, right, by="key", note="joined by importer") for left, right in _KNOWN
    )


def _bind(store: Store, left: str, right: str, *, by: str, note: str) -> int:
    words = {"left": left, "right": right, "note": note}
    numbers = {name: store.string(word) for name, word in words.items()}
    return store.db.execute(_RULES[by], numbers).rowcount
