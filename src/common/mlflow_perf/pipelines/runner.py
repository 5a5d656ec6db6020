"""Run a graph on an executor: the parent run, the steps, their failures, an interrupt, the end."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, wait
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from mlflow_perf.core.safe_log import get_logger
from mlflow_perf.core.uris import absolute_store, first_line
from mlflow_perf.errors import PipelineError
from mlflow_perf.model.document import SKIPPED
from mlflow_perf.node.exit_cause import End
from mlflow_perf.node.step_notes import STOP
from mlflow_perf.pipelines.environments import StepPython
from mlflow_perf.pipelines.executors import read_outcome
from mlflow_perf.pipelines.graph import ARTIFACTS, Graph, Parts, Ref, Step, Value
from mlflow_perf.pipelines.interrupts import making_store
from mlflow_perf.pipelines.lost_step import correct_lost
from mlflow_perf.pipelines.output_folder import mark_output, mark_run
from mlflow_perf.pipelines.paths import choose_alias, require_plain_path
from mlflow_perf.pipelines.processes import write_stop
from mlflow_perf.pipelines.result import Result
from mlflow_perf.pipelines.snapshot import Snapshot, find_own_code, take_snapshots
from mlflow_perf.pipelines.step_job import StepJob
from mlflow_perf.pipelines.step_outcome import Outcome
from mlflow_perf.pipelines.step_sizes import StepSize
from mlflow_perf.pipelines.step_table import log_report
from mlflow_perf.pipelines.store_calls import StoreCalls, send_left
from mlflow_perf.pipelines.values import fill_command, format_literal
from mlflow_perf.publish.journal import Journal
from mlflow_perf.publish.journal_file import find_state_folder
from mlflow_perf.publish.pipeline_journal import list_unsent, open_pipeline_journal
from mlflow_perf.publish.step_record import STARTED, StepRecord, keep_end
from mlflow_perf.publish.workflow_writer import Tracking, impatient
from mlflow_perf.tracking.client import has_parent
from mlflow_perf.tracking.delivery import Delivery
from mlflow_perf.tracking.perf_run import PIPELINE_TAG, STATUS_TAG
from mlflow_perf.tracking.recorded_runs import RECORDING_TAG, discard_repeated_runs
from mlflow_perf.tracking.reporting_notes import note_apart
from mlflow_perf.tracking.run_handle import RunHandle

_log = get_logger("mlflow_perf.pipelines")
_POLL_SEC = 0.1
_STOP_SEC = 30.0


class Executor(Protocol):
    """Runs steps; `executors.Pool` implements it."""

    def submit(self, job: StepJob, needed: list[Future[Outcome]]) -> Future[Outcome]:
        """Submit a step; it starts when the steps that it needs have finished."""
        ...

    def fault(self) -> str:
        """Return which part was lost, so that no step can end any more; empty if none was."""
        ...

    def close(self) -> None:
        """Release the workers."""
        ...


class Runner:
    """Runs one graph once.

    Args:
        graph: The graph to run.
        tracking: Where to log.
        work: Folder for code, outputs and logs of all steps; every machine sees it.
        retries: How often a failed step is repeated if the step itself sets no number.
        pythons: Interpreter by step; see `environments.choose_pythons`.
        sizes: What each step asks for; steps without a size are neither limited nor held back.
        watch: Called when a step begins or ends, with its name, the event, and at the end its
            outcome.
    """

    def __init__(
        self,
        graph: Graph,
        tracking: Tracking,
        work: Path,
        *,
        retries: int = 0,
        pythons: Mapping[str, StepPython] | None = None,
        sizes: Mapping[str, StepSize] | None = None,
        watch: Callable[[str, str, Outcome | None], object] = lambda *_: None,
    ) -> None:
        self.graph = graph
        self.tracking = tracking
        self.work = require_plain_path(work.resolve(), where="The work folder")
        self._store = StoreCalls(tracking.place.uri, self.work / STOP)
        self.retries = retries
        self.watch = watch
        self.pythons = dict(pythons or {})
        self.sizes = dict(sizes or {})
        self._links: dict[Path, Path] = {}
        # All commands are filled now, so that a faulty one is reported before anything runs.
        self._commands: dict[str, str] = {}
        for step in graph.steps.values():
            given = {name: step.values.get(name) for name in step.inputs}
            inputs = {n: None if v is None else self._format(v) for n, v in given.items()}
            outputs = {name: str(self._output_path(step.name, name)) for name in step.outputs}
            try:
                self._commands[step.name] = fill_command(
                    step.command, inputs=inputs, outputs=outputs
                )
            except PipelineError as error:
                raise PipelineError(f"Step {step.name!r}: {error}") from None

    def run(self, make_pool: Callable[[], Executor]) -> Result:
        """Run all steps and return how they ended; an interrupt stops them and ends the runs.

        Args:
            make_pool: Makes the executor; called after the parent run was started.

        Raises:
            PipelineError: The work folder, or that of the store, cannot be written.
        """
        began = time.monotonic()
        graph = self.graph
        # Before anything else is written, because another pipeline may be copying the same code.
        if self.tracking.place.folder is not None:
            mark_output(self.tracking.place.folder)
        with making_store(self.tracking.place.uri):
            chosen = graph.experiment or os.environ.get("MLFLOW_EXPERIMENT_NAME")
            experiment = self.tracking.experiment(chosen or graph.name)
        delivery, journal = self._start(experiment)
        result = Result(str(delivery.run.run_id), experiment)
        try:
            mark_run(self.work)
            for link, path in self._links.items():
                link.parent.mkdir(parents=True, exist_ok=True)
                link.symlink_to(path)
            with contextlib.closing(make_pool()) as pool:
                self._run_steps(pool, result)
        except BaseException as error:
            result.status = "KILLED"
            if not isinstance(error, (KeyboardInterrupt, SystemExit)):
                result.fail(error)
            raise
        finally:
            result.duration_sec = time.monotonic() - began
            delivery.document.status = result.status
            delivery.document.duration_sec = result.duration_sec
            is_whole = False
            try:
                is_sent = self._end(result)
                is_whole = log_report(result, self.tracking, self._store) and is_sent
            finally:  # a further interrupt does not wait for MLflow
                if is_whole:
                    journal.remove()
                else:  # for `recover`
                    journal.keep(delivery, unsent="MLflow did not take all of its runs")
                    _log.warning("Not all of this is in MLflow yet: mlflow-perf recover sends it.")
        result.outputs = {
            name: self._output_path(ref.step, ref.output)
            for name, ref in graph.outputs.items()
            if result.steps[ref.step].status == "FINISHED"
        }
        return result

    def _end(self, result: Result) -> bool:
        """End the parent run; return whether MLflow has all of the pipeline now."""
        run_id, work, uri = result.run_id, self.work, self.tracking.place.uri

        def end() -> bool:
            self.tracking.metrics(run_id, {"duration_sec": result.duration_sec})
            self.tracking.end(run_id, result.status, tags=result.end_tags)
            return True

        left = [step for step in result.steps.values() if not step.is_logged]
        is_sent = not left and len(result.steps) == len(self.graph.steps)
        if self._store.has_failed or not is_sent:  # it may be back, and then has all of it
            what = "What the steps left could not be sent"
            is_sent = bool(self._store.ask(lambda: send_left(uri, work), what, is_long=True))
            if is_sent and (self._store.has_failed or not all(step.is_lost for step in left)):
                _log.warning("MLflow has taken by now what could not be sent before.")
        result.is_ended = bool(self._store.ask(end, "The run of the pipeline could not be ended"))
        return result.is_ended and is_sent and not list_unsent(work)

    def _start(self, experiment: str) -> tuple[Delivery, Journal]:
        """Start the parent run, and return the journal by which `recover` would end it."""
        graph, uri = self.graph, self.tracking.place.uri
        run = RunHandle(absolute_store(uri), experiment_id=experiment)
        delivery, journal = open_pipeline_journal(graph.name, run, self.work, find_state_folder())
        tags = {
            **graph.tags,
            PIPELINE_TAG: graph.name,
            RECORDING_TAG: run.nonce,
            "mlflow.source.name": str(graph.source or graph.name),
            "mlflow.source.type": "LOCAL",
        }
        params: dict[str, Any] = {k: v for k, v in graph.inputs.items() if v is not None}
        group = run.parent_id
        is_apart = group is not None and not has_parent(group, tracking_uri=uri)
        asked = time.monotonic()
        try:
            with impatient():  # nothing runs yet
                run.run_id = self.tracking.start(
                    experiment,
                    graph.title,
                    parent=None if is_apart else group,
                    tags=tags,
                    params=params,
                )
        except BaseException as error:  # the store may have made it
            journal.keep(delivery, unsent=f"its run could not be made: {first_line(error)}")
            mark_run(self.work)  # where `recover` looks for its steps
            raise
        journal.note_run()
        discard_repeated_runs(run, run.run_id, asked=asked)
        if is_apart:
            note_apart(run.run_id)
        return delivery, journal

    def folder(self, step: str) -> Path:
        """Return the folder of a step."""
        return self.work / step

    def _run_steps(self, pool: Executor, result: Result) -> None:
        """Submit all steps, wait for them, and enter their outcomes into the result."""
        futures: dict[str, Future[Outcome]] = {}
        begun: set[str] = set()
        stopped, fault = False, ""
        try:
            steps = self.graph.steps
            repeated = [n for n, s in steps.items() if s.retries or self.retries or n in self.sizes]
            codes = take_snapshots(steps, self.work, repeated=repeated)
            for step in steps.values():
                job = self._make_job(step, codes[step.name], result)
                futures[step.name] = pool.submit(job, [futures[name] for name in step.needs])
            pending = dict(futures)
            while pending and not (fault := pool.fault()):
                wait(pending.values(), timeout=_POLL_SEC, return_when="FIRST_COMPLETED")
                for name in [n for n in pending if n not in begun]:
                    if self._started_file(name).exists():
                        begun.add(name)
                        self.watch(name, "began", None)
                for name in [n for n, f in pending.items() if f.done()]:
                    outcome = self._read(name, pending.pop(name))
                    if outcome.is_lost and name in begun:  # its worker may still run it
                        write_stop(self.folder(name) / STOP, End(outcome.status, outcome.message))
                    self.watch(name, "ended", outcome)
        except KeyboardInterrupt:
            stopped = True
        # Steps on any machine watch for this file.
        if fault and not stopped:
            write_stop(self.work / STOP, End("FAILED", fault))
        if stopped:
            (self.work / STOP).touch()
            running = [f for name, f in futures.items() if self._started_file(name).exists()]
            # A second interrupt does not wait for the steps' own grace period.
            fault = "stopped; a second interrupt did not wait for its end"
            with contextlib.suppress(KeyboardInterrupt):
                wait(running, timeout=_STOP_SEC)
                fault = ""
        for step in self.graph.steps.values():
            future = futures.get(step.name)
            result.steps[step.name] = self._settle(
                step, future, result, stopped=stopped, fault=fault
            )
        finished = all(o.status == "FINISHED" for o in result.steps.values())
        result.status = "KILLED" if stopped else "FINISHED" if finished else "FAILED"

    def _read(self, name: str, future: Future[Outcome]) -> Outcome:
        """Return what the future of a step says; a step that began had a worker."""
        had_workers = any(self._started_file(one).exists() for one in self.graph.steps)
        return read_outcome(name, future, had_workers=had_workers)

    def _settle(
        self,
        step: Step,
        future: Future[Outcome] | None,
        result: Result,
        *,
        stopped: bool,
        fault: str,
    ) -> Outcome:
        """Return a step's outcome, and end or log the run that the step itself could not."""
        name = step.name
        started = self._started_file(name)
        if future is not None and future.done() and not future.cancelled():
            outcome = self._read(name, future)
        elif started.exists():
            status = "KILLED" if stopped else "FAILED"
            outcome = Outcome(name, status, fault or "it did not stop in time")
        else:
            outcome = Outcome(name, "SKIPPED")
        if not started.exists() and outcome.run_id is None:
            is_skipped = outcome.status == "SKIPPED"
            why = fault or result.blame(step.needs)
            why = f"not run because {'the pipeline was stopped' if stopped else why}"
            message = why if is_skipped else outcome.message
            tags = {**self.graph.make_tags(step), "mlflow_perf.error": message}
            tags |= {STATUS_TAG: SKIPPED} if is_skipped else {}
            status = "KILLED" if is_skipped else outcome.status

            def log_run() -> str:
                run_id = self.tracking.start(
                    result.experiment_id, name, parent=result.run_id, tags=tags
                )
                self.tracking.end(run_id, status)
                return run_id

            missing = "No MLflow run could be made for step %r, which was not run"
            run_id = self._store.ask(log_run, missing, name)
            if run_id is None:
                record = StepRecord(result.experiment_id, name, result.run_id, tags)
                now = time.time()
                replace(record, status=status, started=now, ended=now).keep(self.folder(name))
            is_logged = run_id is not None
            return Outcome(name, outcome.status, message, run_id, is_logged=is_logged)
        if outcome.is_lost and started.exists():
            return self._end_lost(step, outcome, result)
        return outcome

    def _end_lost(self, step: Step, outcome: Outcome, result: Result) -> Outcome:
        """End the run that a lost worker has left open; what it left behind is sent later."""
        outcome, ended = correct_lost(outcome, self.folder(name := step.name))
        run_id = self._started_file(name).read_text(encoding="utf-8") or None
        tags = {STATUS_TAG: outcome.status}
        tags |= {"mlflow_perf.error": outcome.message} if outcome.message else {}
        record = StepRecord(
            result.experiment_id, name, result.run_id, self.graph.make_tags(step),
            status=outcome.status, ended=ended, end_tags=tags,
        )  # fmt: skip
        keep_end(self.folder(name), record)
        if run_id is not None:
            self._store.ask(
                lambda: self.tracking.end(run_id, outcome.status, tags=tags),
                "The MLflow run of step %r could not be ended",
                name,
            )
        return replace(outcome, run_id=run_id, is_logged=False)

    def _make_job(self, step: Step, code: Snapshot, result: Result) -> StepJob:
        """Return everything that a machine needs to run the step."""
        outputs = self.folder(step.name) / "outputs"
        retries = step.retries or self.retries
        python = self.pythons.get(step.name, StepPython())
        given = {name: value for name, value in step.values.items() if value is not None}
        variables = {f"AZURE_ML_INPUT_{name}": self._format(v) for name, v in given.items()}
        variables |= {
            f"AZURE_ML_OUTPUT_{name}": str(self._output_path(step.name, name))
            for name in step.outputs
        }
        return StepJob(
            step=replace(
                step,
                command=self._commands[step.name],
                code=code.folder,
                includes=(),
                retries=retries,
                environment={**variables, **step.environment},
            ),
            folder=self.folder(step.name),
            outputs=tuple(
                outputs if port.type == "uri_file" or not port.is_path else outputs / name
                for name, port in step.outputs.items()
            ),
            stop=self.work / STOP,
            place=self.tracking.place,
            experiment_id=result.experiment_id,
            parent=result.run_id,
            params={
                k: str(v) if isinstance(v, Path) else self._format(v) for k, v in given.items()
            },
            tags=self.graph.make_tags(step),
            python=python.path,
            fault=python.fault or code.fault,
            size=self.sizes.get(step.name),
        )

    def _format(self, value: Value) -> str:
        """Return a value as a command contains it; a path that a shell splits becomes a link."""
        if isinstance(value, Ref):
            return str(self._output_path(value.step, value.output))
        if isinstance(value, Parts):
            return "".join(self._format(item) for item in value.items)
        if isinstance(value, Path):
            path = choose_alias(value, self.work / "links")
            if path != value:
                self._links[path] = value
            return str(path)
        return "" if value is None else format_literal(value)

    def _output_path(self, step: str, name: str) -> Path:
        if name == ARTIFACTS and "outputs.artifacts" not in self.graph.steps[step].command:
            return find_own_code(self.folder(step))  # with its folders `outputs` and `logs`
        return self.folder(step) / "outputs" / name

    def _started_file(self, step: str) -> Path:
        """Return the file that a step writes when it begins; it holds the id of its run."""
        return self.folder(step) / STARTED
