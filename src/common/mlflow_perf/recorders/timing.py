"""`time`: a timer that finds the session of the process by itself."""

from __future__ import annotations

import threading
from collections.abc import Callable
from time import perf_counter_ns
from typing import Any, TypeVar

from mlflow_perf.core.handler_errors import is_from_handler
from mlflow_perf.core.safe_log import get_logger
from mlflow_perf.core.threads import Lock
from mlflow_perf.errors import SettingError
from mlflow_perf.recorders import current
from mlflow_perf.recorders.operations.keys import as_text
from mlflow_perf.recorders.operations.nesting import nest, unnest
from mlflow_perf.recorders.operations.timer import OperationTimer, time_calls

_F = TypeVar("_F", bound=Callable[..., Any])
_TimerT = TypeVar("_TimerT", bound="SessionTimer")
_MAX_IDLE = 1000
_idle: dict[str, IdleTimer] = {}
_sharing = Lock()
_warned = False
_log = get_logger(__name__)


def time(name: str, key: Any = None, *, nested: bool = False) -> SessionTimer | IdleTimer:
    """Return a timer that records into the current session, from any process of the job.

    It is a context manager, and a decorator of plain, generator and async functions. A decorated
    function looks up the session at each call. Without a session nothing is measured.

    Args:
        name: Name of the operation; dots make it hierarchical.
        key: Which object the operation is on.
        nested: Put the name below that of the nested timer around: `epoch.load`.

    Example:
        >>> with time("load_data"):
        ...     pass
    """
    recorder = current.process.operations
    if recorder is None:
        # One object per name is kept: making a new one would cost as much as all the rest.
        if key is None and not nested:
            try:
                return _idle[name]
            except (KeyError, TypeError):
                pass
        idle = IdleTimer(name, key, nested)
        if type(name) is str and key is None and not nested and len(_idle) < _MAX_IDLE:
            _idle[name] = idle
        return idle
    try:
        return SessionTimer(recorder, name, key, nested)
    # The job is running, so a wrong name or key must not raise, whatever its own methods raise.
    except Exception as error:
        if is_from_handler(error):
            raise
        global _warned  # noqa: PLW0603 - one warning for each process
        if not _warned:
            _warned = True
            said = error if isinstance(error, SettingError) else f"{type(error).__name__}."
            _log.warning("%s It is recorded as text, or without its key.", said)
        return time(as_text(name) or "unnamed", nested=nested)


class SessionTimer(OperationTimer):
    """The timer of a process with a session. As a decorator it looks up the session at each call.

    It may be shared: threads that are inside at the same time, and a block of it inside another
    one, are measured each for itself.
    """

    __slots__ = ("_starts",)

    def __enter__(self: _TimerT) -> _TimerT:
        if self._elapsed_ns is None and not self._nested:
            self._share()
            return self.__enter__()
        # `OperationTimer`'s own lines, here and in `__exit__`: calls of it cost a fifth of a timer.
        if self._nested:
            self._name, self._token = nest(self._name)
        self._elapsed_ns = None
        self._start_ns = perf_counter_ns()
        return self

    def __exit__(self, kind: object = None, error: object = None, trace: object = None) -> None:
        # `with` looks this method up before it enters, where the class may change.
        if self.__class__ is _SharedTimer:
            self.__exit__()
            return
        self._elapsed_ns = elapsed_ns = perf_counter_ns() - self._start_ns
        self._recorder.add_time(self._name, self._key, elapsed_ns / 1e6)
        if self._nested:
            self._name = unnest(self._name, self._token)

    def _share(self) -> None:
        with _sharing:
            if type(self) is SessionTimer:
                # The block that is open ends by `_start_ns`, and may do so at this very moment.
                self._starts: dict[int, list[int]] = {}
                self.__class__ = _SharedTimer

    def start(self: _TimerT) -> _TimerT:
        """Start, or start again, and return the timer."""
        self._elapsed_ns = 0
        return self.__enter__()

    def __call__(self, function: _F) -> _F:
        """Wrap a function so that each call within a session is timed."""
        return time_calls(function, current.recorder, self._name, self._key, nested=self._nested)


class _SharedTimer(SessionTimer):
    """A timer that was entered while it was open; it keeps the starts of each thread."""

    __slots__ = ()

    def __enter__(self: _TimerT) -> _TimerT:
        self._starts.setdefault(threading.get_ident(), []).append(perf_counter_ns())
        return self

    def __exit__(self, kind: object = None, error: object = None, trace: object = None) -> None:
        ended_ns, starts = perf_counter_ns(), self._starts.get(threading.get_ident())
        self._elapsed_ns = ended_ns - (starts.pop() if starts else self._start_ns)
        self._recorder.add_time(self._name, self._key, self._elapsed_ns / 1e6)

    def stop(self: _TimerT) -> _TimerT:
        """Stop what this thread started last, record the time, and return the timer."""
        if self._starts.get(threading.get_ident()):
            self.__exit__()
        return self


class IdleTimer:
    """The timer of a process without a session; shared by all callers that use its name.

    A timer that was made before the session began, for example at the top of a module, measures as
    soon as there is a session. `elapsed_ns` stays 0: use `Timer` for a time that the code needs.
    """

    __slots__ = ("_key", "_name", "_nested", "_open")

    elapsed_ns = 0
    elapsed_ms = 0.0
    elapsed_s = 0.0

    def __init__(self, name: str, key: Any, nested: bool) -> None:
        self._name = name
        self._key = key
        self._nested = nested
        self._open: dict[int, list[SessionTimer | IdleTimer]] = {}

    def __enter__(self) -> IdleTimer:
        if current.process.operations is not None:
            timer = time(self._name, self._key, nested=self._nested).start()
            self._open.setdefault(threading.get_ident(), []).append(timer)
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if self._open:
            self.stop()

    def start(self) -> IdleTimer:
        """Start as a timer does."""
        return self.__enter__()

    def stop(self) -> IdleTimer:
        """Stop as a timer does."""
        timers = self._open.get(threading.get_ident())
        if timers:
            timers.pop().stop()
            if not timers:
                self._open.pop(threading.get_ident(), None)
        return self

    def __call__(self, function: _F) -> _F:
        """Wrap a function so that each call within a session is timed."""
        return time_calls(function, current.recorder, self._name, self._key, nested=self._nested)
