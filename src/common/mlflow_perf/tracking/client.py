"""Which run of an MLflow store: found, made or deleted. Imports delivery, errors.

Everything goes through `MlflowClient` and a run's id: the fluent interface keeps the active run per
thread and would open a second run from ours.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from mlflow_perf.core.uris import redact_password
from mlflow_perf.errors import RunNotFoundError
from mlflow_perf.tracking.batches import clean_text
from mlflow_perf.tracking.delivery import Delivery

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

__all__ = [
    "Target",
    "chosen_experiment",
    "client_of",
    "discard_run",
    "end_run",
    "experiment_of",
    "find_run",
    "new_run",
    "open_run",
]

_LONGEST_NAME = 250


@dataclass
class Target:
    """A run that can be written to.

    Attributes:
        run_id: Its id.
        own: Whether we made it, and so end it.
        experiment_id: The experiment that holds it.
        tags: The tags that it had when we last looked.
    """

    run_id: str
    own: bool = False
    experiment_id: str | None = None
    tags: dict[str, str] = field(default_factory=dict)


def client_of(tracking_uri: str | None) -> MlflowClient:
    """Return a client of a store; of the current one where none is named."""
    from mlflow import MlflowClient

    return MlflowClient(tracking_uri=tracking_uri or None)


def _target(run: Run, *, own: bool) -> Target:
    return Target(run.info.run_id, own, run.info.experiment_id, dict(run.data.tags))


def open_run(run_id: str, *, tracking_uri: str | None = None) -> Target:
    """Return a run that exists.

    Raises:
        RunNotFoundError: When the store answers that it has no such run, or that it was deleted.
        Exception: Whatever MLflow raises when the store does not answer.
    """
    from mlflow.exceptions import MlflowException

    try:
        run = client_of(tracking_uri).get_run(run_id)
    except MlflowException as error:
        if error.error_code not in ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE"):
            raise
        raise RunNotFoundError(
            f"There is no MLflow run {run_id!r} at {_where(tracking_uri)}."
        ) from None
    if run.info.lifecycle_stage == "deleted":
        raise RunNotFoundError(f"The MLflow run {run_id!r} at {_where(tracking_uri)} was deleted.")
    return _target(run, own=False)


def _where(tracking_uri: str | None) -> str:
    import mlflow

    return redact_password(tracking_uri or mlflow.get_tracking_uri())


def new_run(
    name: str,
    *,
    tracking_uri: str | None = None,
    experiment_id: str | None = None,
    tags: Mapping[str, str] | None = None,
    started: float | None = None,
) -> Target:
    """Make a run, with the tags that `mlflow.start_run` would give it, and return it.

    Args:
        name: Its name.
        tracking_uri: The store; default: the current one.
        experiment_id: Its experiment; default: the one in which `mlflow.start_run` would make it.
        tags: More tags.
        started: Unix time at which it began, where that was earlier.

    Raises:
        Exception: Whatever MLflow raises when the store does not answer.
    """
    from mlflow.tracking.context.registry import resolve_tags

    run = client_of(tracking_uri).create_run(
        experiment_id or _current_experiment_id(tracking_uri),
        start_time=None if started is None else int(1000 * started),
        tags=resolve_tags(tags),
        run_name=clean_text(name, _LONGEST_NAME),
    )
    return _target(run, own=True)


def find_run(tag: str, value: str, *, tracking_uri: str | None = None) -> Target | None:
    """Return the newest run of the current experiment with a tag, or None.

    Raises:
        Exception: Whatever MLflow raises when the store does not answer.
    """
    text = value.replace("'", "")
    found = client_of(tracking_uri).search_runs(
        [_current_experiment_id(tracking_uri)], f"tags.`{tag}` = '{text}'", max_results=1
    )
    return _target(found[0], own=False) if found else None


def discard_run(run_id: str, *, tracking_uri: str | None = None) -> None:
    """Delete a run that was made for nothing: its job's report is elsewhere.

    Raises:
        Exception: Whatever MLflow raises when the store does not answer.
    """
    client_of(tracking_uri).delete_run(run_id)


def end_run(client: MlflowClient, run_id: str, status: str, *, ended: float) -> None:
    """Set a run's status and end, in silence.

    `MlflowClient.set_terminated` prints two lines to the standard output of the job or command,
    which is not ours, with the address of the server and a password in it.

    Args:
        client: Of the store.
        run_id: The run.
        status: `FINISHED`, `FAILED` or `KILLED`.
        ended: Unix time of its end.

    Raises:
        Exception: Whatever MLflow raises when the store does not answer.
    """
    from mlflow.entities import RunStatus

    at_ms = int(1000 * ended)
    try:
        store = client._tracking_client.store  # noqa: SLF001 - see above
    except AttributeError:
        client.set_terminated(run_id, status, at_ms)
    else:
        store.update_run_info(run_id, RunStatus.from_string(status), at_ms, None)


def chosen_experiment() -> tuple[str | None, str | None]:
    """Return id and name of the experiment that was asked for, without asking any server."""
    # What `set_experiment` chose; not public, and there only once MLflow is imported.
    fluent = sys.modules.get("mlflow.tracking.fluent")
    chosen = getattr(fluent, "_active_experiment_id", None)
    if chosen:
        return str(chosen), None
    name = os.environ.get("MLFLOW_EXPERIMENT_NAME") or None
    return (None if name else os.environ.get("MLFLOW_EXPERIMENT_ID") or None), name


def experiment_of(delivery: Delivery) -> str | None:
    """Return the experiment that was asked for when the job ran, made if need be.

    Raises:
        Exception: Whatever MLflow raises when the store does not answer.
    """
    if delivery.experiment_id is not None or delivery.experiment_name is None:
        return delivery.experiment_id
    client = client_of(delivery.tracking_uri)
    found = client.get_experiment_by_name(delivery.experiment_name)
    if found is not None:
        return str(found.experiment_id)
    return str(client.create_experiment(delivery.experiment_name))


def _current_experiment_id(tracking_uri: str | None) -> str:
    """Return the experiment in which `mlflow.start_run` would make a run now."""
    import mlflow

    if tracking_uri in (None, "", mlflow.get_tracking_uri()):
        with contextlib.suppress(ImportError):
            # Not public, but the only way to what `set_experiment` and the platform chose.
            from mlflow.tracking.fluent import _get_experiment_id

            return str(_get_experiment_id())
    if experiment_id := os.environ.get("MLFLOW_EXPERIMENT_ID"):
        return experiment_id
    name = os.environ.get("MLFLOW_EXPERIMENT_NAME")
    found = client_of(tracking_uri).get_experiment_by_name(name) if name else None
    return "0" if found is None else str(found.experiment_id)
