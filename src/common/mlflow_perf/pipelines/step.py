"""One step, run where the executor puts it: snapshot, child run, processes, log, outcome.

Imports `errors`, `node`, `sinks.tracking`, `snapshot`, `launch` and `processes`. `run_step` and
what it takes and returns travel between machines, so they are plain picklable records.
"""

from __future__ import annotations

import logging
import os
import shutil
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from mlflow_perf.errors import PipelineError
from mlflow_perf.node.place import without_launcher
from mlflow_perf.pipelines.launch import ranks_of, search_path
from mlflow_perf.pipelines.processes import Ended, Limits, run_ranks
from mlflow_perf.pipelines.snapshot import copy_code
from mlflow_perf.publish.recovery import recover
from mlflow_perf.publish.workflow_writer import Place, Tracking

__all__ = ["Outcome", "StepEndedError", "StepJob", "run_step"]

_log = logging.getLogger("mlflow_perf.pipelines")


@dataclass(frozen=True, slots=True)
class StepJob:
    """Everything a machine needs to run a step.

    Attributes:
        name: Name of the step.
        component: Name of its component.
        command: Shell command, filled in.
        folder: The step's own folder: code, outputs and logs; all machines see it.
        code: Where the code is taken from.
        includes: What is put beside it.
        folders: Output folders to make.
        environment: Variables of the component and of the node.
        instances: Number of nodes.
        processes: Ranks per node.
        distribution: `mpi`, `pytorch` or None.
        timeout_sec: How long an attempt may take.
        retries: How often a failed attempt is repeated.
        stop: File whose appearance stops the step.
        place: Where to log.
        experiment_id: Experiment of the child run.
        parent: Run of the pipeline.
        params: Parameters of the child run.
        tags: Tags of the child run.
    """

    name: str
    component: str
    command: str
    folder: Path
    code: Path | None
    includes: tuple[Path, ...]
    folders: tuple[Path, ...]
    environment: dict[str, str]
    instances: int
    processes: int
    distribution: str | None
    timeout_sec: float | None
    retries: int
    stop: Path
    place: Place
    experiment_id: str
    parent: str
    params: dict[str, Any] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a step ended.

    Attributes:
        name: Name of the step.
        status: `FINISHED`, `FAILED`, `KILLED` or `SKIPPED`.
        message: What went wrong, one sentence; empty where nothing did.
        run_id: Its MLflow run; None where it never started.
        started: Unix time of its start.
        duration_sec: How long it took.
        cpu_sec: CPU time of its processes, as far as they were waited for.
        max_rss_mb: Largest resident memory of one process.
        attempts: How often it was tried.
        log: Folder of its logs.
    """

    name: str
    status: str
    message: str = ""
    run_id: str | None = None
    started: float = 0.0
    duration_sec: float = 0.0
    cpu_sec: float = 0.0
    max_rss_mb: float = 0.0
    attempts: int = 1
    log: Path | None = None


class StepEndedError(Exception):
    """A step did not finish; so that what depends on it is not run. Its argument is the outcome."""

    @property
    def outcome(self) -> Outcome:
        """Return how the step ended."""
        found: Outcome = self.args[0]
        return found


def run_step(job: StepJob, *_needed: Outcome) -> Outcome:
    """Run a step to its end and return how it went.

    Args:
        job: The step.
        _needed: Outcomes of the steps before it; their futures make the executor wait.

    Raises:
        StepEndedError: The step failed or was stopped, or the pipeline was before it began.
    """
    if job.stop.exists():
        # It waited for a worker when the pipeline was stopped: the runner records it as not run.
        raise StepEndedError(Outcome(job.name, "SKIPPED"))
    tracking = Tracking(job.place)
    run_id = _start_run(job, tracking)
    _note_start(job, run_id)
    started, began = time.time(), time.monotonic()
    outcome = Outcome(job.name, "FAILED", run_id=run_id, started=started, log=job.folder / "logs")
    try:
        outcome = _attempts(job, outcome)
    except PipelineError as error:
        outcome = replace(outcome, message=str(error))
    outcome = replace(outcome, duration_sec=time.monotonic() - began)
    _recover(job, outcome.attempts)
    _end_run(job, tracking, outcome)
    if outcome.status != "FINISHED":
        raise StepEndedError(outcome)
    return outcome


def _journals(job: StepJob, attempt: int) -> Path:
    """Return the folder of the journals of an attempt's processes."""
    return _of_attempt(job.folder / "journals", attempt)


def _of_attempt(folder: Path, attempt: int) -> Path:
    return folder if attempt == 1 else folder / f"attempt-{attempt}"


def _recover(job: StepJob, attempt: int) -> None:
    """Send what a killed rank, or one that the server kept waiting too long, left behind."""
    # The launcher has ended, and so have the ranks that it started on other hosts.
    for left in recover(_journals(job, attempt), of_any_host=True):
        _log.info("Step %s, node %d was logged late: %s", job.name, left.node, left.cause)


def _attempts(job: StepJob, outcome: Outcome) -> Outcome:
    """Try the step as often as it may be."""
    copy_code(job.code, job.includes, job.folder / "code")
    ended = Ended(1)
    for attempt in range(1, job.retries + 2):
        if attempt > 1:
            # Now: later it would take the place of what the next attempt reports.
            _recover(job, attempt - 1)
        # What a failed attempt left half written must not be taken for an output.
        shutil.rmtree(job.folder / "outputs", ignore_errors=True)
        for folder in job.folders:
            folder.mkdir(parents=True, exist_ok=True)
        ended = _attempt(job, outcome.run_id, attempt)
        outcome = replace(
            outcome,
            attempts=attempt,
            cpu_sec=outcome.cpu_sec + ended.cpu_sec,
            max_rss_mb=max(outcome.max_rss_mb, ended.max_rss_mb),
            status=_status(ended),
            message=_message(job, ended),
        )
        if outcome.status != "FAILED":
            break
    return outcome


def _attempt(job: StepJob, run_id: str | None, attempt: int) -> Ended:
    environ = _environment(job, run_id, attempt)
    logs = _of_attempt(job.folder / "logs", attempt)
    logs.mkdir(parents=True, exist_ok=True)
    ranks = ranks_of(
        job.command,
        instances=job.instances,
        processes=job.processes,
        distribution=job.distribution,
        environ=environ,
    )
    limits = Limits(job.timeout_sec, job.stop)
    return run_ranks(ranks, folder=job.folder / "code", logs=logs, environ=environ, limits=limits)


def _environment(job: StepJob, run_id: str | None, attempt: int) -> dict[str, str]:
    """Return the step's variables: this process's less its rank, then the component's."""
    environ = without_launcher(os.environ)
    environ["PATH"] = search_path(environ)
    environ |= {
        "MLFLOW_TRACKING_URI": job.place.uri,
        "MLFLOW_EXPERIMENT_ID": job.experiment_id,
        "PYTHONUNBUFFERED": "1",
        # A bar per uploaded file is noise in a log.
        "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    }
    environ |= {"MLFLOW_PERF_DIR": str(_journals(job, attempt))} | job.environment
    environ.pop("MLFLOW_RUN_ID", None)
    if run_id:
        environ["MLFLOW_RUN_ID"] = run_id
    return environ


def _status(ended: Ended) -> str:
    if ended.stopped:
        return "KILLED"
    return "FINISHED" if ended.code == 0 else "FAILED"


def _message(job: StepJob, ended: Ended) -> str:
    if ended.stopped:
        return "stopped"
    if ended.timed_out:
        return f"took longer than its limit of {job.timeout_sec:g} s"
    if ended.code == 0:
        return ""
    last = f": {ended.last_line}" if ended.last_line else ""
    by = f"signal {-ended.code}" if ended.code < 0 else f"exit code {ended.code}"
    return f"{ended.who} ended with {by}{last}"


def _note_start(job: StepJob, run_id: str | None) -> None:
    """Leave word for the runner, which may sit on another machine, that the step has begun."""
    (job.folder / "started").write_text(run_id or "", encoding="utf-8")


def _start_run(job: StepJob, tracking: Tracking) -> str | None:
    """Start the child run; without one the step still runs, and reports to a run of its own."""
    job.folder.mkdir(parents=True, exist_ok=True)
    try:
        return tracking.start(
            job.experiment_id, job.name, parent=job.parent, tags=job.tags, params=job.params
        )
    # The edge to MLflow: whatever it raises, the step's own work goes on.
    except Exception:  # noqa: BLE001 - see above
        _log.warning("No MLflow run could be started for step %r.", job.name, exc_info=True)
        return None


def _end_run(job: StepJob, tracking: Tracking, outcome: Outcome) -> None:
    if outcome.run_id is None:
        return
    tags = {"mlflow_perf.attempts": str(outcome.attempts)}
    if outcome.message:
        tags["mlflow_perf.error"] = outcome.message[:5000]
    try:
        if outcome.log is not None and outcome.log.is_dir():
            tracking.artifacts(outcome.run_id, outcome.log, "logs")
        if outcome.status == "FINISHED" and outcome.attempts > 1:
            tracking.untag(outcome.run_id, "mlflow_perf.cause")  # why an earlier attempt ended
        tracking.end(outcome.run_id, outcome.status, tags=tags)
    # The edge to MLflow, as above: the step's outcome stands whatever becomes of its record.
    except Exception:  # noqa: BLE001 - see above
        _log.warning("The MLflow run of step %r could not be ended.", job.name, exc_info=True)
