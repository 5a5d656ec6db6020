"""Finding, creating, ending and deleting runs of an MLflow store.

Everything goes through `MlflowClient` and the id of a run. The fluent interface keeps an active run
per thread, and would open a second run beside ours.
"""

from __future__ import annotations

import contextlib
import functools
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from mlflow_perf.core.own_cost import as_own
from mlflow_perf.core.uris import absolute_store, is_http, redact_password
from mlflow_perf.core.workspaces import read_workspace, working_in
from mlflow_perf.errors import RunNotFoundError
from mlflow_perf.node.children import notices_children
from mlflow_perf.tracking.batches import clean_tags, clean_text
from mlflow_perf.tracking.fork_guard import call_inside, call_remote
from mlflow_perf.tracking.mlflow_call import refuse_replaced_network
from mlflow_perf.tracking.opened_store import opening_store
from mlflow_perf.tracking.perf_run import PARENT_TAG, STEPS_TAG
from mlflow_perf.tracking.run_handle import PARENT_STORE_VARIABLE, RunHandle

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

_MAX_NAME = 250


def open_client(tracking_uri: str | None) -> MlflowClient:
    """Return a client of a store; without a URI, of the store that MLflow is using.

    Raises:
        RuntimeError: When it must not be asked from this thread.
    """
    import mlflow

    # MLflow keeps one connection for each address as it is written.
    if not tracking_uri or is_current(tracking_uri):
        tracking_uri = str(mlflow.get_tracking_uri())
    refuse_replaced_network(tracking_uri)
    return _make_client(mlflow.MlflowClient, tracking_uri)


@functools.lru_cache(maxsize=8)
def _make_client(kind: type[MlflowClient], tracking_uri: str) -> MlflowClient:
    # Making one takes 0.2 ms. It has no state of its own: MLflow looks up the store at each call.
    guarded = _find_guard(tracking_uri)

    class OwnClient(kind):  # type: ignore[misc, valid-type]
        """Leaves nothing behind that the job's forks would wait for.

        Where the job logs asynchronously, calls would start MLflow's queue again after the job's
        run; what the job forks then waits for the queue's threads, which it does not have.
        """

        def __getattribute__(self, name: str) -> Any:
            found = super().__getattribute__(name)
            if name.startswith("_") or not callable(found):
                return found
            if name in ("log_batch", "set_tag"):
                found = functools.partial(found, synchronous=True)
            return functools.partial(guarded, found)

    with opening_store(tracking_uri):
        client: MlflowClient = guarded(OwnClient, tracking_uri=tracking_uri)
    return client


def _find_guard(tracking_uri: str) -> Callable[..., Any]:
    return call_remote if is_http(tracking_uri) else call_inside


def is_current(tracking_uri: str) -> bool:
    """Return whether MLflow uses this store now, perhaps by a relative address."""
    import mlflow

    with contextlib.suppress(OSError):  # the working folder was deleted
        return absolute_store(str(mlflow.get_tracking_uri())) == tracking_uri
    return False


def open_run(run_id: str, *, tracking_uri: str | None = None) -> Run:
    """Return a run that exists.

    Raises:
        RunNotFoundError: When the store answers that it has no such run, or that it was deleted.
        Exception: Whatever MLflow raises when the store does not answer.
    """
    import mlflow
    from mlflow.exceptions import MlflowException

    missing = "There is no MLflow run {!r} at {}."
    try:
        run = open_client(tracking_uri).get_run(run_id)
        if run.info.lifecycle_stage != "deleted":
            return run
        missing = "The MLflow run {!r} at {} was deleted."
    except MlflowException as error:
        if error.error_code not in ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE"):
            raise
    store = redact_password(tracking_uri or mlflow.get_tracking_uri())
    raise RunNotFoundError(missing.format(run_id, store))


@as_own()  # it is not one of the job's runs, which autolog reports
def create_run(
    name: str,
    *,
    tracking_uri: str | None = None,
    experiment_id: str | None = None,
    tags: Mapping[str, str] | None = None,
    started: float | None = None,
) -> Run:
    """Create a run with the tags that `mlflow.start_run` would give it, and return it.

    Only the commit is left out where the job would notice the end of a child, and a parent that is
    in another store.

    Args:
        name: Its name.
        tracking_uri: The store; default: the one that MLflow uses now.
        experiment_id: Its experiment; default: the one that `mlflow.start_run` would use.
        tags: More tags.
        started: Unix time of its start; default: now.

    Raises:
        Exception: Whatever MLflow raises when the store does not answer.
    """
    from mlflow.tracking.context.git_context import GitRunContext
    from mlflow.tracking.context.registry import resolve_tags

    # It asks git, and gevent starts children from the job's thread alone.
    is_replaced = subprocess.Popen.__module__ != "subprocess"
    ignored = [GitRunContext] if notices_children() or is_replaced else None
    resolved = call_inside(resolve_tags, tags, ignore=ignored)  # it tries to import notebooks
    if not has_parent(resolved.get(PARENT_TAG, ""), tracking_uri=tracking_uri):
        resolved.pop(PARENT_TAG, None)
    client = open_client(tracking_uri)
    made = client.create_run(
        experiment_id or find_current_experiment(tracking_uri),
        start_time=None if started is None else int(1000 * started),
        tags=clean_tags(resolved, client.tracking_uri),
        run_name=clean_text(name, _MAX_NAME),
    )
    if not made.info.run_id:  # of a gateway that answers in the server's place
        raise ConnectionError("the tracking server answered, but with no run")
    return made


def discard_run(run_id: str, *, tracking_uri: str | None = None) -> None:
    """Delete a run that is not needed, because its job's report went elsewhere.

    Raises:
        Exception: Whatever MLflow raises when the store does not answer.
    """
    client = open_client(tracking_uri)
    end_run(client, run_id, "KILLED", ended=time.time())  # else it is RUNNING among the deleted
    client.delete_run(run_id)


@contextlib.contextmanager
def forgetting_artifacts(run_id: str) -> Iterator[None]:
    """Let MLflow forget the repository of a run's artifacts afterwards, unless the job has used it.

    MLflow keeps one for each run, with a pool of threads: 20 kB and 100 objects.
    """
    try:
        from mlflow.tracking._tracking_service import utils

        kept = utils._artifact_repos_cache  # noqa: SLF001 - no public way to it
    except (ImportError, AttributeError):  # another MLflow
        yield
        return
    is_the_jobs = run_id in kept
    try:
        yield
    finally:
        if not is_the_jobs:
            kept.pop(run_id, None)


def note_artifact_place(client: MlflowClient, run_id: str, artifact_uri: str | None) -> None:
    """Tell MLflow where a run has its artifacts, so that an upload need not read the whole run.

    That takes 7 ms, or a round trip. `forgetting_artifacts` undoes it.

    Args:
        client: A client of the store.
        run_id: The run.
        artifact_uri: As the store gave it; None where it is unknown: MLflow asks then.
    """
    with contextlib.suppress(Exception):  # another MLflow, or an address that it refuses: it asks
        from mlflow.store.artifact.artifact_repository_registry import get_artifact_repository
        from mlflow.tracking._tracking_service import utils
        from mlflow.utils.uri import add_databricks_profile_info_to_artifact_uri as complete

        kept, store = utils._artifact_repos_cache, client.tracking_uri  # noqa: SLF001 - as above
        if artifact_uri and run_id not in kept:
            place = complete(artifact_uri, store)  # type: ignore[no-untyped-call]
            kept[run_id] = call_inside(get_artifact_repository, place, tracking_uri=store)


def set_tags(client: MlflowClient, run_id: str, tags: Mapping[str, str]) -> None:
    """Set tags of a run to texts of others, as far as its store takes them: see `clean_tags`.

    Args:
        client: A client of the store.
        run_id: The run.
        tags: The tags.

    Raises:
        Exception: Whatever MLflow raises when the store does not answer.
    """
    for key, value in clean_tags(tags, client.tracking_uri).items():
        client.set_tag(run_id, key, value)


def end_run(client: MlflowClient, run_id: str, status: str, *, ended: float) -> None:
    """Set the status and the end of a run without printing anything.

    `MlflowClient.set_terminated` prints two lines to the job's standard output, which is not ours.
    They contain the server's address, and a password in it.

    Args:
        client: A client of the store.
        run_id: The run.
        status: `FINISHED`, `FAILED` or `KILLED`.
        ended: Unix time of its end.

    Raises:
        OSError: When what answers is no tracking server, but a gateway that is content with all.
        Exception: Whatever MLflow raises when the store does not answer.
    """
    from mlflow.entities import RunStatus

    at_ms = int(1000 * ended)
    try:
        store = client._tracking_client.store  # noqa: SLF001 - see above
    except AttributeError:
        client.set_terminated(run_id, status, at_ms)
    else:
        guarded, as_status = _find_guard(client.tracking_uri), RunStatus.from_string(status)
        info = guarded(store.update_run_info, run_id, as_status, at_ms, None)
        if getattr(info, "run_id", run_id) == "":
            raise OSError("the answer to the end of the run is not a tracking server's")


def find_active_run() -> tuple[str, str] | tuple[None, None]:
    """Return this thread's active run and its experiment; without MLflow imported there is none."""
    if "mlflow" not in sys.modules:
        return None, None
    import mlflow

    run = mlflow.active_run()
    return (None, None) if run is None else (str(run.info.run_id), str(run.info.experiment_id))


def read_chosen_experiment() -> tuple[str | None, str | None]:
    """Return the id and the name of the experiment that the job chose, without asking a server."""
    # What `set_experiment` chose is not public, and exists only once MLflow is imported.
    fluent = sys.modules.get("mlflow.tracking.fluent")
    chosen = getattr(fluent, "_active_experiment_id", None)
    if chosen:
        return str(chosen), None
    name = os.environ.get("MLFLOW_EXPERIMENT_NAME") or None
    return (None if name else os.environ.get("MLFLOW_EXPERIMENT_ID") or None), name


def provide_experiment(run: RunHandle) -> str | None:
    """Return the experiment that was chosen when the job ran; it is created if need be.

    Raises:
        Exception: Whatever MLflow raises when the store does not answer.
    """
    if run.experiment_id is not None or run.experiment_name is None:
        return run.experiment_id
    client, name = open_client(run.tracking_uri), run.experiment_name

    def provide() -> str:
        found = client.get_experiment_by_name(name)
        return str(client.create_experiment(name) if found is None else found.experiment_id)

    return provide_once(provide)


def provide_once(provide: Callable[[], str]) -> str:
    """Return the experiment that a function finds or else creates, also if another job does so now.

    Raises:
        Exception: Whatever the function raises, but not that the experiment exists by now.
    """
    from mlflow.exceptions import MlflowException

    try:
        return provide()
    except MlflowException as error:
        if error.error_code != "RESOURCE_ALREADY_EXISTS":
            raise
        return provide()  # unless it was deleted, it is found now


def find_current_experiment(tracking_uri: str | None) -> str:
    """Return the experiment in which `mlflow.start_run` would create a run now."""
    refuse_replaced_network(tracking_uri or "")
    if not tracking_uri or is_current(tracking_uri):
        client = open_client(tracking_uri)  # which MLflow would do less carefully
        with contextlib.suppress(ImportError):
            # Not public, but the only way to what `set_experiment` and the platform chose.
            from mlflow.tracking.fluent import _get_experiment_id

            guarded = _find_guard(client.tracking_uri)
            return provide_once(lambda: str(guarded(_get_experiment_id)))
    if experiment_id := os.environ.get("MLFLOW_EXPERIMENT_ID"):
        return experiment_id
    name = os.environ.get("MLFLOW_EXPERIMENT_NAME")
    found = open_client(tracking_uri).get_experiment_by_name(name) if name else None
    return "0" if found is None else str(found.experiment_id)


def has_parent(parent_id: str, *, tracking_uri: str | None = None) -> bool:
    """Return whether a store has the run of which a new run is to be a child.

    A group names its store in the environment; any other store is asked. One that does not answer
    now does not take the new run either.

    Args:
        parent_id: The parent.
        tracking_uri: The store; default: the one that MLflow uses now.
    """
    if not parent_id:
        return False
    named = os.environ.get(PARENT_STORE_VARIABLE)
    if named and (is_current(named) if tracking_uri is None else named == tracking_uri):
        return True
    try:
        return _find_experiment_of(parent_id, tracking_uri, read_workspace()) is not None
    # The edge to MLflow.
    except Exception:  # noqa: BLE001
        return True


@functools.lru_cache(maxsize=16)
def _find_experiment_of(run_id: str, tracking_uri: str | None, workspace: str) -> str | None:
    """Return the experiment of a run; None where the workspace of the store has no such run.

    Raises:
        Exception: Whatever MLflow raises when the store does not answer.
    """
    with contextlib.suppress(RunNotFoundError), working_in(workspace):
        return str(open_run(run_id, tracking_uri=tracking_uri).info.experiment_id)
    return None


@functools.lru_cache(maxsize=16)
def name_steps_experiment(parent_id: str, experiment_id: str, *, tracking_uri: str) -> bool:
    """Tag a parent run with the experiment of a step, where it is another than the parent's.

    A script may choose its experiment by itself. Each process asks once for a parent.

    Returns:
        Whether the store has the parent.

    Raises:
        Exception: Whatever MLflow raises when the store does not answer.
    """
    home = _find_experiment_of(parent_id, tracking_uri, read_workspace())
    if home not in (None, experiment_id):
        open_client(tracking_uri).set_tag(parent_id, f"{STEPS_TAG}{experiment_id}", "true")
    return home is not None
