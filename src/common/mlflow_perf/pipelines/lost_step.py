"""What becomes of a step whose worker was lost: a node failed, or its allocation ended.

The executor gives such a step to another worker if nothing of it has begun, or if its command has
finished: then its report and its end are still to be sent. All others may have done a part of their
work, and still do.
"""

from __future__ import annotations

import contextlib
import time
from dataclasses import replace
from pathlib import Path

from mlflow_perf.node.exit_cause import End
from mlflow_perf.node.step_notes import ENDED, STOP, read_status
from mlflow_perf.pipelines.step_job import StepJob
from mlflow_perf.pipelines.step_outcome import Outcome, StepEndedError
from mlflow_perf.publish.group_journal import is_at_work
from mlflow_perf.publish.step_record import STARTED

_REPORT_SEC = 20.0
"""How long to wait for a wrapper that outlives its worker; its guard ends it in ten seconds."""
_POLL_SEC = 0.1


def may_go_on(job: StepJob) -> bool:
    """Return whether another worker may have a step whose worker was lost."""
    return not job.folder.is_dir() or has_finished(job.folder)


def has_finished(folder: Path) -> bool:
    """Return whether the command of a step has ended well.

    Args:
        folder: The step's folder.
    """
    return read_status(folder) == "FINISHED"


def claim_step(job: StepJob) -> bool:
    """Return whether the step is this worker's to run; False where another one has begun it.

    A worker that is taken for lost may still begin what it was given.

    Raises:
        StepEndedError: The pipeline was stopped before the step began.
    """
    if job.folder.is_dir():
        return False
    if job.stop.exists():
        # The pipeline was stopped while the step waited for a worker; the runner records that.
        raise StepEndedError(Outcome(job.step.name, "SKIPPED"))
    try:
        job.folder.mkdir(parents=True)
    except OSError:  # it cannot be made at all, and the step says why, unless it is there by now
        return not job.folder.is_dir()
    return True


def read_lost_end(job: StepJob) -> Outcome:
    """Return how a step ended whose worker was lost afterwards, once nobody sends its report.

    Raises:
        StepEndedError: It had not finished.
    """
    name, folder = job.step.name, job.folder
    if not has_finished(folder):
        raise StepEndedError(Outcome(name, "FAILED", "its worker was lost"))
    until = time.monotonic() + _REPORT_SEC
    journals = [*folder.glob("journals/**/*.journal"), *folder.glob("measured/**/*.journal")]
    while any(map(is_at_work, journals)) and time.monotonic() < until:
        time.sleep(_POLL_SEC)
    started = (folder / STARTED).stat().st_mtime
    return Outcome(
        name,
        "FINISHED",
        run_id=(folder / STARTED).read_text(encoding="utf-8") or None,
        started=started,
        duration_sec=(folder / ENDED).stat().st_mtime - started,
        attempts=1 + len(list(folder.glob("logs/attempt-*"))),
        log=folder / "logs",
        end=End("FINISHED"),
    )


def correct_lost(outcome: Outcome, folder: Path) -> tuple[Outcome, float]:
    """Return how and when a step ended whose worker was lost: as its command, if it has finished.

    Args:
        outcome: What the executor says of it.
        folder: The step's folder.

    Returns:
        The outcome, and the Unix time.
    """
    is_finished = has_finished(folder)
    ended = time.time()
    with contextlib.suppress(OSError):  # the stop is written when its loss is seen
        ended = (folder / (ENDED if is_finished else STOP)).stat().st_mtime
    return replace(outcome, status="FINISHED", message="") if is_finished else outcome, ended
