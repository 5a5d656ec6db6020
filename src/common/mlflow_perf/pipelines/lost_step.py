"""What becomes of a step whose worker was lost: a node failed, or its allocation ended.

The executor gives such a step to another worker if nothing of it has begun, or if its command has
finished: then its report and its end are still to be sent. All others may have done a part of their
work, and still do.

Slurm starts nothing more in an allocation that ends, but leaves the workers there for half a
minute. They would take all steps that wait, one after the other, and each would fail.
"""

from __future__ import annotations

import contextlib
import re
import time
from dataclasses import replace
from pathlib import Path

from mlflow_perf.node.exit_cause import End
from mlflow_perf.node.step_notes import ENDED, GIVEN_BACK, STOP, read_status, write_end
from mlflow_perf.pipelines.step_job import StepJob
from mlflow_perf.pipelines.step_outcome import Outcome, StepEndedError
from mlflow_perf.publish.group_journal import is_at_work
from mlflow_perf.publish.step_record import STARTED

_REPORT_SEC = 20.0
"""How long to wait for a wrapper that outlives its worker; its guard ends it in ten seconds."""
_LOST = "its worker was lost"
_KILL_SEC = 600.0
"""The most that Slurm may take to end an allocation's processes (`KillWait`; default: 30 s)."""
_POLL_SEC = 0.1
_REFUSAL_BYTES = 100_000
_REFUSED = re.compile(
    r"srun: error: Unable to (create step|confirm allocation) for job \d+: "
    r"(Job/step already completing|Invalid job id)"
)


def may_go_on(job: StepJob) -> bool:
    """Return whether another worker may have a step whose worker was lost."""
    has_begun = (job.folder / STARTED).exists()
    return not has_begun or read_status(job.folder) in ("FINISHED", GIVEN_BACK)


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
    started, was_given_back = job.folder / STARTED, read_status(job.folder) == GIVEN_BACK
    if started.exists() and not was_given_back:
        return False
    if job.stop.exists():
        # The pipeline was stopped while the step waited for a worker; the runner records that.
        raise StepEndedError(Outcome(job.step.name, "SKIPPED"))
    with contextlib.suppress(OSError):  # the step cannot write there either, and says why
        job.folder.mkdir(parents=True, exist_ok=True)
        try:
            started.touch(exist_ok=False)
        except FileExistsError:
            return was_given_back
    return True


def find_given_back(job: StepJob) -> str | None:
    """Return the run of a step that an allocation did not begin any more; None if it has none."""
    with contextlib.suppress(OSError):
        return (job.folder / STARTED).read_text(encoding="utf-8") or None
    return None


def give_back(job: StepJob, log: Path) -> None:
    """Wait for this worker's end if it is in an allocation that begins nothing more.

    Args:
        job: A step that has failed.
        log: What its launcher wrote.

    Raises:
        StepEndedError: Another worker has the step by now.
    """
    with contextlib.suppress(OSError):
        if log.stat().st_size > _REFUSAL_BYTES:
            return  # the command has begun, and may have written gigabytes
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
        if not (lines and all(line.startswith("srun: ") for line in lines)):
            return  # the command has begun
        if not _REFUSED.match(lines[-1]):
            return
        write_end(job.folder, GIVEN_BACK, None)
        until = time.monotonic() + _KILL_SEC
        while time.monotonic() < until and not job.stop.exists():
            time.sleep(_POLL_SEC)
        if read_status(job.folder) != GIVEN_BACK:
            raise StepEndedError(Outcome(job.step.name, "FAILED", _LOST))


def read_lost_end(job: StepJob) -> Outcome:
    """Return how a step ended whose worker was lost afterwards, once nobody sends its report.

    Raises:
        StepEndedError: It had not finished.
    """
    name, folder = job.step.name, job.folder
    if not has_finished(folder):
        raise StepEndedError(Outcome(name, "FAILED", _LOST))
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
