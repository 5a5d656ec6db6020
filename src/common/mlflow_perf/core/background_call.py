"""Calls that may take too long, with a deadline: what keeps a dead server from hanging the job.

Imports nothing of ours. MLflow's own retries block one call for minutes; they run on in a daemon
thread here, and the caller goes on when its time is up.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

__all__ = ["BackgroundCall"]

T = TypeVar("T")


_PREFIX = "perf-"


def _not_of_an_errand(record: logging.LogRecord) -> bool:
    return not str(record.threadName).startswith(_PREFIX)


# One line of ours says that the server is away; a line for each try would say nothing more.
logging.getLogger("urllib3.connectionpool").addFilter(_not_of_an_errand)


class BackgroundCall(threading.Thread, Generic[T]):
    """A call in a daemon thread, started at once.

    Args:
        call: What to do.
        name: Name of the thread, less the prefix `perf-`.
    """

    def __init__(self, call: Callable[[], T], *, name: str) -> None:
        super().__init__(name=_PREFIX + name, daemon=True)
        self._call = call
        self._answer: list[T] = []
        self._error: BaseException | None = None
        self.start()

    def run(self) -> None:
        """Make the call and keep its answer or its exception."""
        try:
            self._answer.append(self._call())
        except BaseException as error:  # noqa: BLE001 - raised again where the answer is asked for
            self._error = error

    def result(self, timeout_sec: float) -> T:
        """Return the call's answer, or raise what it raised.

        Args:
            timeout_sec: Most seconds to wait.

        Raises:
            TimeoutError: When the call is not done by then; it goes on.
        """
        if not self.done_within(timeout_sec):
            raise TimeoutError(f"no answer within {max(0.0, timeout_sec):.0f} s")
        if self._error is not None:
            raise self._error
        return self._answer[0]

    def done_within(self, timeout_sec: float) -> bool:
        """Wait until the call is done, or the time is up; return whether it is done."""
        self.join(max(0.0, timeout_sec))
        # In a forked child, where the thread is not, it is neither alive nor done.
        return not self.is_alive() and bool(self._answer or self._error)
