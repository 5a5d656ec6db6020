"""Calls with a deadline, so that a dead server does not hang the job.

MLflow's own retries block one call for minutes. Here they continue in a daemon thread, and the
caller goes on after its deadline.
"""

from __future__ import annotations

import datetime
import logging
import mmap
import socket
import sys
from collections.abc import Callable
from typing import Generic, TypeVar

from mlflow_perf.core.descriptors import standard_numbers_taken
from mlflow_perf.core.own_cost import bring
from mlflow_perf.core.threads import Thread

T = TypeVar("T")


_PREFIX = "perf-"


# One line of ours says that the server is away; a line for each retry would add nothing.
logging.getLogger("urllib3.connectionpool").addFilter(
    lambda record: not str(record.threadName).startswith(_PREFIX)
)


# What MLflow needs for one call, and for its import.
_CALL_BYTES, _IMPORT_BYTES = 64 << 20, 512 << 20


def _check_room() -> None:
    """Raise where calling MLflow in a thread could end the process, or is bound to fail.

    Raises:
        RuntimeError: When too little memory is left, which ends a process in native code. Or when
            MLflow would be imported while the job has another `datetime`, as with freezegun, which
            crashes compiled modules, or sockets that belong to a thread, as with gevent.
    """
    is_new = "mlflow" not in sys.modules
    for replaced in (datetime.datetime, socket.socket) if is_new else ():
        by = replaced.__module__.partition(".")[0]
        if by not in ("datetime", "socket", "socks"):
            raise RuntimeError(f"MLflow cannot be imported now: {by} replaces {replaced.__name__}")
    private = {} if sys.platform == "win32" else {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS}
    try:
        mmap.mmap(-1, _IMPORT_BYTES if is_new else _CALL_BYTES, **private).close()
    except (OSError, ValueError, MemoryError) as error:
        raise RuntimeError(f"too little memory is left to call MLflow ({error})") from None


class BackgroundCall(Thread, Generic[T]):
    """A call of MLflow in a daemon thread, started at once.

    Args:
        call: The function to call.
        name: Name of the thread, less the prefix `perf-`.

    Raises:
        RuntimeError: When there is no room for a thread, or for MLflow.
    """

    def __init__(self, call: Callable[[], T], *, name: str) -> None:
        _check_room()
        super().__init__(name=_PREFIX + name)
        self._call = call
        self._answer: list[T] = []
        self._error: BaseException | None = None
        self.start()

    @bring()
    def run(self) -> None:
        """Make the call and keep its result or its exception."""
        try:
            with standard_numbers_taken():
                self._answer.append(self._call())
        except BaseException as error:  # noqa: BLE001 - raised again by `result`
            self._error = error

    def result(self, timeout_sec: float) -> T:
        """Return the call's result, or raise its exception.

        Args:
            timeout_sec: Maximum seconds to wait.

        Raises:
            TimeoutError: When the call is not done by then; it continues.
        """
        if not self.done_within(timeout_sec):
            # What is left of a longer wait may be nothing: "within 0 s" would say nothing.
            patience = f"within {timeout_sec:.0f} s" if timeout_sec >= 1 else "in time"
            raise TimeoutError(f"no answer {patience}")
        if self._error is not None:
            raise self._error
        return self._answer[0]

    def done_within(self, timeout_sec: float) -> bool:
        """Wait until the call is done or the time is up; return whether it is done."""
        self.join(max(0.0, timeout_sec))
        # In a forked child the thread does not exist: it is neither alive nor done.
        return not self.is_alive() and bool(self._answer or self._error)
