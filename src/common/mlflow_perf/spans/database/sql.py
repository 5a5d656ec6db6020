"""Any SQL on a spans database; read-only unless asked.

May import errors, spans.schema, spans.columns.
"""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from mlflow_perf.errors import SpansError
from mlflow_perf.spans.database.schema import connect

__all__ = ["sql"]


def sql(
    db: str | Path, query: str, parameters: Sequence[Any] = (), *, write: bool = False
) -> list[dict[str, Any]]:
    """Run one SQL statement and return its rows.

    Args:
        db: The database.
        query: One statement. dnpcsql's tables `span`, `event`, `subspan`, `facet` are views here.
        parameters: What its question marks stand for.
        write: Whether it may change the database; other files it can never touch.

    Returns:
        A dict for each row; a column name that comes twice is numbered.

    Raises:
        SpansError: The statement is wrong, or would write and may not.
    """
    if not query.strip():
        raise SpansError("The query is empty: give one SQL statement.")
    connection = connect(db, write=write)
    try:
        connection.set_authorizer(_authorise)
        if not write:
            connection.execute("PRAGMA query_only = ON")
        cursor = connection.execute(query, parameters)
        names = list(_unique(d[0] for d in cursor.description or ()))
        rows = [dict(zip(names, map(_plain, row), strict=True)) for row in cursor]
        if connection.total_changes:
            # Whatever was changed, the columns may not hold it: analyses read the tables now.
            connection.execute("DELETE FROM column_cache")
    # A text or a number that SQLite cannot hold never gets as far as an error of its own.
    except (sqlite3.Error, sqlite3.Warning, UnicodeError, OverflowError) as error:
        hint = " Add --write if it is meant to change it." if "readonly" in str(error) else ""
        raise SpansError(f"The query failed: {str(error).rstrip('.')}.{hint}") from error
    finally:
        connection.close()
    return rows


def _authorise(action: int, *_about: str | None) -> int:
    # ATTACH (and VACUUM INTO, which attaches) would open other files, and make those not there.
    denied = action in (sqlite3.SQLITE_ATTACH, sqlite3.SQLITE_DETACH)
    return sqlite3.SQLITE_DENY if denied else sqlite3.SQLITE_OK


def _unique(names: Iterator[str]) -> Iterator[str]:
    seen: dict[str, int] = {}
    for name in names:
        seen[name] = seen.get(name, 0) + 1
        yield name if seen[name] == 1 else f"{name}:{seen[name] - 1}"


def _plain(value: Any) -> Any:
    """Return a value as strict JSON can hold it."""
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
