"""The large tables of a monitoring database, of any shape, against what Python makes of them."""

from __future__ import annotations

import sqlite3
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlflow_perf.spans import import_sources, sql
from mlflow_perf.spans.importers.local_time import NO_TIME, parse_times

_times = st.datetimes(datetime(1, 1, 1), datetime(9999, 12, 31))


@settings(max_examples=100)
@given(st.lists(_times, max_size=20))
def test_times_are_those_of_datetime(times: list[datetime]) -> None:
    """Every microsecond of the calendar is exact."""
    text = "".join(time.isoformat(sep=" ", timespec="microseconds") for time in times)
    epoch = datetime(1970, 1, 1)
    expected = [
        (t - epoch).days * 86_400_000_000 + (t - epoch).seconds * 1_000_000 + t.microsecond
        for t in times
    ]
    assert parse_times(text).tolist() == expected


@pytest.mark.parametrize(
    "text",
    [
        "2026-13-20 12:00:00.000000", "2026-02-30 12:00:00.000000", "2026-11-20_12:00:00.000000",
        "2026-11-20 12:00:00.00000x", "/026-11-20 12:00:00.000000", "2026-11-20 12:00:00,000000",
        "ä" * 26, "?" * 26,
    ],
)  # fmt: skip
def test_what_is_no_time_is_told(text: str) -> None:
    """A date that does not exist, a letter, another separator: none is taken for a time."""
    good = "1970-01-01T00:00:00.000001"
    assert parse_times(good + text + good).tolist() == [1, NO_TIME, 1]


@settings(max_examples=100)
@given(st.text(max_size=60))
def test_no_text_is_an_error(text: str) -> None:
    """Whatever stands where times should, there are as many answers as texts of that length."""
    assert len(parse_times(text)) in (0, len(text) // 26)


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
