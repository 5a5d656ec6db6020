"""Which MLflow run a job reports to, found or made without ever hanging the job.

Imports addresses, errand, node, the page's look-up and the MLflow sink.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import threading
import time
from collections.abc import Callable
from importlib import import_module
from typing import Any

from mlflow_perf.core.background_call import BackgroundCall
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
    Target,
    chosen_experiment,
    discard_run,
    find_run,
    new_run,
    open_run,
)
from mlflow_perf.tracking.page_probe import has_page

__all__ = ["RunTarget", "check_run", "tracking_uri"]

JOB_TAG = "mlflow_perf.job_id"
_POLL_SEC = 0.5

_LOCAL_START_SEC = 60.0

_log = logging.getLogger(__name__)


def tracking_uri() -> str:
    """Return the store that `mlflow` writes to, importing it only where nothing else tells."""
    uri = os.environ.get("MLFLOW_TRACKING_URI")
    if uri and "mlflow" not in sys.modules:
        return uri
    import mlflow

    return str(mlflow.get_tracking_uri())


def check_run(run_id: str, timeout_sec: float) -> None:
    """Raise when the store answers that there is no such run; a silent store is no answer.

    Raises:
        RunNotFoundError: When the run does not exist or was deleted.
    """
    uri = tracking_uri()
    try:
        if not is_refused(uri):
            call = BackgroundCall(lambda: open_run(run_id, tracking_uri=uri), name="open-run")
            call.result(timeout_sec)
    except RunNotFoundError:
        raise
    except Exception as error:  # noqa: BLE001 - an ill server does not keep a job from starting
        _log.debug("The run %s could not be checked: %s", run_id, error)


class RunTarget:
    """The run of one recording: given, active, from the environment, or made for it.

    Args:
        name: Name for a run of its own.
        node: This node: those of one job share the run that its first node made.
        run_id: The run that was asked for, if any.
        start_timeout_sec: Most seconds that the start waits for a run of its own.
        on_made: Called when a run was made, in the thread that made it.

    Attributes:
        uri: The MLflow store.
    """

    def __init__(
        self,
        name: str,
        node: Node,
        *,
        run_id: str | None,
        start_timeout_sec: float,
        on_made: Callable[[], object] | None = None,
    ) -> None:
        self.uri = tracking_uri()
        self._name = name
        self._node = node
        self._given = run_id
        # A store on this machine does not go away; making a new database takes it a while. One of
        # a database's server may, and MLflow tries it again for minutes.
        local = not names_host(self.uri)
        self._start_timeout_sec = (
            max(_LOCAL_START_SEC, start_timeout_sec) if local else start_timeout_sec
        )
        self._on_made = on_made
        self._target: Target | None = None
        self._choosing = threading.Lock()
        self._is_over = False
        self._pending: BackgroundCall[Target] | None = None
        self._page: BackgroundCall[bool] | None = None

    @property
    def run_id(self) -> str | None:
        """Id of the run, as soon as there is one."""
        self.settle(0.0)
        return None if self._target is None else self._target.run_id

    @property
    def own(self) -> bool:
        """Whether the run was made for this recording, which then ends it too."""
        return self._target is not None and self._target.own

    @property
    def has_page(self) -> bool:
        """Whether the server is known by now to have the page `/perf`; never waits."""
        return self._page is not None and self._page.done_within(0.0) and self._page.result(0.0)

    def find(self, *, wait: bool = True) -> None:
        """Find or make the run, or leave that to a thread when the server is slow or away.

        Args:
            wait: Whether the start may wait for the run; else a thread makes it meanwhile.

        Raises:
            SettingError: When a store on this machine cannot be used at all.
        """
        known = self._given or _active_run_id() or os.environ.get("MLFLOW_RUN_ID")
        if known:
            self._target = Target(known)
            self._look_for_page()
        elif wait and is_refused(self.uri):
            _log.warning(
                "The tracking server at %s refuses connections; the job starts without its run.",
                redact_password(self.uri),
            )
        else:
            _check_place(self.uri)
            if wait:
                # Up to ten seconds on a busy machine, and no fault of the server's.
                import_module("mlflow")
            self._pending = BackgroundCall(self._make_and_tell, name="new-run")
            self._look_for_page()
            if wait:
                self._settle_start()

    def _look_for_page(self) -> None:
        """Learn beside the job, for a link, what its end has no time to ask."""
        if is_http(self.uri) and self._node.samples:
            with contextlib.suppress(RuntimeError):  # no thread to be had: no link
                self._page = BackgroundCall(lambda: has_page(self.uri), name="page")

    def _settle_start(self) -> None:
        try:
            self._adopt(self._start_timeout_sec)
        except TimeoutError:
            _log.warning(
                "The tracking server %s is slow; the job starts without its run.",
                redact_password(self.uri),
            )
        except Exception as error:
            if not is_http(self.uri):
                raise SettingError(
                    f"The MLflow store {redact_password(self.uri)} cannot be used: "
                    f"{first_line(error)}"
                ) from error
            _log.warning("No MLflow run could be made yet: %s", first_line(error))

    def _make_and_tell(self) -> Target:
        if is_refused(self.uri):
            raise ConnectionRefusedError(f"{redact_password(self.uri)} refuses connections")
        target = self._make()
        with self._choosing:
            late = self._is_over
            if not late:
                self._target = target
        if late:
            if target.own:
                discard_run(target.run_id, tracking_uri=self.uri)
            raise TimeoutError("the job's report went elsewhere before its run was made")
        if self._on_made is not None:
            self._on_made()
        return target

    def _make(self) -> Target:
        job = self._job()
        if job is None:
            return new_run(self._name, tracking_uri=self.uri)
        if self._node.rank == 0:
            return new_run(self._name, tracking_uri=self.uri, tags={JOB_TAG: job})
        return self._wait_for_first_node(job)

    def _job(self) -> str | None:
        node = self._node
        if node.pool or node.world_size <= 1 or node.job_id is None:
            return None
        return f"{node.launcher}:{node.job_id}"

    def _wait_for_first_node(self, job: str) -> Target:
        """Return the run that the job's first node makes; its own if that takes too long."""
        until = time.monotonic() + 2 * self._start_timeout_sec
        while time.monotonic() < until:
            found = find_run(JOB_TAG, job, tracking_uri=self.uri)
            if found is not None:
                return found
            time.sleep(_POLL_SEC)
        return new_run(self._name, tracking_uri=self.uri, tags={JOB_TAG: job})

    def settle(self, timeout_sec: float) -> None:
        """Take over the run that is being made, if it is there within the time."""
        try:
            self._adopt(timeout_sec)
        except TimeoutError:
            return
        except Exception as error:  # noqa: BLE001 - it is made when the report is sent
            # The start has said that there is no run yet, and the end will say what came of it.
            _log.debug("No MLflow run could be made yet: %s", first_line(error))

    def _adopt(self, timeout_sec: float) -> None:
        if self._pending is None:
            return
        if self._target is not None:
            self._pending = None
            return
        try:
            self._target = self._pending.result(timeout_sec)
        except TimeoutError:
            raise
        except Exception:
            self._pending = None
            raise
        self._pending = None

    def close(self, timeout_sec: float) -> None:
        """Take over the run that is being made; one that comes later than this is deleted again.

        Args:
            timeout_sec: Most seconds to wait for it.
        """
        self.settle(timeout_sec)
        with self._choosing:
            self._is_over = True

    def made(self, run_id: str) -> None:
        """Note the run that was made when the report was sent."""
        if self._target is None:
            self._target = Target(run_id, own=True)

    def header(self) -> dict[str, Any]:
        """Return the part of a delivery's header that says where it goes."""
        target = self._target
        if target is None:
            experiment_id, experiment_name = chosen_experiment()
        else:
            experiment_id, experiment_name = target.experiment_id, None
        return {
            "run_id": None if target is None else target.run_id,
            "own_run": target is not None and target.own,
            "tracking_uri": self.uri,
            "experiment_id": experiment_id,
            "experiment_name": experiment_name,
        }


def _active_run_id() -> str | None:
    """Return the id of this thread's active run; without MLflow imported there is none."""
    if "mlflow" not in sys.modules:
        return None
    import mlflow

    run = mlflow.active_run()
    return None if run is None else str(run.info.run_id)


def _check_place(uri: str) -> None:
    """See that an embedded store can be there.

    Raises:
        SettingError: When what should be a folder above it is none.
    """
    file = blocking_file(uri)
    if file is not None:
        raise SettingError(f"The MLflow store {uri} cannot be used: {file} is no folder")
