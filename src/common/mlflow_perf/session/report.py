"""`report()`: a block of code whose performance is reported to MLflow.

The job's result, exception and exit code pass through untouched whatever fails here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from mlflow_perf.core.handler_errors import is_from_handler
from mlflow_perf.core.interrupt_flag import at_exit
from mlflow_perf.core.originals import os
from mlflow_perf.core.own_cost import bring
from mlflow_perf.core.replaced import explain_replaced
from mlflow_perf.core.safe_log import get_logger
from mlflow_perf.core.settings import Settings, arguments_of, read_setting
from mlflow_perf.core.threads import Lock
from mlflow_perf.core.uris import first_line
from mlflow_perf.errors import MlflowPerfError, SettingError
from mlflow_perf.model.document import PerfDocument
from mlflow_perf.node.exit_cause import name_signal
from mlflow_perf.recorders import timing
from mlflow_perf.recorders.operations.wrap import wrap
from mlflow_perf.session.address import name_process
from mlflow_perf.session.open_runs import find_recorded_run
from mlflow_perf.session.operation_calls import OperationCalls
from mlflow_perf.session.outcome import Outcome
from mlflow_perf.session.recording import Recording
from mlflow_perf.session.run_check import check_run
from mlflow_perf.session.run_finder import find_tracking_uri
from mlflow_perf.session.signals import SignalWatch
from mlflow_perf.session.stand_ins import meets_stand_in
from mlflow_perf.session.turn import Turn
from mlflow_perf.tracking.reporting_notes import note_reporting

if TYPE_CHECKING:
    from mlflow_perf.session.run_recording import RunRecording

F = TypeVar("F", bound=Callable[..., Any])

_log = get_logger(__name__)
_guard = Lock()
_current: Session | None = None
_current_pid = 0
_sending: dict[Session, int] = {}  # those whose block has ended → process
_warned: set[str] = set()  # names of blocks that one line was about

# Slurm and Kubernetes kill a process 30 s after its signal by default.
_GRACE_SEC = 20.0
_HANGING_SEC = 1.0  # where the server has not answered since the start: the journal is kept
_INTERRUPTED_SEC = 2.0  # to finish after a Ctrl-C during the start


def current() -> Session | None:
    """Return the session that records in this process now, or None."""
    return _current if _current_pid == os.getpid() else None


class Session(OperationCalls):
    """A block of code whose performance is reported: a context manager and a decorator.

    `report()` makes it. As a decorator it wraps plain, generator and async functions, and each call
    is a block of its own. A block inside another block, in any thread, becomes a timed operation of
    the outer one. A copy, in this process or another, records as the session does.

    Attributes:
        name: The component.
        run_id: Id of the MLflow run, from the start of the block; None while there is none.
        node: Index of this node.
        summary: Metric key → value, after the block.
        document: The report, after the block.
    """

    def __init__(self, name: str, settings: Settings) -> None:
        self.name = name
        self.summary: dict[str, float] = {}
        self.document = PerfDocument()
        self._settings = settings
        self._recording: Recording | None = None
        # What reports the run around the block; after the block, too.
        self._recorded_run: RunRecording | Recording | None = None
        self._outer: Session | None = None
        self._timers: list[Any] = []
        super().__init__()
        self._has_failed = False
        self._postponed: Outcome | None = None
        self._watch: SignalWatch | None = None
        self._turn = Turn(2 * settings.start_timeout)
        self._copied_run_id: str | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return _copy, (type(self), self.name, self._settings, self.run_id)

    def _find_recording(self) -> Recording | RunRecording | None:
        block = self._outer or self
        return block._recorded_run or block._recording  # noqa: SLF001 - another object of this class

    @property
    def run_id(self) -> str | None:
        """Id of the MLflow run; None before the block, or while there is no run."""
        recording, asked = self._find_recording(), self._settings.run_id
        if asked is not None and (self._outer is not None or recording is not self._recording):
            return asked  # what the job logs belongs there, whoever reports
        return self._copied_run_id if recording is None else recording.run_id

    @property
    def own_run(self) -> bool:
        """Whether the run was created for this block."""
        recording = self._find_recording()
        return recording is not None and recording.run.own_run

    def is_in_current_store(self) -> bool:
        """Return whether the block has a run, in the store that MLflow uses now."""
        recording = self._find_recording()
        return (
            recording is not None
            and recording.run.run_id is not None
            and recording.run.tracking_uri == find_tracking_uri()
        )

    @property
    def node(self) -> int:
        """Index of this node, from 0."""
        recording = self._find_recording()
        return 0 if recording is None else recording.node.index

    def __enter__(self) -> Session:
        global _current, _current_pid
        is_outermost = False
        try:
            _finish_postponed()  # perhaps of this very object
            _await_room()
            with _guard:
                outer = current()
                recorded = None if outer is not None else find_recorded_run(self._settings.run_id)
                if outer is None and recorded is None:
                    self._turn, is_outermost = Turn(2 * self._settings.start_timeout), True
                    _current, _current_pid = self, os.getpid()
            self._recorded_run = recorded
            if not is_outermost:
                # autolog reports the run from its start to its end already, or the outer block. A
                # session object can be re-entered: it is its own outer session then.
                self._outer = None if outer is self else outer
                if self._outer is not None:
                    self._outer._turn.await_beginning()  # noqa: SLF001 - of this class
                self._timers.append(timing.time(self.name).__enter__())
                self._warn_of_other_run()
                return self
            if meets_stand_in("block", self.name):
                return self
            self._watch = SignalWatch(self._on_fatal, self._on_handled)
            with bring():  # once for both: each look at the memory costs 0.1 ms
                self._recording = Recording(self.name, self._settings)
                self._recording.on_free = self._make_room
                self._recording.start(on_ready=self._watch.arm)
        except MlflowPerfError:
            self._leave()
            raise
        # No error of ours reaches the job. Ctrl-C while a run was being created does.
        except BaseException as error:
            # An import of MLflow's may end in SystemExit: a plugin, or an import hook of the job.
            if not isinstance(error, Exception | SystemExit) or is_from_handler(error):
                if is_outermost:
                    self._finish(Outcome.from_error(error), limit_sec=_INTERRUPTED_SEC)
                raise
            _log.warning("The block %r is not reported: %s", self.name, first_line(error))
            _log.debug("Not reported:", exc_info=True)
        finally:
            if is_outermost:
                self._turn.has_begun.set()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._timers:
            self._timers.pop().__exit__(kind, error, trace)
            outer = self._outer
            if outer is not None and (current() is not outer or outer._turn.has_ended):  # noqa: SLF001
                why = "it began inside %r, which ended before it; put one block around both"
                self._warn(why, outer.name)
            if not self._timers and self._outer is not None:
                self._recorded_run, self._outer = self._find_recording(), None
            return
        # A forked child that leaves its parent's block must not report in the parent's name.
        if current() is self:
            try:
                outcome, self._turn.has_ended = Outcome.from_error(error), True
                with self._harmless():
                    if self._recording is not None:
                        self._recording.note_end()
                    if self._watch is not None:
                        self._watch.settle()
                        outcome = outcome.after(self._watch.received, is_usual=error is None)
                self._end(outcome)
            finally:  # what is left, if a handler of the job raised meanwhile
                if self._postponed is None:
                    self._finish(Outcome.from_error(error), limit_sec=_INTERRUPTED_SEC)

    def _end(self, outcome: Outcome) -> None:
        """Finish, or leave the report to the next block or the exit if a test's mocks are in force.

        Those that began in the block may outlive it.
        """
        with self._harmless():
            if self._recording is not None and meets_stand_in("block", self.name, at_end=True):
                self._recording.leave(outcome)
                if self._watch is not None:
                    self._watch.disarm()
                self._postponed = outcome
                self._make_room()
        if self._postponed is None:
            self._finish(outcome)

    def _finish(self, outcome: Outcome, *, limit_sec: float | None = None) -> None:
        try:
            with self._harmless():
                if (recording := self._recording) is not None:
                    recording.finish(outcome, limit_sec=limit_sec)
                    self.document, self.summary = recording.document, recording.summary
                    note_reporting(recording.run, recording.document, age_sec=self._turn.age_sec)
        finally:
            try:
                with self._harmless():
                    if self._watch is not None:
                        self._watch.disarm()
            finally:
                self._leave()
                _sending.pop(self, None)
                self._postponed = None

    @contextmanager
    def _harmless(self) -> Iterator[None]:
        """Turn an error of ours, not one of a signal handler of the job, into one warning."""
        try:
            yield
        except Exception as error:
            if is_from_handler(error):
                raise
            if not self._has_failed:
                self._has_failed = True
                said = first_line(error)
                _log.warning("The performance report of %r could not be made: %s", self.name, said)
            _log.debug("Not made:", exc_info=True)

    def _on_fatal(self, number: int) -> None:
        if (recording := self._recording) is not None:
            limit_sec = _HANGING_SEC if recording.finder.is_hanging else _GRACE_SEC
            if explain_replaced():
                recording.leave(_killed(number))  # to `recover`
            else:
                recording.finish(self._postponed or _killed(number), limit_sec=limit_sec)

    def _on_handled(self, number: int) -> None:
        if self._recording is not None:
            self._recording.report_now(_killed(number), limit_sec=_GRACE_SEC)

    def _make_room(self) -> None:
        """Let the next block have a report of its own while this one's is being sent."""
        _sending[self] = os.getpid()
        self._leave()

    def _leave(self) -> None:
        global _current, _current_pid
        with _guard:
            if _current is self:
                _current, _current_pid = None, 0
        self._turn.has_room.set()

    def _warn_of_other_run(self) -> None:
        asked, outer = self._settings.run_id, self._outer
        if asked is not None and outer is not None and asked != (used := outer.run_id):
            why = "it names the run %s, but began inside %r, which reports to %s"
            self._warn(why, asked, outer.name, f"the run {used}" if used else "a run of its own")

    def _warn(self, why: str, *facts: object) -> None:
        """Say once for each name why a block has no report of its own."""
        if self.name not in _warned:
            _warned.add(self.name)
            _log.warning(f"The block %r has no report: {why}.", self.name, *facts)

    @property
    def is_open(self) -> bool:
        """Whether the block has begun and has not ended."""
        return bool(self._timers) or current() is self

    def stop(self) -> None:
        """End the block that `mlflow_perf.start()` began; a second call does nothing."""
        if self.is_open:
            self.__exit__(None, None, None)

    def __call__(self, function: F) -> F:
        """Return the function with each call, or each iteration of a generator, as a block."""
        own_name = getattr(function, "__name__", None)
        own_name = own_name if isinstance(own_name, str) else "<lambda>"
        # A script with three decorated functions has three components.
        settings = self._settings  # not all of this object: the function may be pickled
        name = self.name if settings.name is not None or own_name == "<lambda>" else own_name
        wrapped: F = wrap(function, lambda: Session(name, settings))
        return wrapped

    def _repr_html_(self) -> str:
        """Return the report for a notebook, after the block."""
        return self.document._repr_html_()


def _copy(kind: type[Session], name: str, settings: Settings, run_id: str | None) -> Session:
    """Return the copy of a session: one that a function took along into another process."""
    copy = kind(name, settings)
    copy._copied_run_id = run_id  # noqa: SLF001 - of this module
    return copy


def _await_room() -> None:
    """Wait until the block of another thread has begun, or no longer takes this one in."""
    waited = set[Session]()
    while (last := current()) is not None and last not in waited:
        waited.add(last)
        last._turn.wait()  # noqa: SLF001 - of this module


def _killed(number: int) -> Outcome:
    return Outcome("KILLED", name_signal(number))


def _finish_postponed() -> None:
    """Finish the blocks that ended while a test's mocks were in force, if these are gone."""
    later = {s: s._postponed for s, pid in [*_sending.items()] if pid == os.getpid()}  # noqa: SLF001
    if any(later.values()) and not explain_replaced():
        for session, outcome in later.items():
            if outcome is not None:
                session._finish(outcome)  # noqa: SLF001 - of this module


def _finish_at_exit() -> None:
    """Finish blocks that the interpreter's end cuts off: in a daemon thread, or never left."""
    _finish_postponed()  # else the journal has all
    here = [session for session, pid in list(_sending.items()) if pid == os.getpid()]
    outcome = Outcome("KILLED", "the interpreter ended inside the block")
    for session in here:
        if session._postponed is None:  # noqa: SLF001 - of this module
            session._finish(outcome)  # noqa: SLF001 - of this module
    if (still_open := current()) is not None:
        still_open._end(outcome)  # noqa: SLF001 - of this module


def _renew_guard() -> None:
    global _guard  # noqa: PLW0603 - another thread of the parent may have held it
    _guard = Lock()


at_exit(_finish_at_exit)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_guard)


class _NoSession(Session):
    """What `report()` returns when `MLFLOW_PERF_DISABLE` is set: does nothing."""

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def __call__(self, function: F) -> F:
        """Return the function as it is."""
        return function


@arguments_of(Settings)
def report(**settings: Any) -> Session:
    """Report what a block of code uses, wastes and waits for, to MLflow.

    `with mlflow_perf.report("train") as perf: …`, or `@mlflow_perf.report("train")` on a function.
    The run is `run_id`, else the active run, else that of `MLFLOW_RUN_ID`, else a run of its own,
    which it then also ends: FINISHED, FAILED on an exception, KILLED on a signal. Every field of
    `Settings` is an argument, and has an environment variable: `MLFLOW_PERF_INTERVAL` for
    `interval` and so on.

    Raises:
        SettingError: When a setting is wrong; a `ValueError`.
        RunNotFoundError: When `run_id` names no run; a `ValueError`.
    """
    if callable(settings.get("name")):
        raise SettingError("report() takes a name, not a function: write @mlflow_perf.report().")
    if read_setting("disable", settings.get("disable")):
        return _NoSession(settings.get("name") or "disabled", Settings())
    found = Settings.load(**settings)
    if found.run_id is not None:
        check_run(found.run_id, found.start_timeout)
    return Session(found.name or name_process(), found)
