"""The file of a process's stacks where it cannot be made, or no longer written."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from mlflow_perf.recorders.profile.stack_spool import StackSpool


@pytest.mark.parametrize("number", [errno.EROFS, errno.EACCES, errno.ENOSPC, errno.EFBIG])
@pytest.mark.parametrize("is_late", [False, True])
def test_a_process_that_may_not_write_there_says_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, number: int, is_late: bool
) -> None:
    """A process below a session was not asked whether to be sampled; its errors may be data."""
    spool = StackSpool(tmp_path, dict, is_asked=False)
    if is_late:
        spool.write_all()
    spool.give_up(OSError(number, "refused"))
    spool.write_all()
    assert not caplog.records
    assert len(list(tmp_path.iterdir())) == is_late


def test_what_was_written_before_is_said_to_end(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As where a job gives up its rights."""
    spool = StackSpool(tmp_path, dict)
    spool.write_all()
    spool.give_up(PermissionError(errno.EACCES, "refused"))
    assert [r.message for r in caplog.records if "can no longer be written" in r.message]
