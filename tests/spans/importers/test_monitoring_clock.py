"""Local times of a monitoring database as Unix times."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mlflow_perf.spans import between, durations, import_sources, sql

_EPOCH = 1795176000.0  # 2026-11-20 12:00:00 UTC


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
    """A run recorded in New York, one in Kolkata: each time is within its run's log's."""
    for kind in ("text", "json"):
        folder = make.recorded(kind, tmp_path)
        db = tmp_path / f"{kind}.sqlite3"
        import_sources(folder / "monitoring.db", db)
        (found,) = sql(db, "SELECT min(time) AS low, max(time) AS high FROM event")
        assert 1795199280 < found["low"] < found["high"] < 1795199340


def test_a_run_without_logs_takes_the_offset_of_the_run_before(
    make: Any, tmp_path: Path, utc: None
) -> None:
    """Runs of one database were on one machine: what one run's log shows holds for the next."""
    folder = make.recorded("json", tmp_path)
    make.monitoring(
        folder / "monitoring.db", began="2026-11-21 05:30:00.000000", completed=None
    ).close()
    import_sources(folder / "monitoring.db", tmp_path / "db")
    rows = sql(tmp_path / "db", "SELECT start FROM interval WHERE run = ?", [f"parsl:{make.run}"])
    assert rows == [{"start": 1795219200.0}]


def test_a_worker_in_another_time_zone_is_put_right(
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
    """Where the log shows two offsets, each time takes the one of its hour."""
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
