"""The large tables of a monitoring database, of any shape."""

from __future__ import annotations

import sqlite3
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest

from mlflow_perf.spans import import_sources, sql


def test_rows_of_every_shape_are_told_apart(
    make: Any, tmp_path: Path, utc: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Good rows are stored wherever others are: in their part, or in one before or after."""
    monkeypatch.setattr("mlflow_perf.spans.importers.monitoring_source._ROWS", 4)
    path = make.simple_monitoring(tmp_path / "m.db", tasks=2)
    db = sqlite3.connect(path)
    # Parsl's own table allows none of these, but a database that was put together may hold them.
    db.execute("ALTER TABLE status RENAME TO was")
    db.execute("CREATE TABLE status (task_id, task_status_name, timestamp, run_id, try_id)")
    db.execute(
        "INSERT INTO status SELECT task_id, task_status_name, timestamp, run_id, try_id FROM was"
    )
    shapes = [
        "2026-11-20 12:00:30", "2026-11-20 12:00:30.5", "2026-11-20 12:00:30.125",
        "2026-11-20 12:00:30.1234567",
    ]  # fmt: skip
    bad = [(0, None), (0, "soon"), ("zero", shapes[0]), (None, shapes[0]), (-1, shapes[0])]
    for task, time in [*((0, time) for time in shapes), *bad]:
        db.execute("INSERT INTO status VALUES (?, 'failed', ?, ?, 0)", (task, time, make.run))
    db.execute("INSERT INTO status VALUES (0, NULL, ?, ?, 0)", (shapes[0], make.run))
    db.execute("INSERT INTO status VALUES (0, 'failed', ?, 'another run', 0)", (shapes[0],))
    db.commit()
    db.close()
    (result,) = import_sources(path, tmp_path / "db")
    noon = int(datetime(2026, 11, 20, 12, tzinfo=timezone.utc).timestamp())
    found = sql(tmp_path / "db", "SELECT time FROM event WHERE type = 'failed' ORDER BY 1")
    assert [row["time"] - noon for row in found] == pytest.approx([30, 30.123456, 30.125, 30.5])
    assert result.events == 2 + 4 + 10 + 4
    assert result.unread == {"status row whose try, state or time is missing": len(bad) + 2}
