"""What a machine needs to run a step of a pipeline.

It is pickled, because the executor sends it between machines.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from mlflow_perf.core.settings import read_setting
from mlflow_perf.core.uris import absolute_store, is_same_store
from mlflow_perf.errors import SettingError
from mlflow_perf.node.place import hide_launcher
from mlflow_perf.node.step_notes import ENDED, STOP_NOTE_VARIABLE
from mlflow_perf.pipelines.graph import Step
from mlflow_perf.pipelines.launch import WRAPPER, make_search_path, name_python
from mlflow_perf.pipelines.processes import Limits
from mlflow_perf.pipelines.runner_process import RunnerProcess
from mlflow_perf.pipelines.step_sizes import StepSize
from mlflow_perf.publish.step_record import StepRecord
from mlflow_perf.publish.workflow_writer import Place
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
            is_followed: Whether its only command is started by a wrapper, be it on another node:
                the worker may be lost while the report is on its way.
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
