"""Runs a graph on a pool: parent run, steps, failures, an interrupt, the end.

Imports `errors`, `sinks.tracking`, `graph`, `step`, `values` and `executors`.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from mlflow_perf.errors import PipelineError
from mlflow_perf.pipelines.executors import outcome_of
from mlflow_perf.pipelines.graph import Graph, Parts, Port, Ref, Step, Value
from mlflow_perf.pipelines.paths import alias, plain
from mlflow_perf.pipelines.step import Outcome, StepJob
from mlflow_perf.pipelines.values import fill, text_of
from mlflow_perf.publish.workflow_writer import Tracking

__all__ = ["Executor", "Result", "Runner"]

_log = logging.getLogger("mlflow_perf.pipelines")
_POLL_SEC = 0.1
_STOP_SEC = 30.0


class Executor(Protocol):
    """What runs steps; `executors.Pool` is the one that ships."""

    def submit(self, job: StepJob, needed: list[Future[Outcome]]) -> Future[Outcome]:
        """Hand a step over; it starts when what it needs has finished."""
        ...

    def fault(self) -> str:
        """Return what is lost, so that steps would never end; empty where nothing is."""
        ...

    def close(self) -> None:
        """Let go of workers."""
        ...


@dataclass
class Result:
    """How a pipeline ended.

    Attributes:
        run_id: The parent run.
        experiment_id: Its experiment.
        status: `FINISHED`, `FAILED` or `KILLED`.
        steps: How each step ended, in the order of the graph.
        outputs: Where the pipeline's outputs lie.
        duration_sec: How long it took.
    """

    run_id: str
    experiment_id: str
    status: str = "RUNNING"
    steps: dict[str, Outcome] = field(default_factory=dict)
    outputs: dict[str, Path] = field(default_factory=dict)
    duration_sec: float = 0.0


class Runner:
    """Runs one graph once.

    Args:
        graph: What to run.
        tracking: Where to log.
        work: Folder for code, outputs and logs of all steps; every machine sees it.
        retries: How often a failed step is repeated where it does not say itself.
        watch: Called as steps begin and end: name, what happened, its outcome at the end.
    """

    def __init__(
        self,
        graph: Graph,
        tracking: Tracking,
        work: Path,
        *,
        retries: int = 0,
        watch: Callable[[str, str, Outcome | None], object] = lambda *_: None,
    ) -> None:
        self.graph = graph
        self.tracking = tracking
        self.work = plain(work.resolve(), where="The work folder")
        self.retries = retries
        self.watch = watch
        self._seen: set[str] = set()
        self._links: dict[Path, Path] = {}
        # Fills every command once, so that what is wrong with one is said before anything runs.
        self._commands = {name: self._command(step) for name, step in graph.steps.items()}

    def run(self, make_pool: Callable[[], Executor]) -> Result:
        """Run all steps and return how they ended; an interrupt stops them and ends the runs.

        Args:
            make_pool: Makes the executor; called once the parent run exists.
        """
        began = time.monotonic()
        experiment = self.tracking.experiment(self.graph.experiment)
        result = Result(self._start_parent(experiment), experiment)
        try:
            self._prepare_work()
            with _closing(make_pool()) as pool:
                self._run_steps(pool, result)
        except BaseException as error:
            result.duration_sec = time.monotonic() - began
            self._end_parent(result, "KILLED" if _is_interrupt(error) else "FAILED")
            raise
        result.duration_sec = time.monotonic() - began
        finished = [o for o in result.steps.values() if o.status == "FINISHED"]
        result.outputs = {
            name: self.folder(ref.step) / "outputs" / ref.output
            for name, ref in self.graph.outputs.items()
            if ref.step in {o.name for o in finished}
        }
        self._end_parent(result, result.status)
        return result

    def folder(self, step: str) -> Path:
        """Return the folder of a step."""
        return self.work / step

    def _prepare_work(self) -> None:
        self.work.mkdir(parents=True, exist_ok=True)
        for link, path in self._links.items():
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(path)

    def _run_steps(self, pool: Executor, result: Result) -> None:
        futures: dict[str, Future[Outcome]] = {}
        stopped, fault = False, ""
        try:
            for step in self.graph.steps.values():
                needed = [futures[name] for name in step.needs]
                futures[step.name] = pool.submit(self._job(step, result), needed)
            fault = self._follow(futures, pool)
        except KeyboardInterrupt:
            stopped = True
            self._stop(futures)
        for name in self.graph.steps:
            result.steps[name] = self._final(name, futures.get(name), stopped=stopped, fault=fault)
        self._record_unrun(result)
        result.status = "KILLED" if stopped else _overall(result.steps)

    def _follow(self, futures: dict[str, Future[Outcome]], pool: Executor) -> str:
        """Wait for all, telling of each as it begins and ends; return what was lost meanwhile."""
        pending = dict(futures)
        while pending:
            if fault := pool.fault():
                (self.work / "stop").touch()
                return fault
            wait(pending.values(), timeout=_POLL_SEC, return_when="FIRST_COMPLETED")
            self._tell_begun(pending)
            for name in [n for n, f in pending.items() if f.done()]:
                self.watch(name, "ended", outcome_of(name, pending.pop(name)))
        return ""

    def _tell_begun(self, pending: dict[str, Future[Outcome]]) -> None:
        for name in pending:
            if name not in self._seen and (self.folder(name) / "started").exists():
                self._seen.add(name)
                self.watch(name, "began", None)

    def _stop(self, futures: dict[str, Future[Outcome]]) -> None:
        """Ask every step to stop, on whichever machine, and wait for those that run."""
        (self.work / "stop").touch()
        running = [f for n, f in futures.items() if (self.folder(n) / "started").exists()]
        # A second interrupt does not wait for the steps' own grace.
        with contextlib.suppress(KeyboardInterrupt):
            wait(running, timeout=_STOP_SEC)

    def _final(
        self, name: str, future: Future[Outcome] | None, *, stopped: bool, fault: str
    ) -> Outcome:
        """Return a step's outcome, that of one which never began or never ended included."""
        if future is not None and future.done() and not future.cancelled():
            outcome = outcome_of(name, future)
        elif (self.folder(name) / "started").exists():
            ended = "KILLED" if stopped else "FAILED"
            outcome = Outcome(name, ended, fault or "it did not stop in time")
        else:
            outcome = Outcome(name, "SKIPPED")
        if outcome.status == "SKIPPED":
            why = "the pipeline was stopped" if stopped else fault or self._blame(name)
            return Outcome(name, "SKIPPED", f"not run, for {why}")
        if outcome.run_id is None:
            outcome = self._lost(name, outcome)
        return outcome

    def _lost(self, name: str, outcome: Outcome) -> Outcome:
        """End the run that a lost worker left open; return the outcome with its id."""
        started = self.folder(name) / "started"
        run_id = started.read_text(encoding="utf-8") if started.exists() else ""
        if not run_id:
            return outcome
        self._quietly(
            lambda: self.tracking.end(
                run_id, outcome.status, tags={"mlflow_perf.error": outcome.message}
            )
        )
        return Outcome(name, outcome.status, outcome.message, run_id=run_id)

    def _blame(self, name: str) -> str:
        step = self.graph.steps[name]
        return f"{' and '.join(step.needs)} did not finish"

    def _record_unrun(self, result: Result) -> None:
        """Give each step that never began a run that says so."""
        for name, outcome in result.steps.items():
            if outcome.status != "SKIPPED":
                continue
            tags = {**self._tags(self.graph.steps[name]), "mlflow_perf.error": outcome.message}

            def record(name: str = name, tags: dict[str, str] = tags) -> None:
                run_id = self.tracking.start(
                    result.experiment_id, name, parent=result.run_id, tags=tags
                )
                self.tracking.end(run_id, "KILLED")
                result.steps[name] = Outcome(name, "SKIPPED", tags["mlflow_perf.error"], run_id)

            self._quietly(record)

    def _quietly(self, write: Callable[[], object]) -> None:
        try:
            write()
        # The edge to MLflow: a record that fails changes nothing about how the steps ended.
        except Exception:  # noqa: BLE001 - see above
            _log.warning("MLflow did not take the end of a step.", exc_info=True)

    def _job(self, step: Step, result: Result) -> StepJob:
        folder = self.folder(step.name)
        outputs = folder / "outputs"
        return StepJob(
            name=step.name,
            component=step.component,
            command=self._commands[step.name],
            folder=folder,
            code=step.code,
            includes=step.includes,
            folders=tuple(
                outputs if port.type == "uri_file" or not port.is_path else outputs / name
                for name, port in step.outputs.items()
            ),
            environment=step.environment,
            instances=step.instances,
            processes=step.processes,
            distribution=step.distribution,
            timeout_sec=step.timeout_sec,
            retries=step.retries or self.retries,
            stop=self.work / "stop",
            place=self.tracking.place,
            experiment_id=result.experiment_id,
            parent=result.run_id,
            params={
                k: str(v) if isinstance(v, Path) else self._text(v)
                for k, v in step.values.items()
                if v is not None
            },
            tags=self._tags(step),
        )

    def _tags(self, step: Step) -> dict[str, str]:
        return {
            "mlflow_perf.component": step.component,
            "mlflow_perf.step": step.name,
            "mlflow_perf.depends_on": ",".join(step.needs),
            "mlflow_perf.instances": str(step.instances),
            "mlflow.source.name": str(self.graph.source or self.graph.name),
        }

    def _command(self, step: Step) -> str:
        outputs = {name: str(self._output(step.name, name)) for name in step.outputs}
        values = {name: self._argument(port, step.values) for name, port in step.inputs.items()}
        try:
            return fill(step.command, inputs=values, outputs=outputs)
        except PipelineError as error:
            raise PipelineError(f"Step {step.name!r}: {error}") from None

    def _argument(self, port: Port, values: dict[str, Value]) -> str | None:
        value = values.get(port.name)
        return None if value is None else self._text(value)

    def _text(self, value: Value) -> str:
        """Return a value as it stands in a command."""
        if isinstance(value, Ref):
            return str(self._output(value.step, value.output))
        if isinstance(value, Parts):
            return "".join(self._text(item) for item in value.items)
        if isinstance(value, Path):
            return str(self._plain(value))
        return "" if value is None else text_of(value)

    def _plain(self, path: Path) -> Path:
        """Return the path as it can stand in a command, through a link where it cannot itself."""
        name = alias(path, self.work / "links")
        if name != path:
            self._links[name] = path
        return name

    def _output(self, step: str, name: str) -> Path:
        return self.folder(step) / "outputs" / name

    def _start_parent(self, experiment: str) -> str:
        graph = self.graph
        tags = {
            **graph.tags,
            "mlflow_perf.pipeline": graph.name,
            "mlflow.source.name": str(graph.source or graph.name),
            "mlflow.source.type": "LOCAL",
        }
        params: dict[str, Any] = {k: v for k, v in graph.inputs.items() if v is not None}
        return self.tracking.start(experiment, graph.title, tags=tags, params=params)

    def _end_parent(self, result: Result, status: str) -> None:
        figures = {"duration_sec": result.duration_sec}
        self._quietly(lambda: self.tracking.metrics(result.run_id, figures))
        self._quietly(lambda: self.tracking.end(result.run_id, status))


@contextlib.contextmanager
def _closing(pool: Executor) -> Iterator[Executor]:
    try:
        yield pool
    finally:
        pool.close()


def _is_interrupt(error: BaseException) -> bool:
    return isinstance(error, (KeyboardInterrupt, SystemExit))


def _overall(steps: dict[str, Outcome]) -> str:
    return "FINISHED" if all(o.status == "FINISHED" for o in steps.values()) else "FAILED"
