"""Clocks for the sampler and the timers, as an argument, so that a test can use a fake one."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Protocol

from mlflow_perf.core.originals import time

_MONOTONIC = getattr(time, "CLOCK_MONOTONIC", None)  # absent on Windows
MONOTONIC_CALL: tuple[Callable[..., float], tuple[int, ...]] = (
    (time.monotonic, ()) if _MONOTONIC is None else (time.clock_gettime, (_MONOTONIC,))
)
"""The function written in C that `read_monotonic` calls, and its arguments."""


class Clock(Protocol):
    """A source of time that can also wait."""

    def time(self) -> float:
        """Return the wall-clock time in seconds since the Unix epoch; it may jump."""
        ...

    def monotonic(self) -> float:
        """Return seconds on a clock that never goes back; only differences have a meaning."""
        ...

    def wait(self, event: threading.Event, timeout_sec: float) -> bool:
        """Wait until `event` is set or the time is over; return whether it is set."""
        ...


def read_monotonic() -> float:
    """Return `time.monotonic()`, also while freezegun or a mock of the job replaces it."""
    function, arguments = MONOTONIC_CALL
    return function(*arguments)


def pause(seconds: float) -> None:
    """Sleep, also under libfaketime 0.9.10.

    It lets either `time.sleep` fail, or no timed wait of a lock end.
    """
    try:
        time.sleep(seconds)
    except OSError:
        threading.Event().wait(seconds)


class SystemClock:
    """The machine's own clocks."""

    def time(self) -> float:
        """Return `time.time()`."""
        return time.time()

    def monotonic(self) -> float:
        """Return `read_monotonic()`."""
        return read_monotonic()

    def wait(self, event: threading.Event, timeout_sec: float) -> bool:
        """Return `event.wait(timeout_sec)`."""
        return event.wait(timeout_sec)
