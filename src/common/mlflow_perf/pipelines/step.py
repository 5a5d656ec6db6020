"""Run one step on the executor's machine: snapshot, child run, processes, logs, outcome."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

from mlflow_perf.core.safe_log import get_logger
from mlflow_perf.core.uris import redact_password, redact_text
from mlflow_perf.errors import PipelineError
from mlflow_perf.node.exit_cause import End
from mlflow_perf.node.step_notes import ENDED, UNSTARTED, write_end
from mlflow_perf.pipelines.launch import plan_ranks
from mlflow_perf.pipelines.lost_step import claim_step, find_given_back, give_back, read_lost_end
from mlflow_perf.pipelines.output_folder import remove_outputs
from mlflow_perf.pipelines.processes import run_ranks
from mlflow_perf.pipelines.sized_attempts import SizedAttempts
from mlflow_perf.pipelines.snapshot import copy_code, find_own_code
from mlflow_perf.pipelines.step_job import StepJob
from mlflow_perf.pipelines.step_outcome import Outcome, StepEndedError
from mlflow_perf.pipelines.store_calls import StoreCalls
from mlflow_perf.publish.journal_file import read_head
from mlflow_perf.publish.pipeline_journal import is_workflow
from mlflow_perf.publish.recovery import recover
from mlflow_perf.publish.recovery_checks import UNWRITTEN
from mlflow_perf.publish.step_files import KEPT_FILES
from mlflow_perf.publish.step_record import STARTED, is_for_step, list_other_stores
from mlflow_perf.publish.workflow_writer import Tracking
from mlflow_perf.tracking.perf_run import STATUS_TAG

_log = get_logger("mlflow_perf.pipelines")


def run_step(
    job: StepJob, *_needed: Outcome, parsl_resource_specification: dict[str, Any] | None = None
) -> Outcome:
    """Run a step to its end and return its outcome.

    Args:
        job: The step.
        _needed: Outcomes of the steps before it; the executor waits for their futures.
        parsl_resource_specification: The nodes that Parsl's MPI mode allocates; Parsl reads it.

    Raises:
        StepEndedError: The step failed or was stopped, or the pipeline was stopped before it began.
    """
    del parsl_resource_specification
    with SizedAttempts(job.size, job.folder.parent, job.stop, job.step.instances) as sized:
        tracking, store = Tracking(job.place), StoreCalls(job.place.uri, job.stop)
        is_new = claim_step(job)
        outcome = _run(job, sized, tracking, store) if is_new else read_lost_end(job)
        outcome = _settle_report(job, outcome, tracking, store)
        tags = _end_run(tracking, outcome, store, job.folder)
        outcome = replace(outcome, is_logged=outcome.is_logged and not store.has_failed)
        if not outcome.is_logged:
            record = job.make_record(outcome.started)
            record = replace(record, status=outcome.status, ended=outcome.ended, end_tags=tags)
            record.keep(job.folder)
        if outcome.status != "FINISHED":
            raise StepEndedError(outcome)
        return outcome


def _run(job: StepJob, sized: SizedAttempts, tracking: Tracking, store: StoreCalls) -> Outcome:
    """Give the step its run, run its attempts, and note how they ended."""
    name = job.step.name

    def start() -> str:
        if (before := find_given_back(job)) is not None:
            tracking.discard(before)  # it began when the step did not
        return tracking.start(
            job.experiment_id, name, parent=job.parent, tags=job.tags, params=job.params
        )

    # Without it, the step runs, and its reports wait for one.
    missing = "No MLflow run could be started for step %r"
    run_id = store.ask(start, missing, name, undo=tracking.discard)
    started, began = time.time(), time.monotonic()
    if run_id is None:
        job.make_record(started).keep(job.folder)
    outcome = Outcome(name, "FAILED", run_id=run_id, started=started, log=job.folder / "logs")
    try:
        job.folder.mkdir(parents=True, exist_ok=True)
        # The runner, perhaps on another machine, reads from this file that the step has begun.
        (job.folder / STARTED).write_text(run_id or "", encoding="utf-8")
        outcome = _run_attempts(job, outcome, sized, tracking, store)
    except PipelineError as error:
        outcome = replace(outcome, message=str(error))
    except OSError as error:  # such as a full disk
        where = error.filename or job.folder
        outcome = replace(outcome, message=f"{where}: {error.strerror}")
    write_end(job.folder, outcome.status, outcome.end)
    # It may end with the last line of the step's own log, and many read it.
    message = redact_text(outcome.message)
    return replace(outcome, message=message, duration_sec=time.monotonic() - began)


def _run_attempts(
    job: StepJob, outcome: Outcome, sized: SizedAttempts, tracking: Tracking, store: StoreCalls
) -> Outcome:
    """Repeat the step until it finishes, is stopped, or has no retries left.

    After an out-of-memory kill it is repeated with more memory, which counts as no retry.
    """
    if job.fault:
        raise PipelineError(job.fault)
    code = find_own_code(job.folder)
    retries_left = job.step.retries
    for attempt in count(1):
        if attempt > 1:
            # The run keeps the report of each attempt; its figures are those of the last one.
            outcome = _settle_report(job, outcome, tracking, store, is_last=False)
            remove_outputs(code / "outputs")
        if code != job.step.code:
            copy_code(job.step.code, job.step.includes, code)
        # The half-written outputs of a failed attempt must not be taken for results.
        remove_outputs(job.folder / "outputs")
        logs = job.attempt_folder("logs", attempt)
        # Azure ML has these two in the working folder, and keeps what a script writes there.
        for folder in (*job.outputs, logs, *(job.folder / name for name, _ in KEPT_FILES)):
            folder.mkdir(parents=True, exist_ok=True)
        # Its end goes into this file, which has its place then when the disk is full.
        (job.folder / ENDED).write_text(UNSTARTED, encoding="utf-8")
        environ = job.make_environment(outcome.run_id, attempt)
        wrapper = job.make_wrapper(attempt)
        ranks = plan_ranks(job.step, environ, wrapper=wrapper)
        environ = job.make_outer(environ, attempt) if wrapper else environ
        is_alone = len(ranks) == 1 and ranks[0].command[: len(wrapper)] == wrapper
        limits = job.make_limits(attempt, is_followed=job.step.ranks == 1 and bool(wrapper))
        if limits.followed:
            ranks = [ranks[0].follow(limits.followed)]
        with sized.limit(ranks) as tried:
            ended = run_ranks(tried.ranks, folder=code, logs=logs, environ=environ, limits=limits)
        outcome = replace(
            outcome,
            attempts=attempt,
            status=ended.stop.status if ended.stop else "FAILED" if ended.code else "FINISHED",
            message=ended.describe(limits),
            tags=sized.tags,
            end=ended.by_itself if is_alone else None,
        )
        if outcome.status == "FAILED" and not ended.stop:
            give_back(job, logs / ranks[0].log)
        if outcome.status == "FINISHED" and (why := sized.explain_kill(tried)):
            outcome = replace(outcome, status="FAILED", message=why, end=End("FAILED", why))
        if outcome.status != "FAILED" or ended.stop or job.stop.exists():
            break
        if job.size is not None and tried.was_killed:
            why_not = sized.grow()
            if not why_not:
                continue
            message = f"{outcome.message}; it was killed for lack of memory, and {why_not}"
            outcome = replace(outcome, message=message)
        if not retries_left:
            break
        retries_left -= 1
    return outcome


def _settle_report(
    job: StepJob, outcome: Outcome, tracking: Tracking, store: StoreCalls, *, is_last: bool = True
) -> Outcome:
    """Send what is left of the latest attempt's report.

    If the step did not report itself, its report is what the wrapper measured. A step whose run
    could not be made before gets it now. The outcome that is returned knows both.

    Args:
        job: The step.
        outcome: How its latest attempt ended.
        tracking: Where its run is.
        store: Asks MLflow.
        is_last: Whether no other attempt follows.
    """
    name, journals = job.step.name, job.attempt_folder("journals", outcome.attempts)
    measured = job.attempt_folder("measured", outcome.attempts)
    if outcome.run_id is None:
        provide = partial(tracking.provide, job.folder, job.make_record(outcome.started))
        what = "No MLflow run could be made for step %r"
        outcome = replace(outcome, run_id=store.ask(provide, what, name))
    run_id = outcome.run_id

    def settle() -> bool:
        # The launcher has ended, and so have the ranks that it started on other hosts.
        for left in recover(journals, of_any_host=True, store=job.place.uri):
            _log.info("Step %s, node %d was logged late: %s", name, left.node, left.cause)
        if run_id is None:
            return False
        # A report that could not be sent is still in its journal.
        kept = any(is_for_step(path, run_id) for path in journals.glob("*.journal"))
        reported = kept or tracking.has_report(run_id)
        if reported:
            shutil.rmtree(measured, ignore_errors=True)
        else:
            for left in recover(measured, of_any_host=True, ended=outcome.end):
                # How one of several ranks ended is not known here.
                if left.cause == UNWRITTEN or (left.cause and outcome.status == "FINISHED"):
                    _log.warning("The figures of step %r are not whole: %s", name, UNWRITTEN)
        tracking.note_report(run_id, job.step.instances)
        if not is_last:
            tracking.forget_report(run_id)
        return reported

    what = "The figures of step %r could not be sent"
    reported = bool(store.ask(settle, what, name, is_long=True))
    for uri in list_other_stores(journals, job.place.uri):
        send = partial(_send_elsewhere, journals, uri)
        StoreCalls(uri, job.stop).ask(send, "A report of step %r could not be sent", name)
    is_left = any([*journals.glob("*.journal"), *measured.glob("*.journal")])
    return replace(outcome, reported=reported, is_logged=outcome.is_logged and not is_left)


def _send_elsewhere(journals: Path, uri: str) -> None:
    """Send the reports of a step's job that go to a store of its own choice."""
    if any(is_workflow(read_head(path)) for path in journals.glob("*.journal")):
        # The report of a workflow needs that store to be the default of a whole process.
        recover_there = [
            sys.executable,
            "-m",
            "mlflow_perf",
            "recover",
            "--any-host",
            str(journals),
        ]
        done = subprocess.run(
            recover_there, capture_output=True, text=True, start_new_session=True, check=False
        )
        if done.returncode:
            raise RuntimeError((done.stderr or done.stdout).strip().rpartition("\n")[2])
        return
    for left in recover(journals, of_any_host=True, store=uri):
        _log.info("Sent to %s: %s", redact_password(uri), left.cause)


def _end_run(
    tracking: Tracking, outcome: Outcome, store: StoreCalls, folder: Path
) -> dict[str, str]:
    """End the step's MLflow run with its logs, attempts and error; return the tags of its end."""
    tags = {"mlflow_perf.attempts": str(outcome.attempts), **outcome.tags}
    # A block in it may have ended otherwise, with an exception that the step survived.
    tags[STATUS_TAG] = outcome.status
    if outcome.message:
        tags["mlflow_perf.error"] = outcome.message[:5000]
    if (run_id := outcome.run_id) is None:
        return tags

    def end() -> None:
        if outcome.status == "FINISHED" and (outcome.attempts > 1 or outcome.reported):
            tracking.untag(run_id, "mlflow_perf.cause")  # why a block or an earlier attempt ended
        tracking.end(run_id, outcome.status, tags=tags, ended=outcome.ended)

    upload = partial(tracking.upload, run_id, folder)
    store.ask(upload, "The files of step %r could not be sent", outcome.name, is_long=True)
    store.ask(end, "The MLflow run of step %r could not be ended", outcome.name)
    return tags
