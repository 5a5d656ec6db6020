"""The runs that the processes above this one record, known by their journals.

What a process records contains what its children do, such as the workers of joblib.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import psutil

from mlflow_perf.core.originals import os
from mlflow_perf.node.exit_cause import boot_id
from mlflow_perf.publish.journal import SUFFIX
from mlflow_perf.publish.journal_file import read_head


def is_recorded_above(run_id: str, since: float, folder: Path) -> bool:
    """Return whether a process above this one records a run, and did so at a moment.

    A run has a journal after its first second; before, the answer is no.

    Args:
        run_id: The run.
        since: The moment, Unix time in seconds.
        folder: The folder of this process's journals, which its children use as well.
    """
    with contextlib.suppress(OSError, psutil.Error):
        names = [name for name in os.listdir(folder) if name.endswith(SUFFIX)]
        above = {process.pid for process in psutil.Process().parents()} if names else set()
        heads = (read_head(folder / name) for name in names if _find_pid(name) in above)
        return any(_is_of_run(head, run_id, since) for head in heads)
    return False


def _find_pid(name: str) -> int:
    """Return the process in a journal's name; 0 if there is none."""
    pid = name.split("-")[-2:-1]
    return int(pid[0]) if pid and pid[0].isdecimal() else 0


def _is_of_run(head: dict[str, Any], run_id: str, since: float) -> bool:
    delivery, started = head.get("delivery"), head.get("started")
    is_run = isinstance(delivery, dict) and delivery.get("run_id") == run_id
    is_here = head.get("boot_id") == boot_id()  # not the same process id of another host
    return is_run and is_here and isinstance(started, (int, float)) and started <= since
