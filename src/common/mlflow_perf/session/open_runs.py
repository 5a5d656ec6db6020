"""The runs of this process that are being recorded now, by id."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mlflow_perf.session.run_recording import RunRecording

open_runs: dict[str, RunRecording] = {}
"""Run id → its recording."""


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


def find_run_around(recording: RunRecording) -> str | None:
    """Return the nearest run above a run that is still open and began before it, if any.

    Such a run is measured in this process too, so its figures contain those of the run.
    """
    for above in _list_above(recording):
        if above.is_open and above.window.started <= recording.window.started:
            return above.run_id
    return None


def _list_above(recording: RunRecording) -> Iterator[RunRecording]:
    """Yield the open runs above a run, the nearest first."""
    parent = recording.started.parent_id
    for _ in range(len(open_runs)):
        above = open_runs.get(parent or "")
        if above is None:
            return
        yield above
        parent = above.started.parent_id
