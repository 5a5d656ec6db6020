"""Calls with a deadline: a slow call continues in a daemon thread, and its caller goes on."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

from mlflow_perf.core.descriptors import standard_numbers_taken
from mlflow_perf.core.handler_errors import is_from_handler
from mlflow_perf.core.originals import os
from mlflow_perf.core.own_cost import bring
from mlflow_perf.core.threads import Event, Thread

T = TypeVar("T")

_BEGIN_SEC, _END_SEC, _PATIENCE_SEC = 0.5, 1.0, 2.0


class BackgroundCall(Thread, Generic[T]):
    """A call in a daemon thread, started at once.

    Args:
        call: The function to call.
        name: Name of the thread, less the prefix `perf-`.

    Raises:
        RuntimeError: When the process may have no further thread.
    """

    def __init__(self, call: Callable[[], T], *, name: str) -> None:
        super().__init__(name=f"perf-{name}")
        self._call = call
        self._answer: list[T] = []
        self._error: BaseException | None = None
        self._pid, self._done = os.getpid(), Event()
        self.start()

    @bring()
    def work(self) -> None:
        """Make the call and keep its result or its exception."""
        try:
            with standard_numbers_taken():
                self._answer.append(self._call())
        except BaseException as error:  # noqa: BLE001 - raised again by `result`
            self._error = error
        finally:
            self._done.set()

    def result(self, timeout_sec: float) -> T:
        """Return the call's result, or raise its exception.

        Args:
            timeout_sec: Maximum seconds to wait.

        Raises:
            TimeoutError: When the call is not done by then; it continues.
        """
        if not self.done_within(timeout_sec):
            # A longer wait may already be used up, and "within 0 s" would explain nothing.
            patience = f"within {timeout_sec:.0f} s" if timeout_sec >= 1 else "in time"
            raise TimeoutError(f"it was not done {patience}")
        if self._error is not None:
            raise self._error
        return self._answer[0]

    def done_within(self, timeout_sec: float) -> bool:
        """Wait until the call is done or the time is up; return whether it is done."""
        # In a forked child the thread does not exist: it is neither alive nor done. Python up to
        # 3.12 takes a thread for ended if a signal handler raises while it is joined.
        if self._pid == os.getpid() and self._done.wait(max(0.0, timeout_sec)):
            self.join(_END_SEC)
        return self._done.is_set()


def undisturbed(call: Callable[[], T]) -> T:
    """Make a call to its end, or not at all, whatever a signal handler of the job raises meanwhile.

    Python runs handlers in the main thread, between any two of its instructions. So the call is
    made in another thread, and what a handler raises is raised here once the call is done, but
    after two seconds at the latest.
    """
    if threading.get_native_id() != threading.main_thread().native_id:
        return call()
    begun, done = Event(), Event()

    def make() -> T:
        begun.set()
        try:
            return call()
        finally:
            done.set()

    try:
        calling = BackgroundCall(make, name="end")
        # A built-in function that the job has replaced by one that raises may end the thread first.
        while not done.wait(_PATIENCE_SEC) and calling.is_alive():
            pass
    except BaseException as error:
        if isinstance(error, RuntimeError) and not is_from_handler(error):
            return call()  # no more threads, or the interpreter ends
        # It may have been raised before there was a thread.
        if begun.wait(_BEGIN_SEC):
            done.wait(_PATIENCE_SEC)
        raise
    return calling.result(_END_SEC)
