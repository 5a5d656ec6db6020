"""Finds or creates the MLflow run of a recording without ever hanging the job."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any

from mlflow_perf.core.background_call import BackgroundCall
from mlflow_perf.core.handler_errors import is_from_handler
from mlflow_perf.core.quick_turns import quick_turns
from mlflow_perf.core.safe_log import get_logger
from mlflow_perf.core.uris import (
    absolute_store,
    blocking_file,
    first_line,
    is_http,
    is_local,
    is_refused,
    redact_password,
)
from mlflow_perf.core.workspaces import read_workspace
from mlflow_perf.errors import SettingError
from mlflow_perf.node.place import Node
from mlflow_perf.tracking.client import (
    create_run,
    discard_run,
    find_active_run,
    find_current_experiment,
    read_chosen_experiment,
)
from mlflow_perf.tracking.mlflow_call import MlflowCall
from mlflow_perf.tracking.new_store import (
    await_new_store,
    is_unmade,
    is_wrong_for_ever,
    making_alone,
    ride_out_races,
)  # fmt: skip
from mlflow_perf.tracking.page_probe import has_page
from mlflow_perf.tracking.recorded_runs import RECORDING_TAG, discard_repeated_runs, find_job_run
from mlflow_perf.tracking.run_handle import RunHandle, find_step

if TYPE_CHECKING:
    from mlflow.entities import Run

_POLL_SEC = 0.5
_MAX_TURNS = 20
_LOCAL_START_SEC = 60.0

_log = get_logger(__name__)


def find_tracking_uri(timeout_sec: float = _LOCAL_START_SEC) -> str:
    """Return the store that `mlflow` writes to; MLflow is imported only if nothing else says.

    Args:
        timeout_sec: Most seconds for importing MLflow; then the answer is empty, which means
            whatever store MLflow will say.
    """
    if "mlflow" not in sys.modules and (uri := name_store()):
        return uri
    try:
        if not import_mlflow(timeout_sec):
            return ""
        import mlflow

        return absolute_store(str(mlflow.get_tracking_uri()))
    # No room for the import; or the working folder was deleted.
    except (RuntimeError, OSError) as error:
        if is_from_handler(error):
            raise
        return ""


def name_store() -> str:
    """Return the store that the environment names; empty if it names none."""
    return absolute_store(os.environ.get("MLFLOW_TRACKING_URI", ""))


def import_mlflow(timeout_sec: float) -> bool:
    """Import MLflow and return whether that was done in time; otherwise a thread goes on with it.

    It takes up to ten seconds on a busy machine, and for ever on a file system that hangs.

    Raises:
        RuntimeError: When it cannot be imported now; see `MlflowCall`.
    """
    if "mlflow" not in sys.modules:
        try:
            call = MlflowCall(lambda: import_module("mlflow"), name="import")
            _wait(call, timeout_sec, works_here=True)
        except TimeoutError as error:
            if is_from_handler(error):
                raise
            return False
    return True


def _wait(call: MlflowCall[Any], timeout_sec: float, *, works_here: bool) -> None:
    """Wait until a call is done, or raise what it raised.

    Args:
        call: The call.
        timeout_sec: Most seconds to wait.
        works_here: Whether they count from the process's latest work, as on a busy machine.

    Raises:
        TimeoutError: When it is not done; it continues.
    """
    latest = (now := time.monotonic()) + _LOCAL_START_SEC
    until, seen = now + timeout_sec, _work_done()
    with quick_turns():
        while now < until and not call.done_within(min(_POLL_SEC, until - now)):
            now, work = time.monotonic(), _work_done()
            if works_here and (work != seen or call.waits) and now < latest:
                until, seen = now + timeout_sec, work
    call.result(0.0)


def _work_done() -> int:
    return int(5 * time.process_time())  # it changes every fifth of a second of CPU time


class RunFinder:
    """Gives a recording its run: the given one, the active one, the environment's, or a new one.

    Args:
        run: The handle that gets the run. A run that it already has is the given one.
        node: This node. All nodes of a job share the run that the first node creates.
        start_timeout_sec: Most seconds that the start waits for a new run.
        on_made: Called when the run or its store is known, in the thread that found it.
        await_shared: Waits for the run of the rank that samples on this node, for at most so many
            seconds; None if it has none by then.
    """

    def __init__(
        self,
        run: RunHandle,
        node: Node,
        *,
        start_timeout_sec: float,
        on_made: Callable[[], object] = lambda: None,
        await_shared: Callable[[float], str | None] = lambda _: None,
    ) -> None:
        self._run = run
        self._claim = run.claim()
        self._node = node
        self._start_timeout_sec, self._began = start_timeout_sec, time.monotonic()
        self._on_made = on_made
        self._await_shared = await_shared
        self._is_postponed = self._is_settling = self._is_over = False
        self._pending: MlflowCall[None] | None = None
        self.page_probe: BackgroundCall[Any] | None = None

    def choose(self) -> None:
        """Take the run that the job has started or was given, if there is one."""
        run = self._run
        if run.run_id is None:
            run.run_id, run.experiment_id = find_active_run()
        if run.run_id is None:
            run.run_id = os.environ.get("MLFLOW_RUN_ID", "").strip() or None
            if (step := find_step()) is not None and run.run_id == step.run_id:
                # The step's script may have chosen another store since, which has no such run.
                run.tracking_uri = step.store

    def find(self, *, wait: bool = True, postpone: bool = False) -> None:
        """Create the run, unless one was chosen; if the server is slow or away, a thread goes on.

        Args:
            wait: Whether the start may wait for a new run; otherwise a thread creates it. A store
                that does not exist yet is created in `settle`, unless the command creates it.
            postpone: Whether to wait for `settle` in any case: the command may start a run.

        Raises:
            SettingError: When the store's address can never be used.
        """
        run, shown = self._run, redact_password(self._run.tracking_uri)
        if run.run_id is not None:
            self._probe_page()
        if not (run.is_left or self._node.samples):
            # Also with a given run: a block that ends before that rank's begins is in no figure.
            shared = self._await_shared(self._start_timeout_sec)
            run.run_id = run.run_id or shared
        if run.run_id is not None or run.is_left or not self._node.samples:
            return
        run.experiment_id, run.experiment_name = read_chosen_experiment()
        if wait and is_refused(run.tracking_uri):
            what = "The tracking server at %s cannot be reached; the job starts without its run."
            _log.warning(what, shown)
            return
        # Some versions of MLflow try for a minute to create a store there.
        if (file := blocking_file(run.tracking_uri)) is not None:
            why = f"{file} is {'a' if file.is_dir() else 'not a'} folder"
            raise SettingError(f"The MLflow store {shown} cannot be used: {why}")
        if not wait:
            run.started = time.time()
            if postpone or is_unmade(run.tracking_uri):
                self._is_postponed = True
                return
        try:
            is_imported = not wait or import_mlflow(self._start_timeout_sec)
            self._pending = MlflowCall(self._make, name="new-run")
            if wait:
                limit_sec = self._start_timeout_sec if is_imported else 0.0
                _wait(self._pending, limit_sec, works_here=is_local(run.tracking_uri))
        except TimeoutError as error:
            if is_from_handler(error):
                raise
            run.started = time.time()
            self._warn_of_slowness()
        except Exception as error:
            if is_from_handler(error):
                raise
            self._pending = None
            if is_wrong_for_ever(error, run.tracking_uri):
                # Without MLflow's own error, which may show the address with its password.
                raise SettingError(
                    f"The MLflow store {shown} cannot be used: {first_line(error)}"
                ) from None
            run.started = time.time()
            _log.warning("No MLflow run could be made yet: %s", first_line(error))

    def _warn_of_slowness(self) -> None:
        uri, fault = self._run.tracking_uri, self._pending.fault if self._pending else ""
        kind = "MLflow store" if is_local(uri) else "tracking server"
        how = f"does not answer ({fault})" if fault else "is slow"
        shown = redact_password(uri)
        _log.warning("The %s %s %s; the job starts without its run.", kind, shown, how)

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
        if not (uri := self._run.tracking_uri):
            # The command runs meanwhile, and may make the store itself.
            self._run.tracking_uri = uri = find_tracking_uri()
            self._is_postponed = is_unmade(uri) and not self._is_settling
            if self._is_postponed:
                self._on_made()
                return
        if is_refused(uri):
            raise ConnectionRefusedError(f"{redact_password(uri)} cannot be reached")
        self._probe_page()

        def find_or_create() -> None:
            with self._run.creating():
                self._find_or_create()

        ride_out_races(find_or_create, uri)

    def _find_or_create(self) -> None:
        """Find the run that another node of this job made, or create one."""
        run, uri = self._run, self._run.tracking_uri
        is_first = run.job_key is None or self._node.rank == 0
        # The first node creates the run. If that takes too long, another node does.
        found, made, asked = None if is_first else self._await_job_run(), None, 0.0
        with making_alone(uri, timeout_sec=_LOCAL_START_SEC, is_shared=run.job_key is not None):
            experiment_id = find_current_experiment(uri)
            if found is None and (self._is_late() or not is_first):
                found = find_job_run(run, experiment_id, since=run.started)
            if found is None:
                if self._is_over or not self._claim.is_open:
                    raise TimeoutError("sending the report creates its run")
                asked = time.monotonic()
                # The block may begin meanwhile: the run's start is looked up as late as possible.
                made = create_run(
                    run.run_name or "mlflow-perf",
                    tracking_uri=uri,
                    experiment_id=experiment_id,
                    started=run.started,
                    tags={RECORDING_TAG: run.nonce, **run.list_tags()},
                )
                if is_first and self._is_late():
                    found = find_job_run(
                        run, experiment_id, since=run.started, but=made.info.run_id
                    )
        used, is_own = found or made, found is None
        assert used is not None
        info = used.info
        is_used = self._claim.adopt(info.run_id, own=is_own, experiment_id=info.experiment_id)
        if made is not None and not (is_used and is_own):
            discard_run(made.info.run_id, tracking_uri=uri)
        elif made is not None:
            discard_repeated_runs(run, made.info.run_id, asked=asked)
        if not is_used:
            raise TimeoutError("the job's report went elsewhere before its run was made")
        self._on_made()

    def _is_late(self) -> bool:
        """Return whether another node may have created the run of this job by now."""
        return self._is_settling or time.monotonic() - self._began > self._start_timeout_sec

    def _await_job_run(self) -> Run | None:
        """Wait for the run that the first node creates; None if that takes too long."""
        run, uri = self._run, self._run.tracking_uri
        # One after the other, so that only the first that loses its patience creates the run.
        turn_sec = _POLL_SEC * min(self._node.index, _MAX_TURNS)
        until = time.monotonic() + 2 * self._start_timeout_sec + turn_sec
        while True:
            found = None
            if not is_unmade(uri):  # to search in a database that does not exist yet would make it
                found = find_job_run(run, find_current_experiment(uri), since=run.started)
            if found is not None or time.monotonic() >= until:
                return found
            time.sleep(_POLL_SEC)

    @property
    def is_hanging(self) -> bool:
        """Whether a tracking server still owes the run for which the start has waited in vain."""
        is_owed = self._pending is not None and not self._pending.done_within(0)
        return is_owed and self._is_late() and is_http(self._run.tracking_uri)

    def begin_postponed(self) -> None:
        """Create the postponed run now, in the background, unless its store does not exist yet."""
        if self._is_postponed and not is_unmade(self._run.tracking_uri):
            self._create_in_background()

    def _create_in_background(self) -> None:
        self._is_postponed = False
        with contextlib.suppress(RuntimeError):  # without a thread, sending creates the run
            self._pending = MlflowCall(self._make, name="new-run")

    def drop(self) -> None:
        """Stop creating a run; a run that was created is deleted."""
        self._is_postponed = False
        self._claim.withdraw()
        run_id, uri = self._run.run_id, self._run.tracking_uri
        if run_id is not None and self._run.own_run:
            with contextlib.suppress(RuntimeError):
                MlflowCall(
                    lambda: discard_run(run_id, tracking_uri=uri),
                    name="discard", workspace=self._run.workspace,
                )  # fmt: skip

    def settle(self, timeout_sec: float) -> None:
        """Wait for the run that is being created, but not longer than the time.

        Args:
            timeout_sec: Most seconds to wait.
        """
        self._is_settling = True
        until = time.monotonic() + timeout_sec
        self._await_pending(timeout_sec)
        if self._is_postponed:
            self._create_in_background()
            self._await_pending(until - time.monotonic())
        if self._run.run_id is None:
            # The job may have chosen another experiment or workspace meanwhile.
            self._run.experiment_id, self._run.experiment_name = read_chosen_experiment()
            self._run.workspace = read_workspace()

    def _await_pending(self, timeout_sec: float) -> None:
        if self._pending is not None:
            try:
                self._pending.result(timeout_sec)
            except Exception as error:
                if is_from_handler(error):
                    raise
                if not isinstance(error, TimeoutError):
                    # Sending the report creates the run.
                    _log.debug("No MLflow run could be made yet: %s", first_line(error))
                    self._pending = None

    def close(self, timeout_sec: float, *, finish_store: bool = False) -> float:
        """Wait for the run that is being created; from then on none is asked for here.

        Args:
            timeout_sec: Most seconds to wait.
            finish_store: Whether to wait longer while a new local database is made for it: the
                seconds beyond `timeout_sec` are returned.
        """
        self.settle(timeout_sec)
        began = time.monotonic()
        if finish_store and self._pending is not None and self._run.run_id is None:
            await_new_store(self._pending.done_within, self._run.tracking_uri)
        self._is_over = True
        return time.monotonic() - began

    def withdraw(self, timeout_sec: float = 0.0) -> bool:
        """Delete a run that arrives from now on; return whether none can any more.

        Args:
            timeout_sec: Most seconds to wait until that is sure.
        """
        self._claim.withdraw()
        return self._pending is None or self._pending.done_within(timeout_sec)
