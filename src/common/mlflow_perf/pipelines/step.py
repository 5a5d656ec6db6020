"""Run one step on the executor's machine: snapshot, child run, processes, logs, outcome.

Its records are pickled, because the executor sends them between machines.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

from mlflow_perf.core.settings import read_setting
from mlflow_perf.core.uris import absolute_store, is_same_store, redact_password, redact_text
from mlflow_perf.errors import PipelineError, SettingError
from mlflow_perf.node.exit_cause import End
from mlflow_perf.node.place import hide_launcher
from mlflow_perf.node.step_notes import ENDED, STOP_NOTE_VARIABLE, UNSTARTED, write_end
from mlflow_perf.pipelines.graph import Step
from mlflow_perf.pipelines.launch import WRAPPER, make_search_path, name_python, plan_ranks
from mlflow_perf.pipelines.output_folder import remove_outputs
from mlflow_perf.pipelines.processes import Limits, run_ranks
from mlflow_perf.pipelines.runner_process import RunnerProcess
from mlflow_perf.pipelines.sized_attempts import SizedAttempts
from mlflow_perf.pipelines.snapshot import copy_code, find_own_code
from mlflow_perf.pipelines.step_outcome import Outcome, StepEndedError
from mlflow_perf.pipelines.step_sizes import StepSize
from mlflow_perf.pipelines.store_calls import StoreCalls
from mlflow_perf.publish.recovery import recover
from mlflow_perf.publish.recovery_checks import UNWRITTEN
from mlflow_perf.publish.step_files import KEPT_FILES
from mlflow_perf.publish.step_record import STARTED, StepRecord, is_for_step, list_other_stores
from mlflow_perf.publish.workflow_writer import Place, Tracking
from mlflow_perf.tracking.perf_run import STATUS_TAG
from mlflow_perf.tracking.run_handle import (
    PARENT_STORE_VARIABLE,
    PARENT_VARIABLE,
    STEP_VARIABLE,
    PipelineStep,
)

_OURS_SEC = 60.0  # what mlflow-perf takes before a command or after it, without waits
_OF_STORE = "MLFLOW_TRACKING_"  # begins the names of the variables of a store
_OWN = "MLFLOW_PERF_STEP_"  # before the names of those that the step has of its own
_OF_RUN = ("MLFLOW_RUN_ID", PARENT_VARIABLE, PARENT_STORE_VARIABLE)
_log = logging.getLogger("mlflow_perf.pipelines")


@dataclass(frozen=True, slots=True, repr=False)
class StepJob:
    """A step with everything that a machine needs to run it.

    Attributes:
        step: The step, with its command filled in.
        folder: The step's own folder: code, outputs and logs; all machines see it.
        outputs: Output folders to make.
        stop: The file whose appearance stops the step.
        place: Where to log.
        experiment_id: Experiment of the child run.
        parent: Run of the pipeline.
        params: Parameters of the child run.
        tags: Tags of the child run.
        python: Interpreter of the step; None for the runner's own.
        fault: Why the step cannot be run, found before it; empty if it can.
        size: What the step asks for; None if it is neither limited nor held back.
        runner: The process that makes this.
    """

    step: Step
    folder: Path
    outputs: tuple[Path, ...]
    stop: Path
    place: Place
    experiment_id: str
    parent: str
    params: dict[str, Any] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)
    python: Path | None = None
    fault: str = ""
    size: StepSize | None = None
    runner: RunnerProcess = field(default_factory=RunnerProcess.current)

    def __repr__(self) -> str:
        return f"StepJob({self.step.name!r})"  # Parsl logs it, and a command may hold passwords

    def make_environment(self, run_id: str | None, attempt: int) -> dict[str, str]:
        """Return the step's variables: those of this process without its rank, then its own."""
        environ = hide_launcher(os.environ)
        own = [] if self.python is None else name_python(self.python, self.folder / "python")
        environ |= {
            "PATH": make_search_path(environ, *own),
            "MLFLOW_TRACKING_URI": self.place.uri,
            "MLFLOW_EXPERIMENT_ID": self.experiment_id,
            "PYTHONUNBUFFERED": "1",
            # A progress bar for each uploaded file is noise in a log.
            "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
            "MLFLOW_PERF_DIR": str(self.attempt_folder("journals", attempt)),
            STOP_NOTE_VARIABLE: str(self.stop_note(attempt)),
            **self.step.environment,
        }
        for name in _OF_RUN:
            environ.pop(name, None)
        if run_id:
            environ["MLFLOW_RUN_ID"] = run_id
        store, experiment = absolute_store(self.place.uri), self.experiment_id
        step = PipelineStep(self.parent, self.step.name, store, experiment, run_id)
        environ[STEP_VARIABLE] = json.dumps(asdict(step))
        return environ

    def stop_note(self, attempt: int) -> Path:
        """Return the file in which an attempt finds why it is stopped."""
        return self.folder / f"stopped-{attempt}"

    def make_limits(self, attempt: int, *, is_followed: bool) -> Limits:
        """Return when an attempt's processes are stopped.

        Args:
            attempt: Its number.
            is_followed: Whether its only command is started by a wrapper.
        """
        return Limits(
            self.step.timeout_sec,
            self.stop,
            note=self.stop_note(attempt),
            own_stop=self.folder / self.stop.name,
            followed=self.folder / ENDED if is_followed else None,
            ours_sec=_OURS_SEC + self._read_waits_sec(),
            runner=self.runner,
        )

    def _read_waits_sec(self) -> float:
        """Return the most that a wrapper waits for MLflow, before its command or after."""
        environ = {**os.environ, **self.step.environment}
        with suppress(SettingError):  # the wrapper says so
            start_sec: float = read_setting("start_timeout", environ=environ)
            exit_sec: float = read_setting("exit_timeout", environ=environ)
            return max(2 * start_sec, exit_sec)
        return 0.0

    def make_record(self, started: float) -> StepRecord:
        """Return what the step's run is to be, if it began at that Unix time."""
        return StepRecord(
            self.experiment_id, self.step.name, self.parent, self.tags, self.params, started
        )

    def list_inner_variables(self) -> list[str]:
        """Return the component's variables that would change the wrapper's Python, or its store."""
        prefixes = ("PYTHON", "LD_", _OF_STORE)
        # A shell takes no other name.
        return [n for n in self.step.environment if n.startswith(prefixes) and n.isidentifier()]

    def make_outer(self, environ: Mapping[str, str], attempt: int) -> dict[str, str]:
        """Return the variables of the wrapper: its reports go elsewhere, and its Python is ours.

        Args:
            environ: Those of the step.
            attempt: The attempt's number.
        """
        ours = {**os.environ, "MLFLOW_TRACKING_URI": self.place.uri}
        outer = {**environ, "MLFLOW_PERF_DIR": str(self.attempt_folder("measured", attempt))}
        for name in self.list_inner_variables():
            if name.startswith(_OF_STORE):
                outer[f"{_OWN}{name}"] = outer[name]
            outer.pop(name)
            outer |= {name: ours[name]} if name in ours else {}
        return outer

    def make_wrapper(self, attempt: int) -> tuple[str, ...]:
        """Return what starts a rank's command and measures it, as `mlflow-perf run` does."""
        inner = self.list_inner_variables()
        # Everybody on the machine may read a command, and these may hold passwords.
        stored = [name for name in inner if name.startswith(_OF_STORE)]
        lines = [f'export {name}="${_OWN}{name}"; unset {_OWN}{name}' for name in stored]
        own = self.step.environment
        other = own.get("MLFLOW_TRACKING_URI", self.place.uri)
        if not is_same_store(other, self.place.uri):
            # That store does not have them.
            numbers = {"MLFLOW_RUN_ID", "MLFLOW_EXPERIMENT_ID"} - own.keys()
            lines.append(f"unset {' '.join(sorted({*numbers, STEP_VARIABLE}))}")
        # With -p it reads no file of the step's `BASH_ENV`, and passes its functions on.
        begin = ("bash", "-p", "-c", "; ".join([*lines, 'exec "$@"']), "bash")
        shell = begin if lines else ()
        given = [f"MLFLOW_PERF_DIR={self.attempt_folder('journals', attempt)}"]
        given += [f"{name}={self.step.environment[name]}" for name in inner if name not in stored]
        return (*WRAPPER, "--name", self.step.component, "--", *shell, "env", *given)

    def attempt_folder(self, kind: str, attempt: int) -> Path:
        """Return the folder of an attempt's `logs` or `journals`."""
        folder = self.folder / kind
        return folder if attempt == 1 else folder / f"attempt-{attempt}"


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
        name = job.step.name
        if job.stop.exists():
            # The pipeline was stopped while the step waited for a worker; the runner records that.
            raise StepEndedError(Outcome(name, "SKIPPED"))
        tracking, store = Tracking(job.place), StoreCalls(job.place.uri, job.stop)
        # Without it, the step runs, and its reports wait for one.
        start = partial(tracking.start, job.experiment_id, name, parent=job.parent)
        run_id = store.ask(
            partial(start, tags=job.tags, params=job.params),
            "No MLflow run could be started for step %r",
            name,
            undo=tracking.discard,
        )
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
        outcome = replace(outcome, message=message, duration_sec=time.monotonic() - began)
        outcome = _settle_report(job, outcome, tracking, store)
        tags = _end_run(tracking, outcome, store, job.folder)
        outcome = replace(outcome, is_logged=outcome.is_logged and not store.has_failed)
        if not outcome.is_logged:
            record = job.make_record(started)
            record = replace(record, status=outcome.status, ended=outcome.ended, end_tags=tags)
            record.keep(job.folder)
        if outcome.status != "FINISHED":
            raise StepEndedError(outcome)
        return outcome


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
        limits = job.make_limits(attempt, is_followed=is_alone and bool(wrapper))
        if limits.followed:
            ranks = [ranks[0].follow(limits.followed, len(WRAPPER))]
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
