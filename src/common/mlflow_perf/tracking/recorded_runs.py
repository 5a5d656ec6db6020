"""The runs that were made for one recording, found again by their tags.

The answer to a request for a run may be lost, and another node may have made the job's run.
"""

from __future__ import annotations

import contextlib
import math
import threading
import time
from typing import TYPE_CHECKING

from mlflow_perf.core.uris import is_http
from mlflow_perf.tracking.client import discard_run, open_client, provide_experiment
from mlflow_perf.tracking.run_handle import JOB_TAG, RunHandle

if TYPE_CHECKING:
    from mlflow.entities import Run

RECORDING_TAG = "mlflow_perf.recording"
"""Tag of a run of ours with the nonce of its recording."""

_PROMPT_SEC = 0.5  # a run takes some 20 ms; MLflow waits longer before it asks a third time


def find_job_run(
    run: RunHandle, experiment_id: str, *, since: float | None, but: str | None = None
) -> Run | None:
    """Return the run that another node created for the same recording of their job, or None.

    A job may make several recordings, one after the other. Their runs do not overlap in time.

    Args:
        run: This node's handle.
        experiment_id: The job's experiment.
        since: Unix time at which its recording began; None if that is unknown.
        but: A run that is not meant.

    Raises:
        Exception: Whatever MLflow raises when the store does not answer.
    """
    if run.job_key is None:
        return None
    text = run.job_key.replace("'", "")
    listed = open_client(run.tracking_uri).search_runs(
        [experiment_id], f"tags.`{JOB_TAG}` = '{text}'", max_results=2
    )
    found = next((one for one in listed if one.info.run_id != but), None)
    ended_ms = None if found is None else found.info.end_time
    is_over = ended_ms is not None and since is not None and ended_ms < 1000 * since
    return None if is_over else found


def find_recorded_run(run: RunHandle) -> Run | None:
    """Return the run that was created for a recording, though the server's answer was lost.

    Raises:
        Exception: Whatever MLflow raises when the store does not answer.
    """
    return next(iter(_list_recorded_runs(run)), None)


def _list_recorded_runs(run: RunHandle) -> list[Run]:
    chosen = provide_experiment(run)
    client = open_client(run.tracking_uri)
    places = [chosen] if chosen else [e.experiment_id for e in client.search_experiments()]
    return list(client.search_runs(places, f"tags.`{RECORDING_TAG}` = '{run.nonce}'"))


def discard_repeated_runs(run: RunHandle, used: str, *, asked: float = -math.inf) -> None:
    """Delete the other runs that a server made for one recording; what it refuses stays.

    MLflow asks again where an answer is lost, and the server may have made a run each time.

    Args:
        run: The recording's handle.
        used: Id of the run that it uses, which is its own.
        asked: Monotonic time at which the run was asked for. If the answer came soon and no
            connection broke, there is no other.
    """
    is_repeated = bool(getattr(threading.current_thread(), "fault", ""))  # see `MlflowCall`
    if not is_http(run.tracking_uri) or not (is_repeated or time.monotonic() - asked > _PROMPT_SEC):
        return
    with contextlib.suppress(Exception):  # whatever MLflow raises: an empty run does no harm
        for other in _list_recorded_runs(run):
            if other.info.run_id != used:
                discard_run(other.info.run_id, tracking_uri=run.tracking_uri)
