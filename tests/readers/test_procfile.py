"""Files of the kernel that stay open and are read again and again."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.alone import alone
from tests.interrupted import check_each_line

from mlflow_perf.readers.procfile import ProcFile, ProcFolder


def test_proc_file_reads_whole_and_says_when_it_cannot(tmp_path: Path) -> None:
    """A kept file is read from its beginning each time, whatever its length."""
    path = tmp_path / "f"
    path.write_bytes(b"a" * 100_000)
    file = ProcFile(path)
    assert file.read() == b"a" * 100_000
    path.write_bytes(b"b")
    assert file.read() == b"b"
    file.close()
    file.close()
    with pytest.raises(OSError, match=r"[Bb]ad file"):
        file.read()


@alone
def test_no_file_below_a_folder_stays_open_wherever_an_alarm_raises() -> None:
    """The first sample is taken in the job's thread, where its handlers run."""
    here = str(os.getpid()).encode()

    def act() -> None:
        folder = ProcFolder()
        assert folder.read(here + b"/stat")
        assert folder.list_numbers(here + b"/task")
        assert folder.read(here + b"/none") is None
        folder.close()

    assert check_each_line(act, lambda: None) > 20
