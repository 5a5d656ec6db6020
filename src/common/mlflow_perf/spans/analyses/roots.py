"""Reading a database for an analysis of its root spans."""

from __future__ import annotations

from typing import Any

from mlflow_perf.spans.database.event_arrays import Columns, Streams, load_columns
from mlflow_perf.spans.database.schema import Database, open_for_reading

__all__ = ["DEFAULT_ROOT", "Database", "Row", "read_columns", "read_streams"]

Row = dict[str, Any]
"""One row of an answer."""

DEFAULT_ROOT = "parsl.monitoring.task"


def read_columns(db: Database, root: str | None = None) -> Columns:
    """Return the database as arrays.

    Args:
        db: The database.
        root: A span type that it must have.

    Raises:
        SpansError: There are no spans of type `root`.
    """
    with open_for_reading(db) as connection:
        columns = load_columns(connection)
    if root is not None:
        columns.check_type(root)
    return columns


def read_streams(db: Database, root: str) -> Streams:
    """Return the events of each span of type `root` and of all that belongs to it.

    Raises:
        SpansError: There are no spans of type `root`.
    """
    return read_columns(db, root).streams(root)
