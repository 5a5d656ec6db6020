"""Parsing local times, compared with datetime."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlflow_perf.errors import SettingError, SpansError
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
def test_malformed_times_are_not_times(text: str) -> None:
    """A date that does not exist, a letter or another separator gives `NO_TIME`."""
    good = "1970-01-01T00:00:00.000001"
    assert parse_times(good + text + good).tolist() == [1, NO_TIME, 1]


@settings(max_examples=100)
@given(st.text(max_size=60))
def test_no_text_is_an_error(text: str) -> None:
    """Any text gives one answer for each 26 characters, or none."""
    assert len(parse_times(text)) in (0, len(text) // 26)


def test_an_assumed_time_zone_is_told_and_can_be_given(tmp_path: Path, utc: None) -> None:
    """Where a source shows no zone, one line says which is assumed; a given one is kept."""
    log, query = tmp_path / "a.log", "SELECT time FROM event ORDER BY 1"
    log.write_text("2026-11-20 12:00:00 METRIC host h load=1\n")
    (here,) = import_sources(log, tmp_path / "here")
    told = "the times show no zone: that of this machine is assumed (UTC+0000)"
    assert here.notes == [f"{told}; give another one with --time-zone"]
    with pytest.raises(SpansError, match="another time zone: import it into a new one"):
        import_sources(log, tmp_path / "here", time_zone="+05:30")
    for zone, ahead in (("+05:30", 5.5), ("Asia/Kolkata", 5.5), ("Europe/Vienna", 1)):
        db = tmp_path / zone.replace("/", "-")
        (given,) = import_sources(log, db, time_zone=zone)
        assert given.notes == []
        assert sql(db, query) == [{"time": 1795176000.0 - ahead * 3600}]
    with log.open("a") as file:
        file.write("2026-11-20 12:00:01 METRIC host h load=2\n")
    (again,) = import_sources(log, db)
    assert (again.events, again.notes) == (1, [])
    assert sql(db, query)[1] == {"time": 1795176001.0 - 3600}
    assert import_sources(log, db, time_zone="Europe/Vienna")[0].unchanged


def test_a_log_with_unix_times_assumes_no_zone(tmp_path: Path) -> None:
    """No note is written where no zone is assumed; a zone given for other sources is ignored."""
    log = tmp_path / "a.log"
    log.write_text("1795176000.5 2026-11-20 12:00:00 x METRIC host h load=1\n")
    assert import_sources(log, tmp_path / "db")[0].notes == []
    assert import_sources(log, tmp_path / "db", time_zone="+01:00")[0].unchanged


@pytest.mark.parametrize("zone", ["Mars/Base", "+25:00", "../etc/passwd", "x\0y", "1"])
def test_an_unknown_time_zone_is_refused(tmp_path: Path, zone: str) -> None:
    """One line says what a zone looks like, before anything is made."""
    with pytest.raises(SettingError, match="such as Europe/Vienna"):
        import_sources(tmp_path / "a.log", tmp_path / "db", time_zone=zone)
    assert not (tmp_path / "db").exists()
