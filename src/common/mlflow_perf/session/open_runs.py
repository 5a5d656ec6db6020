"""The runs of this process that are being recorded now, by id, and those that others record."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from mlflow_perf.publish.journals_above import is_recorded_above
from mlflow_perf.tracking.run_events import StartedRun
from mlflow_perf.tracking.run_notes import is_reported

if TYPE_CHECKING:
    from mlflow_perf.session.run_recording import RunRecording

open_runs: dict[str, RunRecording] = {}
"""Run id → its recording."""

_of_parent: set[str] = set()
"""The runs that were open in the process that was forked."""


def find_recorded_run(run_id: str | None) -> RunRecording | None:
    """Return the recording of the run to which a block would report, if there is one.

    Args:
        run_id: The run that the block names; None for the run that `report()` would choose.
    """
    if not open_runs:
        return None
    if run_id is None:
        active = sys.modules["mlflow"].active_run()
        run_id = active.info.run_id if active else os.environ.get("MLFLOW_RUN_ID")
    return open_runs.get(run_id or "")


def leave_to_parent() -> None:
    """Leave the open runs to the process from which this one was forked, which records them."""
    _of_parent.update(open_runs)
    open_runs.clear()


def is_joined(run: StartedRun, folder: Path) -> bool:
    """Return whether this process only joins a run that a process above records, as workers do.

    What that process records contains what this one does. But `mlflow run` does nothing in its run
    itself: the script that it starts reports to it.

    Args:
        run: The run.
        folder: The folder of this process's journals.
    """
    if run.is_new:
        return False
    if run.run_id not in _of_parent and not is_recorded_above(run.run_id, time.time(), folder):
        return False
    with contextlib.suppress(psutil.Error, OSError):
        return not any(map(_is_mlflow_command, psutil.Process().parents()))
    return True


def is_left_to_script(folder: Path | None, run_id: str) -> bool:
    """Return whether this process is `mlflow run`, and the script that it started has reported.

    Args:
        folder: The folder in which the processes below leave notes.
        run_id: The run of both.
    """
    return is_reported(folder, run_id) and _is_mlflow_command(psutil.Process())


def _is_mlflow_command(process: psutil.Process) -> bool:
    """Return whether a process is `mlflow …` or `python -m mlflow …`."""
    with contextlib.suppress(psutil.Error, OSError):
        return "mlflow" in {os.path.basename(word) for word in process.cmdline()[:3]}  # noqa: PTH119
    return False


def count_overlaps(recording: RunRecording) -> None:
    """Count a run that begins as beside each open run that is neither above nor below it.

    A run that is logged after its work is beside none: its figures are those of its parent.
    """
    if recording.is_late:
        recording.overlapping = sum(one.overlapping for one in list(_list_above(recording))[:1])
        return
    above = list(_list_above(recording))
    for other in open_runs.values():
        is_related = other in above or recording in _list_above(other)
        if not (other.is_late or is_related):
            other.overlapping += 1
            recording.overlapping += 1


def find_run_around(recording: RunRecording, block_run_id: str | None = None) -> str | None:
    """Return the run that measures what a run does, of this process or one above, if any.

    Such a run is still open and began before it, so its figures contain those of the run.

    Args:
        recording: The run.
        block_run_id: The run of the `report()` block that the run is in.
    """
    for above in _list_above(recording):
        if above.is_open and above.window.started <= recording.window.started:
            return above.run_id
    if block_run_id:
        return block_run_id
    parent, since = recording.started.parent_id, recording.window.started
    return parent if is_recorded_above(parent or "", since, recording.state_folder) else None


def _list_above(recording: RunRecording) -> Iterator[RunRecording]:
    """Yield the open runs above a run, the nearest first."""
    parent = recording.started.parent_id
    for _ in range(len(open_runs)):
        above = open_runs.get(parent or "")
        if above is None:
            return
        yield above
        parent = above.started.parent_id
