"""Any SQL on a spans database; read-only unless asked."""

from __future__ import annotations

import math
import sqlite3
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mlflow_perf.errors import SpansError
from mlflow_perf.spans.database.schema import connect

# ATTACH, and VACUUM INTO which attaches too, would open or create other files.
_DENIED = (sqlite3.SQLITE_ATTACH, sqlite3.SQLITE_DETACH)


def sql(
    db: str | Path, query: str, parameters: Sequence[Any] = (), *, write: bool = False
) -> list[dict[str, Any]]:
    """Run one SQL statement and return its rows.

    Args:
        db: The database.
        query: One statement. dnpcsql's tables `span`, `event`, `subspan`, `facet` are views here.
        parameters: The values of its question marks.
        write: Whether it may change the database. It can never touch other files.

    Returns:
        A dict for each row; a column name that occurs twice is numbered.

    Raises:
        SpansError: The statement is wrong, or writes without `write`.
    """
    if not query.strip():
        raise SpansError("The query is empty: give one SQL statement.")
    connection = connect(db, write=write)
    try:
        connection.set_authorizer(
            lambda action, *_: sqlite3.SQLITE_DENY if action in _DENIED else sqlite3.SQLITE_OK
        )
        if not write:
            connection.execute("PRAGMA query_only = ON")
        cursor = connection.execute(query, parameters)
        names: list[str] = []
        seen: Counter[str] = Counter()
        for name, *_ in cursor.description or ():
            names.append(f"{name}:{seen[name]}" if seen[name] else name)
            seen[name] += 1
        rows = [dict(zip(names, map(_to_json_value, row), strict=True)) for row in cursor]
        if connection.total_changes:
            # The cached columns may be out of date: analyses read the tables from now on.
            connection.execute("DELETE FROM column_cache")
    # Python raises the last two for text and numbers that SQLite cannot hold.
    except (sqlite3.Error, sqlite3.Warning, UnicodeError, OverflowError) as error:
        hint = " Add --write if it is meant to change it." if "readonly" in str(error) else ""
        raise SpansError(f"The query failed: {str(error).rstrip('.')}.{hint}") from error
    finally:
        connection.close()
    return rows


def _to_json_value(value: Any) -> Any:
    """Return a value that strict JSON can hold: bytes become hex, NaN becomes None."""
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
