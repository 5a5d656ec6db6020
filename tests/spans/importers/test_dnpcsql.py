"""A database that dnpcsql made."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from mlflow_perf.spans import import_sources, sql


def test_events_without_a_time_or_a_span_are_counted(tmp_path: Path) -> None:
    """The others are imported with their times as they are."""
    db = sqlite3.connect(tmp_path / "old.sqlite3")
    db.executescript(
        "CREATE TABLE span (uuid TEXT, type TEXT, note TEXT);"
        "CREATE TABLE event (uuid TEXT, span_uuid TEXT, time TEXT, type TEXT, note TEXT);"
        "CREATE TABLE subspan (superspan_uuid TEXT, subspan_uuid TEXT, key TEXT, note TEXT);"
        "INSERT INTO span VALUES ('a', 'kind', NULL);"
        "INSERT INTO event VALUES ('1', 'a', '1678101607.25', 'began', NULL),"
        " ('2', 'a', 'soon', 'began', NULL), ('3', 'gone', '1678101607', 'began', NULL);"
    )
    db.close()
    (result,) = import_sources(tmp_path / "old.sqlite3", tmp_path / "db")
    assert sql(tmp_path / "db", "SELECT time FROM event") == [{"time": 1678101607.25}]
    assert result.unread == {"event without a time or a span": 2}
