"""The file of a process's stacks where it cannot be made, or no longer written."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from mlflow_perf.recorders.profile.stack_spool import StackSpool


@pytest.mark.parametrize(
    ("number", "warnings"), [(errno.EROFS, 0), (errno.EACCES, 0), (errno.ENOSPC, 1)]
)
def test_a_process_that_may_not_write_there_says_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, number: int, warnings: int
) -> None:
    """A sandboxed process of the job was not asked to sample, and its errors may be data."""
    spool = StackSpool(tmp_path, dict)
    spool.give_up(OSError(number, "refused"))
    spool.write_all()
    assert len(caplog.records) == warnings
    assert list(tmp_path.iterdir()) == []


def test_what_was_written_before_is_said_to_end(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As where a job gives up its rights."""
    spool = StackSpool(tmp_path, dict)
    spool.write_all()
    spool.give_up(PermissionError(errno.EACCES, "refused"))
    assert [r.message for r in caplog.records if "can no longer be written" in r.message]
