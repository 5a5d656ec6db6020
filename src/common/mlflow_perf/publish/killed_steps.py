"""Sends what the killed steps of a group have left, before the group makes its own report."""

from __future__ import annotations

import time
from pathlib import Path

from mlflow_perf.publish.group_journal import find_step_journals, was_killed
from mlflow_perf.publish.recovery import Pass, recover_one


def recover_killed_steps(run_id: str, folder: Path, *, most_sec: float) -> None:
    """Send the journals of a group's steps that were killed, as `recover` does.

    Until then their runs are RUNNING, and nobody knows when they ended. Finished reports that were
    kept are left: their store did not take them, or another program is to send them.

    Args:
        run_id: The group's run.
        folder: The folder of its journals.
        most_sec: After this time no further one is begun.
    """
    whole, until = Pass(), time.monotonic() + most_sec
    for path in find_step_journals(run_id, folder):
        if time.monotonic() < until and was_killed(path):
            recover_one(path, whole)
