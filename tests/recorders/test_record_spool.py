"""Rules of the base of spools: the file opens at the first record, and a fault ends it quietly."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from mlflow_perf.recorders import spool
from mlflow_perf.recorders.record_spool import RecordSpool


def test_the_file_is_made_by_the_first_writing(tmp_path: Path) -> None:
    """Before it there is no file and no source; then the file has the snapshot of now."""
    recorded = {"made": 1}
    made = RecordSpool(tmp_path, "test", "Records", lambda: recorded)
    assert (made.source, list(tmp_path.iterdir())) == (None, [])
    made.write_all()
    recorded["made"] = 2
    made.write_all()
    (file,) = spool.read(tmp_path, "test")
    assert (file.source, file.snapshot) == (made.source, {"made": 2})
    made.close()


def test_a_closed_spool_writes_nothing_more(tmp_path: Path) -> None:
    """The file of a closed spool stays, and no new one is made."""
    made = RecordSpool(tmp_path, "test", "Records", dict)
    made.close()
    made.write_all()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("error", "warnings"), [(OSError("no room"), 1), (FileNotFoundError(), 0)])
def test_giving_up_warns_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, error: OSError, warnings: int
) -> None:
    """A fault is one warning that says what will be missing; a folder that is gone is none."""
    made = RecordSpool(tmp_path, "test", "Records", dict)
    made.give_up(error)
    made.write_all()
    assert len(caplog.records) == warnings
    assert all("Records of this process" in record.message for record in caplog.records)


def test_a_fault_of_any_kind_stays_away_from_the_code_that_records(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A snapshot fails in an unforeseen way where a module of the job hides one that it needs."""

    def fail() -> dict[str, object]:
        raise AttributeError("module 'json' has no attribute 'dumps'")

    RecordSpool(tmp_path, "test", "Records", fail).write_all()
    assert [record.message for record in caplog.records if "has no attribute" in record.message]


def test_the_error_of_a_handler_of_the_job_is_raised(tmp_path: Path) -> None:
    """A time limit is often a `TimeoutError`, which is an `OSError` as a fault of the file is."""

    def expire(*_: object) -> None:
        raise TimeoutError

    def interrupt() -> dict[str, object]:
        signal.raise_signal(signal.SIGUSR1)
        return {}

    before = signal.signal(signal.SIGUSR1, expire)
    try:
        with pytest.raises(TimeoutError):
            RecordSpool(tmp_path, "test", "Records", interrupt).write_all()
    finally:
        signal.signal(signal.SIGUSR1, before)
