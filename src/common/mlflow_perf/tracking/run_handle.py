"""The handle of one recording's MLflow run, shared by everything that reports to that run."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import quote

from mlflow_perf.core.threads import Lock
from mlflow_perf.core.tokens import make_token
from mlflow_perf.core.uris import encode_query, is_http, is_local, strip_credentials
from mlflow_perf.core.workspaces import read_workspace
from mlflow_perf.tracking.page_probe import PAGE_PATH

if TYPE_CHECKING:
    from mlflow_perf.tracking.run_events import StartedRun

__all__ = [
    "JOB_TAG", "PARENT_STORE_VARIABLE", "PARENT_VARIABLE", "STEP_VARIABLE", "Claim",
    "PipelineStep", "RunHandle", "find_step",
]  # fmt: skip

PARENT_VARIABLE = "MLFLOW_PERF_PARENT"
"""Environment variable with the id of the run of which each report's own run is a child."""

PARENT_STORE_VARIABLE = "MLFLOW_PERF_PARENT_STORE"
"""Environment variable with the store of that run; without it, a store is asked for the run."""

STEP_VARIABLE = "MLFLOW_PERF_STEP"
"""Environment variable of the processes of a pipeline's step: a `PipelineStep` as JSON."""

JOB_TAG = "mlflow_perf.job_key"
"""Tag of a run that the nodes of a job share, with the key of their launch."""

_MAKING_SEC = 60.0


@dataclass(frozen=True)
class PipelineStep:
    """A step of a pipeline, as its runner names it to the step's processes.

    Attributes:
        parent: The run of the pipeline.
        step: Name of the step.
        store: The store of its run, whichever one its script chooses.
        experiment: Id of the experiment of its run.
        run_id: Its run; None where MLflow made none: the runner makes it, once it can.
    """

    parent: str
    step: str
    store: str
    experiment: str
    run_id: str | None = None


def find_step() -> PipelineStep | None:
    """Return the step of a pipeline that this process is in; None in a group inside it."""
    if os.environ.get(PARENT_VARIABLE):
        return None
    try:
        return PipelineStep(**json.loads(os.environ.get(STEP_VARIABLE, "")))
    except (TypeError, ValueError):
        return None


def _find_folder() -> str:
    try:
        return os.getcwd()  # noqa: PTH109 - a text
    except OSError:  # it was deleted
        return ""


@dataclass
class RunHandle:
    """Where a recording reports to: an MLflow run, or the place where to create it.

    Session, journal, delivery and live curves share one handle. When a run is created while the job
    runs, all of them know it at once.

    Attributes:
        tracking_uri: The MLflow store.
        run_name: Name of a run that is still to be created.
        run_id: Id of the run; None while there is none.
        own_run: Whether the run was created for this recording, which then ends it too.
        experiment_id: The run's experiment, or the one in which to create it; None if unknown.
        experiment_name: Name of that experiment, until a server has returned its id.
        started: Unix time at which the run begins; None lets it begin when it is created.
        parent_id: Run of which a new run is a child: `MLFLOW_PERF_PARENT`; None for none.
        is_apart: Whether the report was sent to a store that has no run `parent_id`.
        job_key: Key of the launch whose nodes share the run; None for a run of one process.
        workspace: Workspace of MLflow that has the run, or in which to create it; empty for the
            server's default one, None if that is unknown.
        artifact_uri: Where the run has its artifacts; None while that is unknown.
        has_page: Whether the store's server is known to have the page `/perf`.
        folder: Where the job runs, to which a store may be relative; empty if that is unknown.
        nonce: Tag of a run that is created for this handle. It finds the run again after the
            server's answer was lost.
    """

    tracking_uri: str = ""
    run_name: str | None = None
    run_id: str | None = None
    own_run: bool = False
    experiment_id: str | None = None
    experiment_name: str | None = None
    started: float | None = None
    parent_id: str | None = field(default_factory=lambda: os.environ.get(PARENT_VARIABLE) or None)
    is_apart: bool = False
    job_key: str | None = None
    workspace: str | None = field(default_factory=read_workspace)
    artifact_uri: str | None = None
    has_page: bool = False
    folder: str = field(default_factory=_find_folder)
    nonce: str = field(default_factory=lambda: make_token(8))
    lock: threading.Lock = field(default_factory=Lock, repr=False, compare=False)
    making: threading.Lock = field(default_factory=Lock, repr=False, compare=False)

    def list_tags(self) -> dict[str, str]:
        """Return the tags by which a new run is its parent's child and found by its job's nodes."""
        tags = {"mlflow.parentRunId": self.parent_id, JOB_TAG: self.job_key}
        return {name: value for name, value in tags.items() if value is not None}

    @property
    def is_left(self) -> bool:
        """Whether its reports are kept for the runner of a pipeline, which makes the run later.

        A second one would be a step of its own.
        """
        step = find_step()
        return step is not None and step.run_id is None and self.run_id is None

    def link(self) -> str | None:
        """Return the address of the run's page on its server; None where there is no such page."""
        if self.run_id is None or not is_http(self.tracking_uri):
            return None
        address = strip_credentials(self.tracking_uri).rstrip("/")
        if self.has_page:
            query = encode_query(id=self.run_id, workspace=self.workspace)
            return f"{address}{PAGE_PATH}/run?{query}"
        if self.experiment_id is None:
            return None
        run_id = quote(self.run_id, safe="")
        place = f"experiments/{quote(self.experiment_id, safe='')}/runs/{run_id}"
        query = encode_query(workflowType="machine_learning", workspace=self.workspace)
        return f"{address}/#/{place}?{query}"

    def use(self, run: StartedRun) -> None:
        """Report to a run that somebody else created, perhaps in another store or workspace."""
        with self.lock:
            self.tracking_uri, self.run_id, self.own_run = run.tracking_uri, run.run_id, False
            self.experiment_id, self.experiment_name = run.experiment_id, None
            self.workspace = run.workspace

    @contextmanager
    def creating(self) -> Iterator[None]:
        """Let one thread at a time create the run, where the store is on this machine.

        On a busy machine a second attempt would be as slow as the first, and its run be deleted. A
        server may answer the second attempt and not the first, so no thread waits for it.
        """
        is_held = is_local(self.tracking_uri) and self.making.acquire(timeout=_MAKING_SEC)
        try:
            yield
        finally:
            if is_held:
                self.making.release()

    def claim(self) -> Claim:
        """Return the permission to create this handle's run."""
        return Claim(self)


class Claim:
    """The permission to create the run of a handle, until it is withdrawn.

    A slow server may create a run when the caller no longer waits for it. Such a run must not be
    used: by then the report goes to another run, or `mlflow-perf recover` will create one. Two
    threads may create the run of one handle: the first one that has it wins.

    Args:
        run: The handle.
    """

    def __init__(self, run: RunHandle) -> None:
        self._run = run
        self._is_withdrawn = False

    def adopt(self, run_id: str, *, own: bool, experiment_id: str | None) -> bool:
        """Let the handle use a run.

        Args:
            run_id: Id of the run.
            own: Whether it was created for this recording.
            experiment_id: The run's experiment.

        Returns:
            Whether the handle uses it: not after `withdraw`, and not when it has another run.
        """
        run = self._run
        with run.lock:
            if run.run_id is not None:
                return run.run_id == run_id  # another thread has found it by its nonce
            if self._is_withdrawn:
                return False
            run.own_run, run.experiment_id, run.experiment_name = own, experiment_id, None
            run.workspace = read_workspace()  # in which this thread has found or created it
            run.run_id = run_id
            return True

    @property
    def is_open(self) -> bool:
        """Whether a run is still wanted."""
        return not self._is_withdrawn and self._run.run_id is None

    def withdraw(self) -> None:
        """Refuse every run from now on."""
        with self._run.lock:
            self._is_withdrawn = True
