"""The rows of a monitoring database of any shape, and its local times as Unix times."""

from __future__ import annotations

import sqlite3
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest

from mlflow_perf.spans import between, durations, import_sources, sql

_EPOCH = 1795176000.0  # 2026-11-20 12:00:00 UTC


def test_good_rows_are_read_beside_bad_ones(
    make: Any, tmp_path: Path, utc: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Good rows are stored whether bad rows are in their own part or in another."""
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


def test_fractions_near_the_next_second_are_exact(make: Any, tmp_path: Path, spans_of: Any) -> None:
    """.9995 and above is not rounded up: SQLite's own conversion would."""
    times = ["2026-11-20 12:00:00.999500", "2026-11-20 12:00:01.999999", "2026-11-20 12:00:02"]
    make.monitoring(
        tmp_path / "m.db", tasks=[(i, "f", t, None, "") for i, t in enumerate(times)]
    ).close()
    rows = sql(spans_of(tmp_path / "m.db"), "SELECT time_us FROM event_row ORDER BY 1 LIMIT 4")
    micro = [row["time_us"] - round(_EPOCH * 1e6) for row in rows]
    assert micro == [0, 999_500, 1_999_999, 2_000_000]


def test_local_times_are_converted_by_the_offset_that_the_log_shows(
    make: Any, tmp_path: Path, spans_of: Any
) -> None:
    """The times of runs recorded in New York and in Kolkata lie within those of their logs."""
    for kind in ("text", "json"):
        folder = make.recorded(kind, tmp_path)
        db = tmp_path / f"{kind}.sqlite3"
        import_sources(folder / "monitoring.db", db)
        (found,) = sql(db, "SELECT min(time) AS low, max(time) AS high FROM event")
        assert 1795199280 < found["low"] < found["high"] < 1795199340


def test_a_run_without_logs_takes_the_offset_of_the_run_before(
    make: Any, tmp_path: Path, utc: None
) -> None:
    """Runs of one database ran on one machine, so one run's log shows the offset of the next."""
    folder = make.recorded("json", tmp_path)
    make.monitoring(
        folder / "monitoring.db", began="2026-11-21 05:30:00.000000", completed=None
    ).close()
    import_sources(folder / "monitoring.db", tmp_path / "db")
    rows = sql(tmp_path / "db", "SELECT start FROM interval WHERE run = ?", [f"parsl:{make.run}"])
    assert rows == [{"start": 1795219200.0}]


def test_the_clock_of_a_worker_in_another_time_zone_is_corrected(
    make: Any, tmp_path: Path, spans_of: Any
) -> None:
    """States of a worker whose zone is two hours ahead come between launched and returned."""
    ahead = "2026-11-20 14:00:0"
    make.monitoring(
        tmp_path / "m.db",
        tasks=[(0, "f", make.at(0), make.at(3), "")],
        tries=[(0, 0, "far", make.at(3))],
        status=[
            (0, 0, "launched", make.at(1)),
            (0, 0, "running", f"{ahead}1.500000"),
            (0, 0, "running_ended", f"{ahead}2.500000"),
            (0, 0, "exec_done", make.at(3.1)),
        ],
    ).close()
    db = spans_of(tmp_path / "m.db")
    (row,) = between(db, "running", "running_ended")
    assert row == {"start_s": _EPOCH + 1.5, "duration_s": 1.0}


def test_a_change_of_summer_time_within_a_run(make: Any, tmp_path: Path, utc: None) -> None:
    """If the log shows two offsets, each time is converted by the offset of its hour."""
    path = tmp_path / "m.db"
    make.monitoring(
        path,
        tasks=[(0, "f", "2026-03-08 01:59:00.000000", "2026-03-08 03:01:00.000000", "")],
        began="2026-03-08 01:58:00.000000",
        completed="2026-03-08 03:02:00.000000",
    ).close()
    (tmp_path / "000").mkdir()
    # 06:58 UTC is 01:58 in New York; at 07:00 UTC its clocks go to 03:00.
    (tmp_path / "000" / "parsl.log").write_text(
        f"1772953080.0 2026-03-08 01:58:00 X INFO: Run id is: {make.run}\n"
        "1772953300.0 2026-03-08 03:01:40 X INFO: end\n"
    )
    import_sources(path, tmp_path / "db")
    (task,) = durations(tmp_path / "db", "parsl.monitoring.task")
    assert task["max_s"] == pytest.approx(120.0)
