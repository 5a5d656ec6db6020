"""The runs of this process that are being recorded now, by id."""

from __future__ import annotations

import os
import sys
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
