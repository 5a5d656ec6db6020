"""Files of the kernel that stay open and are read again and again."""

from __future__ import annotations

import os
import sys
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


@pytest.mark.skipif(sys.platform != "linux", reason="needs procfs")
def test_what_an_earlier_listing_left_in_the_buffer_is_no_process() -> None:
    """The kernel leaves the bytes behind a name as they were: a thread listed before, perhaps."""
    folder = ProcFolder()
    free = next(number for number in range(9999, 999, -1) if not Path(f"/proc/{number}").exists())
    folder._buffer.raw = b"\x00\x00\x04%d\x00" % free * (len(folder._buffer) // 8)
    found = folder.pids()
    folder.close()
    assert os.getpid() in found
    assert free not in found
