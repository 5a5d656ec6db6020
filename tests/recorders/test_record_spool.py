"""Rules of the base of spools: the file opens at the first record, and a fault ends it quietly."""

from __future__ import annotations

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
