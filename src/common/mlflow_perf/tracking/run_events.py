"""Notices each MLflow run that this process starts or ends, by whatever call.

While nobody listens nothing of MLflow is changed. While somebody does, four methods of MLflow's
public classes are wrapped: every way to start or end a run leads through one of them. What they
take, return and raise stays as it is. Runs of mlflow-perf's own threads are not told.

This module imports no other library, because `import mlflow` loads it.
"""

from __future__ import annotations

import functools
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from mlflow_perf.core.handler_errors import is_from_handler
from mlflow_perf.core.own_cost import is_own_work
from mlflow_perf.core.safe_log import get_logger
from mlflow_perf.core.workspaces import read_workspace

_ENDED = ("FINISHED", "FAILED", "KILLED")
_MAX_WARNINGS = 10
_BACKDATED_SEC = 1.0
_log = get_logger(__name__)


@dataclass(frozen=True)
class StartedRun:
    """A run that this process started or resumed.

    Attributes:
        run_id: Its id.
        experiment_id: Its experiment.
        name: Its name.
        parent_id: The run of which it is a child; None without one.
        start_ms: Unix time of its start as MLflow has it, in milliseconds.
        tracking_uri: Its store, as the job writes it.
        is_new: Whether it was created just now.
        artifact_uri: Where it has its artifacts; None where that is unknown.
        is_backdated: Whether it was created with a start in the past, as a copied run is.
        workspace: Workspace of MLflow that has it; None where that is unknown.
    """

    run_id: str
    experiment_id: str
    name: str
    parent_id: str | None
    start_ms: int
    tracking_uri: str
    is_new: bool
    artifact_uri: str | None = None
    is_backdated: bool = False
    workspace: str | None = None


class RunListener(Protocol):
    """Hears of runs, in the thread that starts or ends them."""

    def run_started(self, run: StartedRun) -> None:
        """Is called when a run was started, also when it is started again."""
        ...

    def run_ending(self, run_id: str, status: str) -> None:
        """Is called before a run ends, even if its start was not noticed."""
        ...

    def run_ended(self, run_id: str) -> None:
        """Hear that MLflow has ended a run."""
        ...

    def run_deleted(self, run_id: str) -> None:
        """Hear that MLflow has deleted a run, which may be restored."""
        ...

    def run_restored(self, run_id: str) -> None:
        """Hear that MLflow has restored a deleted run."""
        ...


_listeners: list[RunListener] = []
_warned: set[str] = set()
_originals: dict[tuple[type, str], tuple[Any, Any]] = {}


def listen(listener: RunListener) -> None:
    """Tell a listener of the runs of this process from now on; MLflow must be imported."""
    if listener not in _listeners:
        _listeners.append(listener)
    # Not from `mlflow` itself, which may be in the middle of its own import.
    from mlflow.tracking.client import MlflowClient
    from mlflow.tracking.fluent import ActiveRun

    for owner, name, wrap in (
        (MlflowClient, "create_run", _wrap_create),
        (MlflowClient, "set_terminated", _wrap_terminate),
        (MlflowClient, "update_run", _wrap_terminate),
        (MlflowClient, "delete_run", _wrap_delete),
        (MlflowClient, "restore_run", _wrap_delete),
        (ActiveRun, "__init__", _wrap_activate),
    ):
        if (owner, name) in _originals:
            continue
        original = getattr(owner, name)
        wrapped = functools.wraps(original)(wrap(original))
        _originals[owner, name] = original, wrapped
        setattr(owner, name, wrapped)


def stop_listening(listener: RunListener) -> None:
    """Take a listener out; after the last one MLflow is as it was."""
    if listener in _listeners:
        _listeners.remove(listener)
    if _listeners:
        return
    for (owner, name), (original, wrapped) in list(_originals.items()):
        # Somebody may have wrapped our wrapper, which then only passes everything on.
        if getattr(owner, name) is wrapped:
            setattr(owner, name, original)
            del _originals[owner, name]


def _tell(tell: Callable[[RunListener], None]) -> None:
    if is_own_work():
        return
    for listener in tuple(_listeners):
        try:
            tell(listener)
        except Exception as error:  # whatever fails here, MLflow goes on
            if is_from_handler(error):
                raise
            # A fault of ours may come back with each run of thousands: one line is enough.
            text = f"{type(error).__name__}: {error}".partition("\n")[0]
            if text not in _warned and len(_warned) < _MAX_WARNINGS:
                _warned.add(text)
                _log.warning("The performance of a run is not reported: %s", text)
            _log.debug("Not reported:", exc_info=True)


def _tell_started(
    run: Any, uri: Callable[[], object], *, is_new: bool, called_at: float = 0.0
) -> None:
    def tell(listener: RunListener) -> None:
        info, tags = run.info, run.data.tags
        if not isinstance(info.run_id, str):  # the stand-in of a test
            return
        started = StartedRun(
            info.run_id,
            str(info.experiment_id),
            str(info.run_name or ""),
            tags.get("mlflow.parentRunId"),
            int(info.start_time or 0),
            str(uri()),
            is_new,
            info.artifact_uri,
            # Not of now: a slow server takes seconds to create the run.
            is_backdated=int(info.start_time or 0) < 1000 * (called_at - _BACKDATED_SEC),
            workspace=read_workspace(),
        )
        listener.run_started(started)

    if _listeners:
        _tell(tell)


def _wrap_create(original: Callable[..., Any]) -> Callable[..., Any]:
    def create_run(client: Any, *args: Any, **kwargs: Any) -> Any:
        called_at = time.time()
        run = original(client, *args, **kwargs)
        _tell_started(run, lambda: client.tracking_uri, is_new=True, called_at=called_at)
        return run

    return create_run


def _wrap_activate(original: Callable[..., Any]) -> Callable[..., Any]:
    # `start_run` makes one for a run that it created, and for one that it resumed.
    def activate(active: Any, *args: Any, **kwargs: Any) -> None:
        original(active, *args, **kwargs)
        _tell_started(active, sys.modules["mlflow"].get_tracking_uri, is_new=False)

    return activate


def _wrap_terminate(original: Callable[..., Any]) -> Callable[..., Any]:
    def terminate(client: Any, run_id: Any, status: Any = None, *args: Any, **kwargs: Any) -> Any:
        is_end = original.__name__ == "set_terminated" or status in _ENDED
        is_end = is_end and (status is None or status in _ENDED)
        if not (is_end and _listeners):
            return original(client, run_id, status, *args, **kwargs)
        _tell(lambda listener: listener.run_ending(str(run_id), status or "FINISHED"))
        try:
            return original(client, run_id, status, *args, **kwargs)
        finally:
            _tell(lambda listener: listener.run_ended(str(run_id)))

    return terminate


def _wrap_delete(original: Callable[..., Any]) -> Callable[..., Any]:
    told = "run_deleted" if original.__name__ == "delete_run" else "run_restored"

    def delete_or_restore(client: Any, run_id: Any, *args: Any, **kwargs: Any) -> Any:
        answer = original(client, run_id, *args, **kwargs)
        _tell(lambda listener: getattr(listener, told)(str(run_id)))
        return answer

    return delete_or_restore
