"""Where steps run: Parsl's thread pool, its HTEX on this machine, or any Parsl configuration file.

The only module that imports Parsl. Imports `errors` and `step`'s records.
"""

from __future__ import annotations

import logging
import os
import runpy
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from inspect import Parameter, signature
from pathlib import Path
from typing import Any

from mlflow_perf.errors import MissingDependencyError, PipelineError
from mlflow_perf.pipelines.step import Outcome, StepEndedError, StepJob, run_step

__all__ = ["MONITORING_DB", "Pool", "load_config", "outcome_of"]

MONITORING_DB = "monitoring.db"
"""Name of the file in which Parsl records its tasks when it is asked to."""

_CLEANUP_SEC = 30.0
_LOST_SEC = 3.0
_log = logging.getLogger("mlflow_perf.pipelines")


def load_config(on: str) -> Callable[[Path], Any]:
    """Return what makes the Parsl configuration for a folder, checked before anything runs.

    Args:
        on: `threads`, `htex` or the path of a Python file that defines a `parsl.Config`.

    Raises:
        PipelineError: The file does not exist, fails, or defines no configuration or several.
        MissingDependencyError: Parsl is not installed.
    """
    try:
        from parsl.config import Config
    except ImportError as error:
        raise MissingDependencyError("parsl", "pipelines") from error
    if on == "threads":
        return _threads
    if on == "htex":
        return _htex
    path = Path(on)
    if path.suffix != ".py":
        raise PipelineError(
            f"--on {on!r} is none of threads, htex and azureml, and no Python file (CONFIG.py)."
        )
    if not path.is_file():
        raise PipelineError(f"The Parsl configuration {path} does not exist.")
    try:
        names = runpy.run_path(str(path))
    # The file is a person's own code: whatever it raises is reported as its fault, by name.
    except (Exception, SystemExit) as error:
        raise PipelineError(
            f"The Parsl configuration {path} fails: {type(error).__name__}: {error}"
        ) from error
    found = {id(v): v for v in names.values() if isinstance(v, Config)}
    if len(found) != 1:
        many = f"{len(found)} objects" if found else "no object"
        raise PipelineError(f"{path} must define one parsl.config.Config, but defines {many}.")
    config = next(iter(found.values()))
    return lambda _folder: config


def _threads(folder: Path) -> Any:
    from parsl.config import Config
    from parsl.executors import ThreadPoolExecutor

    # A step is a process of its own: threads only wait for them.
    pool = ThreadPoolExecutor(label="threads", max_threads=max(2, os.cpu_count() or 1))
    return Config(executors=[pool], run_dir=str(folder), strategy="none", usage_tracking=0)


def _htex(folder: Path) -> Any:
    from parsl.config import Config
    from parsl.executors import HighThroughputExecutor
    from parsl.providers import LocalProvider

    # Workers are started by name: the interpreter's folder has to be on their PATH.
    path = f'export PATH="{Path(sys.executable).parent}:$PATH"'
    provider: Any = LocalProvider  # Parsl leaves this class's arguments untyped
    pool = HighThroughputExecutor(
        label="htex",
        address="127.0.0.1",
        max_workers_per_node=max(2, os.cpu_count() or 1),
        provider=provider(init_blocks=1, max_blocks=1, worker_init=path),
    )
    return Config(executors=[pool], run_dir=str(folder), strategy="none", usage_tracking=0)


class Pool:
    """A Parsl data flow kernel of our own; several may live in one process.

    Args:
        make: Makes the configuration for a folder; see `load_config`.
        folder: Folder for Parsl's own files.
        monitor: Whether Parsl records its tasks in `folder/monitoring.db`, to be read as spans.
    """

    def __init__(self, make: Callable[[Path], Any], folder: Path, *, monitor: bool = False) -> None:
        from parsl import DataFlowKernel

        # Parsl warns of its own clean-up through logging; its log file in the folder keeps it all.
        logging.getLogger("parsl").setLevel(logging.ERROR)
        _put_interpreter_on_path()
        config = make(folder)
        if monitor and config.monitoring is None:
            config.monitoring = _monitoring(folder)
        _without_retries(config)
        with _children_ignoring_interrupts():
            self._kernel = DataFlowKernel(config)
        from parsl import python_app

        self._app = python_app(run_step, data_flow_kernel=self._kernel)
        self._mpi_app = python_app(_run_mpi_step, data_flow_kernel=self._kernel)
        self.mpi = any(_is_mpi(executor) for executor in self._kernel.executors.values())

    def submit(self, job: StepJob, needed: Sequence[Future[Outcome]]) -> Future[Outcome]:
        """Hand a step over; it starts when what it needs has finished."""
        if self.mpi:
            resources = {"num_nodes": job.instances, "ranks_per_node": job.processes}
            future = self._mpi_app(job, *needed, parsl_resource_specification=resources)
        else:
            future = self._app(job, *needed)
        typed: Future[Outcome] = future
        return typed

    def fault(self) -> str:
        """Return what part of Parsl is lost, so that steps would never end; empty where none is."""
        for label, executor in self._kernel.executors.items():
            process = getattr(executor, "interchange_proc", None)
            if process is not None and process.poll() is not None:
                return f"Parsl's interchange of {label} ended with {process.returncode}"
        return ""

    def close(self) -> None:
        """Let go of workers and nodes, in bounded time: Parsl waits for ever for a lost part."""
        seconds = _LOST_SEC if self.fault() else _CLEANUP_SEC
        cleaning = threading.Thread(target=self._kernel.cleanup, daemon=True, name="parsl-cleanup")
        cleaning.start()
        cleaning.join(seconds)
        if cleaning.is_alive():
            _log.warning("Parsl did not clean up within %.0f s and was left.", seconds)


@contextmanager
def _children_ignoring_interrupts() -> Iterator[None]:
    """Start processes that a Ctrl-C in the terminal does not reach.

    It goes to the whole foreground group. Parsl's own parts would end at once, and Parsl would then
    wait for their answers; the runner stops the steps first, and then Parsl.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _without_retries(config: Any) -> None:
    """Leave it to the step to repeat itself: Parsl would begin another MLflow run each time."""
    if config.retries:
        _log.warning(
            "The Parsl configuration's retries=%s is not used: give --retries %s to repeat steps.",
            config.retries, config.retries,
        )  # fmt: skip
        config.retries = 0


def _monitoring(folder: Path) -> Any:
    try:
        from parsl.monitoring import MonitoringHub
    except ImportError as error:
        raise MissingDependencyError("parsl[monitoring]", "pipelines") from error
    folder.mkdir(parents=True, exist_ok=True)
    facts: dict[str, Any] = {"logging_endpoint": f"sqlite:///{folder / MONITORING_DB}"}
    # Older versions of Parsl must have it, newer ones warn of it.
    if signature(MonitoringHub.__init__).parameters["hub_address"].default is Parameter.empty:
        facts["hub_address"] = "127.0.0.1"
    # Workers tell when a task begins and ends. Its resources in between are what `report()` is for.
    return MonitoringHub(**facts, resource_monitoring_interval=0)


def outcome_of(name: str, future: Future[Outcome]) -> Outcome:
    """Return how a step ended, whatever its future holds.

    Args:
        name: Name of the step.
        future: Its future, done.
    """
    error = future.exception()
    if error is None:
        return future.result()
    if isinstance(error, StepEndedError):
        return error.outcome
    if type(error).__name__ == "DependencyError":
        return Outcome(name, "SKIPPED")
    text = str(error).splitlines()[0] if str(error) else ""
    return Outcome(name, "FAILED", f"its worker was lost: {type(error).__name__}: {text}")


def _run_mpi_step(
    job: StepJob, *needed: Outcome, parsl_resource_specification: dict[str, Any] | None = None
) -> Outcome:
    """Run a step on the nodes that Parsl's MPI mode gives; the executor reads the specification."""
    del parsl_resource_specification
    return run_step(job, *needed)


def _is_mpi(executor: Any) -> bool:
    return bool(getattr(executor, "enable_mpi_mode", False))


def _put_interpreter_on_path() -> None:
    """Let Parsl find its own programs, which it starts by name."""
    folder = str(Path(sys.executable).parent)
    path = os.environ.get("PATH", os.defpath)
    if folder not in path.split(os.pathsep):
        os.environ["PATH"] = os.pathsep.join([folder, path])
