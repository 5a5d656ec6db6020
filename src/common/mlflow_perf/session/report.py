"""`report()`: where the parts are put together. Imports everything below it.

The wrapped job's result, exception and exit code pass through untouched whatever fails here.
"""

from __future__ import annotations

import atexit
import logging
import os
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from mlflow_perf.core import settings
from mlflow_perf.errors import MlflowPerfError, SettingError
from mlflow_perf.model.document import PerfDocument
from mlflow_perf.node.exit_cause import signal_name
from mlflow_perf.recorders import timing
from mlflow_perf.recorders.operations.wrap import wrap
from mlflow_perf.session.recording import Outcome, Recording
from mlflow_perf.session.run_target import check_run
from mlflow_perf.session.signals import SignalWatch

__all__ = ["Session", "current", "report"]

F = TypeVar("F", bound=Callable[..., Any])

_log = logging.getLogger(__name__)
_guard = threading.Lock()
_current: Session | None = None
_current_pid = 0

# From a signal to the kill that follows it are 30 s with Slurm and Kubernetes by default.
_GRACE_SEC = 20.0
_ENDING = (15, 1)  # SIGTERM, SIGHUP: with a handler of the job's, too, they end it


def current() -> Session | None:
    """Return the session that records in this process now, or None."""
    return _current if _current_pid == os.getpid() else None


class Session:
    """A block of code whose performance is reported: a context manager and a decorator.

    Made by `report()`. As a decorator it wraps plain, generator and async functions, and each call
    is a block of its own. A block inside a block, in any thread, becomes a timed operation of the
    outer one.

    Attributes:
        name: The component.
        run_id: Id of the MLflow run, from the start of the block; None while it could not be had.
        node: Index of this node.
        summary: Metric key → value, after the block.
        document: What was reported, after the block.
    """

    def __init__(self, name: str, options: dict[str, Any]) -> None:
        self.name = name
        self.summary: dict[str, float] = {}
        self.document = PerfDocument()
        self._options = options
        self._recording: Recording | None = None
        self._outer: Session | None = None
        self._timers: list[Any] = []
        self._left_out = False
        self._watch = SignalWatch(self._on_fatal, self._on_handled)

    @property
    def run_id(self) -> str | None:
        """Id of the MLflow run; None outside a block, or while no run could be had."""
        if self._outer is not None:
            return self._outer.run_id
        return None if self._recording is None else self._recording.run_id

    @property
    def own_run(self) -> bool:
        """Whether the run was made for this block."""
        recording = (self._outer or self)._recording  # noqa: SLF001 - another one of this class
        return recording is not None and recording.own_run

    @property
    def node(self) -> int:
        """Index of this node, from 0."""
        if self._outer is not None:
            return self._outer.node
        return 0 if self._recording is None else self._recording.node.index

    def __enter__(self) -> Session:
        global _current, _current_pid
        with _guard:
            outer = current()
            if outer is None:
                _current, _current_pid = self, os.getpid()
        if outer is not None:
            self._enter_inner(outer)
            return self
        try:
            self._recording = Recording(self.name, self._options)
            self._recording.start()
            self._watch.arm()
        except MlflowPerfError:
            self._leave()
            raise
        except Exception:  # noqa: BLE001 - the edge: nothing of ours reaches the job
            _log.warning("The block %r is not reported.", self.name, exc_info=True)
        except BaseException as error:  # Ctrl-C while a run was being made
            self._finish(Outcome.of(error))
            raise
        return self

    def _enter_inner(self, outer: Session) -> None:
        # One that is kept in a variable may be entered again, and has itself around it then.
        self._outer = None if outer is self else outer
        self._timers.append(outer.time(self.name).__enter__())

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._timers:
            self._timers.pop().__exit__(kind, error, trace)
            self._outer = self._outer if self._timers else None
            return
        # A forked child that leaves its parent's block has nothing to report in its name.
        if current() is self:
            self._watch.settle()
            self._finish(self._outcome(error))

    def _outcome(self, error: BaseException | None) -> Outcome:
        ended_by = [number for number in self._watch.received if number in _ENDING]
        return _killed(ended_by[0]) if ended_by else Outcome.of(error)

    def _finish(self, outcome: Outcome) -> None:
        recording = self._recording
        try:
            if recording is not None:
                recording.finish(outcome)
                self.document, self.summary = recording.document, recording.summary
        except Exception:  # noqa: BLE001 - the edge: nothing of ours reaches the job
            _log.warning(
                "The performance report of %r could not be made.", self.name, exc_info=True
            )
        finally:
            self._watch.disarm()
            self._leave()

    def _on_fatal(self, number: int) -> None:
        if self._recording is not None:
            self._recording.finish(_killed(number), limit_sec=_GRACE_SEC)

    def _on_handled(self, number: int) -> None:
        if self._recording is not None:
            self._recording.report_now(_killed(number), limit_sec=_GRACE_SEC)

    def _leave(self) -> None:
        global _current, _current_pid
        with _guard:
            _current, _current_pid = None, 0

    def __call__(self, function: F) -> F:
        """Return the function with each call, or each iteration of a generator, as a block."""
        wrapped: F = wrap(function, self._again)
        return wrapped

    def _again(self) -> Session:
        return Session(self.name, self._options)

    def _repr_html_(self) -> str:
        """Return the report for a notebook, after the block."""
        return self.document._repr_html_()

    # The function itself: a method around it would cost a tenth of what a timer costs.
    time = staticmethod(timing.time)

    def add_time(self, name: str, time_ms: float, *, key: Any = None) -> None:
        """Record one duration of an operation, in milliseconds."""
        if self._operations is not None:
            try:
                self._operations.add_time(name, key, time_ms)
            except SettingError as error:
                self._leave_out(error)

    def add_counter(self, name: str, value: float = 1, *, key: Any = None) -> None:
        """Add to a counter."""
        if self._operations is not None:
            try:
                self._operations.add_counter(name, key, value)
            except SettingError as error:
                self._leave_out(error)

    def add_attribute(self, name: str, value: Any, *, key: Any = None) -> None:
        """Note a fact, such as the name of a data set; a later one replaces it."""
        if self._operations is not None:
            try:
                self._operations.add_attribute(name, key, value)
            except SettingError as error:
                self._leave_out(error)

    def _leave_out(self, error: SettingError) -> None:
        # The job is running: a loss that became NaN must not end it.
        if not self._left_out:
            self._left_out = True
            _log.warning("%s It is left out, and so are further ones like it.", error)

    @property
    def _operations(self) -> Any:
        holder = self._outer or self
        return None if holder._recording is None else holder._recording.operations  # noqa: SLF001


def _killed(number: int) -> Outcome:
    return Outcome("KILLED", signal_name(number))


def _at_exit() -> None:
    """Finish a block that the interpreter's end cuts off: in a daemon thread, or never left."""
    session = current()
    if session is not None:
        session._finish(  # noqa: SLF001 - of this module
            Outcome("KILLED", "the interpreter ended inside the block")
        )


def _in_child() -> None:
    global _guard  # noqa: PLW0603 - another thread of the parent may have held it
    _guard = threading.Lock()


atexit.register(_at_exit)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)


class _NoSession(Session):
    """What `report()` returns when `MLFLOW_PERF_DISABLE` is set: does nothing."""

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def __call__(self, function: F) -> F:
        """Return the function as it is."""
        return function


def report(
    name: str | None = None,
    *,
    interval: float | None = None,
    node: int | None = None,
    run_id: str | None = None,
    max_length: int | None = None,
    artifact_path: str | None = None,
    metrics_prefix: str | None = None,
    live: bool | None = None,
    scrape: Sequence[str] | str | None = None,
    node_price: float | None = None,
    carbon: str | None = None,
) -> Session:
    """Report what a block of code uses, wastes and waits for, to MLflow.

    `with mlflow_perf.report("train") as perf: …`, or `@mlflow_perf.report("train")` on a function.
    The run is `run_id`, else the active run, else that of `MLFLOW_RUN_ID`, else a run of its own,
    which it then also ends: FINISHED, FAILED on an exception, KILLED on a signal. Every argument
    has an environment variable, `MLFLOW_PERF_INTERVAL` for `interval` and so on.

    Args:
        name: The component; default: the script's name.
        interval: Seconds between two samples, 0.05 to 3600; default 1.
        node: Index of this node; default: as the launcher says.
        run_id: The MLflow run to report to.
        max_length: Most reports to keep, rounded up to even; default 1000.
        artifact_path: Folder of the JSON artifact in the run; default `perf`.
        metrics_prefix: Put before each metric's key; default none.
        live: Whether to log the curves while the job runs too; default no.
        scrape: Prometheus endpoints to read during the job: `["http://127.0.0.1:8000/metrics"]`.
        node_price: Price of one node for one hour, for `node_cost` and `node_unused_cost`.
        carbon: Country whose electricity to estimate emissions for, by its three letters.

    Raises:
        SettingError: When a setting is wrong; a `ValueError`.
        RunNotFoundError: When `run_id` names no run; a `ValueError`.
    """
    if settings.is_disabled():
        return _NoSession(name or "disabled", {})
    options = settings.resolve(
        name=name,
        interval=interval,
        node=node,
        run_id=run_id,
        max_length=max_length,
        artifact_path=artifact_path,
        metrics_prefix=metrics_prefix,
        live=live,
        scrape=scrape,
        node_price=node_price,
        carbon=carbon,
    )
    if options["run_id"] is not None:
        check_run(options["run_id"], options["start_timeout"])
    return Session(options["name"] or _script_name(), options)


def _script_name() -> str:
    script = Path(sys.argv[0] or "python").stem
    return script if script not in ("", "-c", "__main__") else "python"
