"""Timers: a plain stopwatch, and a timer that records its time."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from time import perf_counter_ns
from typing import Any, TypeVar

from mlflow_perf.recorders.operations.keys import check_name, plain_key
from mlflow_perf.recorders.operations.nesting import Recorder, nest, unnest
from mlflow_perf.recorders.operations.wrap import StepTimer, wrap

_SelfT = TypeVar("_SelfT", bound="Timer")
_F = TypeVar("_F", bound=Callable[..., Any])
_TimerT = TypeVar("_TimerT", "OperationTimer", StepTimer)


class Timer:
    """A stopwatch in nanoseconds, as a context manager or with `start()` and `stop()`.

    Example:
        >>> with Timer() as timer:
        ...     pass
        >>> timer.elapsed_ms >= 0
        True
    """

    __slots__ = ("_elapsed_ns", "_start_ns")

    def __init__(self) -> None:
        self._elapsed_ns: int | None = 0

    def __enter__(self: _SelfT) -> _SelfT:
        return self.start()

    def __exit__(self, kind: object = None, error: object = None, trace: object = None) -> None:
        self.stop()

    def start(self: _SelfT) -> _SelfT:
        """Start, or start again, and return the timer."""
        self._elapsed_ns = None
        self._start_ns = perf_counter_ns()
        return self

    def stop(self: _SelfT) -> _SelfT:
        """Stop and return the timer; a timer that is not running stays unchanged."""
        if self._elapsed_ns is None:
            self._elapsed_ns = perf_counter_ns() - self._start_ns
        return self

    @property
    def elapsed_ns(self) -> int:
        """Nanoseconds between start and stop; 0 before the first start.

        Raises:
            RuntimeError: If the timer is still running.
        """
        if self._elapsed_ns is None:
            raise RuntimeError("Timer is still running! Stop it, or leave its block, first.")
        return self._elapsed_ns

    @property
    def elapsed_ms(self) -> float:
        """Milliseconds between start and stop."""
        return self.elapsed_ns / 1e6

    @property
    def elapsed_s(self) -> float:
        """Seconds between start and stop."""
        return self.elapsed_ns / 1e9


class OperationTimer(Timer):
    """A timer that records its time under a name when its block ends, also by an exception.

    It is also a decorator of plain, generator and async functions; each call gets a new timer.

    Args:
        recorder: Where to record.
        name: Name of the operation.
        key: Its key.
        nested: Whether to prefix the name with that of the nested timer around.

    Raises:
        SettingError: If the name is not a non-empty string, or the key is not hashable.
    """

    __slots__ = ("_key", "_name", "_nested", "_recorder", "_token")

    def __init__(
        self, recorder: Recorder, name: str, key: Any = None, nested: bool = False
    ) -> None:
        # Checked here, not when the block ends: the error belongs to the call that is wrong.
        if type(name) is not str or not name:
            check_name(name)
        if key is not None:
            plain_key(key)
        self._recorder = recorder
        self._name = name
        self._key = key
        self._nested = nested
        self._elapsed_ns = 0

    def __enter__(self) -> OperationTimer:
        if self._nested:
            self._name, self._token = nest(self._name)
        self._elapsed_ns = None
        self._start_ns = perf_counter_ns()
        return self

    def __exit__(self, kind: object = None, error: object = None, trace: object = None) -> None:
        self._elapsed_ns = elapsed_ns = perf_counter_ns() - self._start_ns
        self._recorder.add_time(self._name, self._key, elapsed_ns / 1e6)
        if self._nested:
            self._name = unnest(self._name, self._token)

    def stop(self) -> OperationTimer:
        """Stop, record the time, and return the timer."""
        if self._elapsed_ns is None:
            self.__exit__()
        return self

    def start(self) -> OperationTimer:
        """Start and return the timer."""
        return self.__enter__()

    def __call__(self, function: _F) -> _F:
        """Wrap a function so that each of its calls is timed."""
        return time_calls(
            function, lambda: self._recorder, self._name, self._key, nested=self._nested
        )


def time_calls(
    function: _F, find: Callable[[], Recorder | None], name: str, key: Any, *, nested: bool
) -> _F:
    """Wrap a function so that each of its calls is timed; `find` returns where, None for nowhere.

    Raises:
        SettingError: If `function` is a class.
    """

    def make(kind: type[_TimerT]) -> _TimerT | None:
        recorder = find()
        return None if recorder is None else kind(recorder, name, key, nested)

    wrapped: _F = wrap(function, partial(make, OperationTimer), partial(make, StepTimer))
    return wrapped
