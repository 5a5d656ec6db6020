"""Finds or creates the MLflow run of a recording without ever hanging the job."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import time
from collections.abc import Callable
from importlib import import_module
from typing import Any

from mlflow_perf.core.background_call import BackgroundCall
from mlflow_perf.core.own_cost import bring
from mlflow_perf.core.uris import (
    blocking_file,
    first_line,
    is_http,
    is_refused,
    names_host,
    redact_password,
)
from mlflow_perf.errors import RunNotFoundError, SettingError
from mlflow_perf.node.place import Node
from mlflow_perf.tracking.client import (
    create_run,
    discard_run,
    find_current_experiment,
    find_run,
    open_run,
    read_chosen_experiment,
)
from mlflow_perf.tracking.page_probe import has_page
from mlflow_perf.tracking.run_handle import RunHandle

__all__ = ["RunFinder", "check_run", "find_tracking_uri"]

_JOB_TAG = "mlflow_perf.job_key"
_POLL_SEC = 0.5
_LOCAL_START_SEC = 60.0

_log = logging.getLogger(__name__)


def find_tracking_uri() -> str:
    """Return the store that `mlflow` writes to; MLflow is imported only if nothing else says."""
    uri = os.environ.get("MLFLOW_TRACKING_URI")
    if uri and "mlflow" not in sys.modules:
        return uri
    import mlflow

    return str(mlflow.get_tracking_uri())


@bring()
def check_run(run_id: str, timeout_sec: float) -> None:
    """Raise when the store answers that a run does not exist; a store may also not answer.

    Args:
        run_id: The run.
        timeout_sec: Most seconds to wait for the answer.

    Raises:
        RunNotFoundError: When the run does not exist or was deleted.
    """
    uri = find_tracking_uri()
    try:
        if not is_refused(uri):
            call = BackgroundCall(lambda: open_run(run_id, tracking_uri=uri), name="open-run")
            call.result(timeout_sec)
    except RunNotFoundError:
        raise
    except Exception as error:  # noqa: BLE001 - a faulty server does not keep a job from starting
        _log.debug("The run %s could not be checked: %s", run_id, error)


class RunFinder:
    """Gives a recording its run: the given one, the active one, the environment's, or a new one.

    Args:
        run: The handle that gets the run. A run that it already has is the given one.
        node: This node. All nodes of a job share the run that the first node creates.
        start_timeout_sec: Most seconds that the start waits for a new run.
        on_made: Called when a run was created, in the thread that created it.
    """

    def __init__(
        self,
        run: RunHandle,
        node: Node,
        *,
        start_timeout_sec: float,
        on_made: Callable[[], object] = lambda: None,
    ) -> None:
        self._run = run
        self._claim = run.claim()
        self._node = node
        # A store on this machine does not go away, but creating a new database takes a while.
        # The server of a database may go away, and MLflow then tries again for minutes.
        is_local = not names_host(run.tracking_uri)
        self._start_timeout_sec = max(_LOCAL_START_SEC * is_local, start_timeout_sec)
        self._on_made = on_made
        self._pending: BackgroundCall[None] | None = None
        self.page_probe: BackgroundCall[Any] | None = None

    def find(self, *, wait: bool = True) -> None:
        """Find or create the run; while the server is slow or away, a thread goes on with it.

        Args:
            wait: Whether the start may wait for a new run; otherwise a thread creates it.

        Raises:
            SettingError: When a store on this machine cannot be used at all.
        """
        run, shown = self._run, redact_password(self._run.tracking_uri)
        if run.run_id is None:
            run.run_id, run.experiment_id = _find_active_run()
        run.run_id = run.run_id or os.environ.get("MLFLOW_RUN_ID") or None
        if run.run_id is not None:
            self._probe_page()
            return
        run.experiment_id, run.experiment_name = read_chosen_experiment()
        if wait and is_refused(run.tracking_uri):
            _log.warning(
                "The tracking server at %s refuses connections; the job starts without its run.",
                shown,
            )
            return
        # Some versions of MLflow try for a minute to create a store there.
        if (file := blocking_file(run.tracking_uri)) is not None:
            raise SettingError(f"The MLflow store {shown} cannot be used: {file} is not a folder")
        if wait:
            # Up to ten seconds on a busy machine, which is not the server's fault.
            import_module("mlflow")
        else:
            run.started = time.time()
        self._pending = BackgroundCall(self._make, name="new-run")
        self._probe_page()
        if not wait:
            return
        try:
            self._pending.result(self._start_timeout_sec)
        except TimeoutError:
            run.started = time.time()
            _log.warning("The tracking server %s is slow; the job starts without its run.", shown)
        except Exception as error:
            self._pending = None
            if not is_http(run.tracking_uri):
                raise SettingError(
                    f"The MLflow store {shown} cannot be used: {first_line(error)}"
                ) from error
            _log.warning("No MLflow run could be made yet: %s", first_line(error))

    def _probe_page(self) -> None:
        """Check in the background whether the server has the page, so that exiting need not."""
        run = self._run

        def probe() -> None:
            run.has_page = has_page(run.tracking_uri)

        if is_http(run.tracking_uri) and self._node.samples:
            with contextlib.suppress(RuntimeError):  # without a thread there is no link
                self.page_probe = BackgroundCall(probe, name="page")

    def _make(self) -> None:
        """Let the handle use the run that this job shares, or a new one."""
        run, node, uri = self._run, self._node, self._run.tracking_uri
        if is_refused(uri):
            raise ConnectionRefusedError(f"{redact_password(uri)} refuses connections")
        is_shared = node.world_size > 1 and not node.pool and node.job_key is not None
        job, found = str(node.job_key), None
        if is_shared and node.rank != 0:
            # The first node creates the run. If that takes too long, this node has its own.
            until = time.monotonic() + 2 * self._start_timeout_sec
            while found is None and time.monotonic() < until:
                found = find_run(_JOB_TAG, job, tracking_uri=uri)
                if found is None:
                    time.sleep(_POLL_SEC)
        # The block may begin meanwhile: the run's start is looked up as late as possible.
        experiment_id = None if found else find_current_experiment(uri)
        info = (
            found
            or create_run(
                run.run_name or "mlflow-perf",
                tracking_uri=uri,
                experiment_id=experiment_id,
                started=run.started,
                tags={_JOB_TAG: job} if is_shared else None,
            )
        ).info
        is_own = found is None
        if not self._claim.adopt(info.run_id, own=is_own, experiment_id=info.experiment_id):
            if is_own:
                discard_run(info.run_id, tracking_uri=uri)
            raise TimeoutError("the job's report went elsewhere before its run was made")
        self._on_made()

    def settle(self, timeout_sec: float) -> None:
        """Wait for the run that is being created, but not longer than the time.

        Args:
            timeout_sec: Most seconds to wait.
        """
        if self._pending is not None:
            try:
                self._pending.result(timeout_sec)
            except TimeoutError:
                pass
            except Exception as error:  # noqa: BLE001 - sending the report creates the run
                _log.debug("No MLflow run could be made yet: %s", first_line(error))
                self._pending = None
        if self._run.run_id is None:
            # The job may have chosen another experiment meanwhile.
            self._run.experiment_id, self._run.experiment_name = read_chosen_experiment()

    def close(self, timeout_sec: float) -> None:
        """Wait for the run that is being created; one that comes later is deleted again.

        Args:
            timeout_sec: Most seconds to wait.
        """
        self.settle(timeout_sec)
        self._claim.withdraw()


def _find_active_run() -> tuple[str, str] | tuple[None, None]:
    """Return this thread's active run and its experiment; without MLflow imported there is none."""
    if "mlflow" not in sys.modules:
        return None, None
    import mlflow

    run = mlflow.active_run()
    return (None, None) if run is None else (str(run.info.run_id), str(run.info.experiment_id))
