"""Run steps on Parsl: a thread pool, HTEX on this machine, or any Parsl configuration file.

Parsl is imported by this module and `worker_pool` only.
"""

from __future__ import annotations

import logging
import os
import runpy
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from functools import partial
from getpass import getuser
from inspect import Parameter, signature
from pathlib import Path
from typing import Any

from mlflow_perf.core.extras import needing
from mlflow_perf.core.safe_log import get_logger
from mlflow_perf.errors import PipelineError
from mlflow_perf.pipelines import worker_pool
from mlflow_perf.pipelines.allocation import ask_providers, make_specification
from mlflow_perf.pipelines.interrupts import replace_handler
from mlflow_perf.pipelines.lost_step import may_go_on
from mlflow_perf.pipelines.step import run_step
from mlflow_perf.pipelines.step_job import StepJob
from mlflow_perf.pipelines.step_outcome import Outcome, StepEndedError
from mlflow_perf.pipelines.step_sizes import StepSize

MONITORING_DB = "monitoring.db"
"""Name of the file in which Parsl records its tasks when monitoring is on."""

_CLEANUP_SEC = 30.0
_LOST_SEC = 3.0
_APART = """
import ctypes, os, signal, sys
os.setsid()
if hasattr(libc := ctypes.CDLL(None), "prctl"):
    libc.prctl(1, signal.SIGKILL)
os.execvp(sys.argv[1], sys.argv[1:])
"""
"""Starts Parsl's interchange. A signal to all processes of the pipeline is the runner's: it needs
the interchange to stop its steps, and Parsl needs it to release nodes. Without the runner it ends
(`PR_SET_PDEATHSIG`); then Parsl's workers end, too, and with them the nodes' jobs.
"""
_MOST_LOSSES = 10
"""So often a step may lose its worker before it begins: with each end of a queue of allocations."""
_EXECUTOR_LOST = ("BadStateException", "TooManyJobFailuresError")
"""What Parsl raises for a task that an executor had when it failed, and for one that came later."""
_log = get_logger("mlflow_perf.pipelines")


def load_config(on: str) -> Callable[[Path], Any]:
    """Return a function that makes the Parsl configuration for a folder.

    Args:
        on: `threads`, `htex` or the path of a Python file that defines a `parsl.Config`.

    Raises:
        PipelineError: The file does not exist, fails, or defines no configuration or several.
        MissingDependencyError: Parsl is not installed.
    """
    with needing("parsl", "pipelines"):
        from parsl.config import Config
    if on in ("threads", "htex"):
        return partial(_make_local_config, on)
    path = Path(on)
    if path.suffix != ".py":
        raise PipelineError(
            f"--on {on!r} is none of threads, htex and azureml, and no Python file (CONFIG.py)."
        )
    if not path.is_file():
        raise PipelineError(f"The Parsl configuration {path} does not exist.")
    try:
        names = runpy.run_path(str(path))
    # The file is the user's own code: whatever it raises is reported as an error of that file.
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


def _make_local_config(on: str, folder: Path) -> Any:
    """Return the configuration of `threads` or `htex`, both on this machine."""
    from parsl.config import Config
    from parsl.executors import HighThroughputExecutor, ThreadPoolExecutor
    from parsl.providers import LocalProvider

    workers = max(2, os.cpu_count() or 1)
    if on == "threads":
        # Each step runs in its own process; the threads only wait for it.
        pool: Any = ThreadPoolExecutor(label=on, max_threads=workers)
    else:
        # Parsl starts workers by name, so the interpreter's folder must be on their PATH.
        path = f'export PATH="{Path(sys.executable).parent}:$PATH"'
        provider: Any = LocalProvider  # Parsl leaves this class's arguments untyped
        pool = HighThroughputExecutor(
            label=on,
            address="127.0.0.1",
            max_workers_per_node=workers,
            provider=provider(init_blocks=1, max_blocks=1, worker_init=path),
        )
    return Config(executors=[pool], run_dir=str(folder), strategy="none", usage_tracking=0)


class Pool:
    """A Parsl data flow kernel of its own; several can exist in one process.

    Args:
        make: Makes the configuration for a folder; see `load_config`.
        folder: Folder for Parsl's own files.
        monitor: Whether Parsl records its tasks in `folder/monitoring.db`, to be read as spans.
        sizes: What each step asks for; the allocations are made large enough.

    Raises:
        PipelineError: When Parsl cannot be started.
    """

    def __init__(
        self,
        make: Callable[[Path], Any],
        folder: Path,
        *,
        monitor: bool = False,
        sizes: Mapping[str, StepSize] | None = None,
    ) -> None:
        from parsl import DataFlowKernel, python_app

        # Parsl logs all that it does; its log file in the folder keeps that.
        logging.getLogger("parsl").setLevel(logging.ERROR)
        logging.getLogger("parsl").propagate = False
        logging.raiseExceptions = False  # no traceback for each line that does not fit on a disk
        # Parsl starts its own programs by name.
        programs = str(Path(sys.executable).parent)
        path = os.environ.get("PATH", os.defpath)
        if programs not in path.split(os.pathsep):
            os.environ["PATH"] = os.pathsep.join([programs, path])
        config = make(folder)
        for executor in config.executors:
            prepare_executor(executor)
        ask_providers(config.executors, sizes or {})
        if monitor and config.monitoring is None:
            config.monitoring = _make_monitoring(folder)
        if config.retries:
            # The step repeats itself; a retry of Parsl would begin another MLflow run.
            _log.warning(
                "The Parsl configuration's retries=%s is not used: "
                "give --retries %s to repeat steps.",
                config.retries,
                config.retries,
            )
        config.retries, config.retry_handler = _MOST_LOSSES, self._price_repeat
        # A terminal sends Ctrl-C, and its own end, to its whole group. Parsl's processes ignore it:
        # they would end at once, and Parsl would wait for their answers. The runner stops the steps
        # first.
        with ExitStack() as stack:
            for name in ("SIGINT", "SIGHUP"):
                if hasattr(signal, name):
                    number = getattr(signal, name)
                    stack.enter_context(replace_handler(number, signal.SIG_IGN))
            stack.enter_context(_user_named())
            try:
                self._kernel = DataFlowKernel(config)
            except Exception as error:
                why = f"{type(error).__name__}: {error}"
                raise PipelineError(f"Parsl could not be started: {why}") from error
        self._app = python_app(run_step, data_flow_kernel=self._kernel)
        # The other executors of a kernel run Parsl's own tasks.
        found = self._kernel.executors.items()
        self._executors = [one for label, one in found if label != "_parsl_internal"]
        self.mpi = any(getattr(one, "enable_mpi_mode", False) for one in self._executors)

    def submit(self, job: StepJob, needed: Sequence[Future[Outcome]]) -> Future[Outcome]:
        """Submit a step; it starts when the steps that it needs have finished."""
        options: dict[str, Any] = {}
        if self.mpi:
            nodes = {"num_nodes": job.step.instances, "ranks_per_node": job.step.processes}
            options["parsl_resource_specification"] = nodes
        elif asked := make_specification(self._executors, job.size):
            options["parsl_resource_specification"] = asked
        future: Future[Outcome] = self._app(job, *needed, **options)
        return future

    def fault(self) -> str:
        """Return which part of Parsl was lost, so that no step can end; empty if none was."""
        for label, executor in self._kernel.executors.items():
            process = getattr(executor, "interchange_proc", None)
            if process is not None and process.poll() is not None:
                return f"Parsl's interchange of {label} ended with {process.returncode}"
        return ""

    def _price_repeat(self, error: Exception, task: dict[str, Any]) -> int:
        """Return 1 for a task that another worker may have, for others more than Parsl may pay.

        Args:
            error: What ended it.
            task: Parsl's record of it; names the executor that gets it next.
        """
        job = next(iter(task["args"]), None)
        may_repeat = isinstance(job, StepJob) and may_go_on(job)
        kind = type(error).__name__
        if may_repeat and kind in _EXECUTOR_LOST:
            whole = [e for e in self._executors if not getattr(e, "bad_state_is_set", False)]
            if whole:
                task["executor"] = min(whole, key=lambda e: getattr(e, "outstanding", 0)).label
                return 1
        return 1 if may_repeat and kind in ("ManagerLost", "WorkerLost") else _MOST_LOSSES + 1

    def close(self) -> None:
        """Release workers and nodes in bounded time: Parsl would wait forever for a lost part."""
        seconds = _LOST_SEC if self.fault() else _CLEANUP_SEC
        cleaning = threading.Thread(target=self._kernel.cleanup, daemon=True, name="parsl-cleanup")
        cleaning.start()
        cleaning.join(seconds)
        if not cleaning.is_alive():
            return
        _log.warning("Parsl did not clean up within %.0f s and was left.", seconds)

        def release() -> None:
            for executor in self._executors:
                provider: Any = getattr(executor, "provider", None)
                jobs = [*map(str, getattr(executor, "blocks_to_job_id", {}).values())]
                try:
                    is_released = not jobs or all(provider.cancel(jobs))
                except Exception as error:  # noqa: BLE001 - a provider of Parsl's, or the user's
                    _log.debug("%s cannot be released:", jobs, exc_info=error)
                    is_released = False
                if not is_released:
                    _log.warning("What Parsl asked for may go on: %s. Cancel it.", ", ".join(jobs))

        releasing = threading.Thread(target=release, daemon=True, name="parsl-release")
        releasing.start()
        releasing.join(_CLEANUP_SEC)


def prepare_executor(executor: Any) -> None:
    """Keep Parsl's own programs from ends and hangs that a pipeline would share."""
    if command := getattr(executor, "interchange_launch_cmd", None):
        executor.interchange_launch_cmd = [sys.executable, "-c", _APART, *command]
    if getattr(executor, "enable_mpi_mode", False):
        executor.launch_cmd = executor.launch_cmd.replace(
            "process_worker_pool.py", f"python3 -m {worker_pool.__name__}", 1
        )


@contextmanager
def _user_named() -> Iterator[None]:
    """Let Parsl log the number of a user without a name, as containers have, and not fail."""
    from parsl.dataflow import dflow

    def name_user() -> str:
        try:
            return getuser()
        except (KeyError, OSError):
            return str(os.getuid())

    facts: Any = dflow
    before, facts.getuser = facts.getuser, name_user
    try:
        yield
    finally:
        facts.getuser = before


def _make_monitoring(folder: Path) -> Any:
    with needing("parsl[monitoring]", "pipelines"):
        from parsl.monitoring import MonitoringHub
    folder.mkdir(parents=True, exist_ok=True)
    facts: dict[str, Any] = {"logging_endpoint": f"sqlite:///{folder / MONITORING_DB}"}
    # Older versions of Parsl require it, newer ones warn about it.
    if signature(MonitoringHub.__init__).parameters["hub_address"].default is Parameter.empty:
        facts["hub_address"] = "127.0.0.1"
    # Only the begin and end of tasks is recorded; `report()` measures the resources in between.
    return MonitoringHub(**facts, resource_monitoring_interval=0)


def read_outcome(name: str, future: Future[Outcome], *, had_workers: bool) -> Outcome:
    """Return the outcome of a step, whatever its future holds.

    Args:
        name: Name of the step.
        future: Its future, done.
        had_workers: Whether a step of the pipeline has begun.
    """
    error = future.exception()
    if error is None:
        return future.result()
    if isinstance(error, StepEndedError):
        return error.outcome
    if type(error).__name__ == "DependencyError":
        return Outcome(name, "SKIPPED")
    # The scheduler's own words follow in further lines, and some are said once per block.
    lines = dict.fromkeys(line.strip() for line in str(error).splitlines() if line.strip())
    text = " ".join(lines)[:600].rstrip(".")
    began = "all its workers were lost" if had_workers else "no worker could be started"
    if type(error).__name__ not in _EXECUTOR_LOST:
        began = f"its worker was lost: {type(error).__name__}"
    return Outcome(name, "FAILED", f"{began}: {text}")
