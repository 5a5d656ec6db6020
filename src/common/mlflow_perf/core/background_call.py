"""Calls with a deadline: a slow call continues in a daemon thread, and its caller goes on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from mlflow_perf.core.descriptors import standard_numbers_taken
from mlflow_perf.core.own_cost import bring
from mlflow_perf.core.threads import Thread

T = TypeVar("T")


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
            # A longer wait may already be used up, and "within 0 s" would explain nothing.
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
