"""Work of ours that a thread of its own does, because the caller has no time for it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from mlflow_perf.core.own_cost import as_own
from mlflow_perf.core.threads import Thread


class Aside:
    """Does one piece of work at a time; what comes meanwhile is left out.

    Args:
        name: Name of the thread.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._thread: Thread | None = None

    def begin(self, work: Callable[[], object]) -> None:
        """Begin with a piece of work, unless one is still being done."""
        if self._thread is None or not self._thread.is_alive():
            self._thread = Thread(as_own()(work), name=self._name)
            with contextlib.suppress(RuntimeError):  # no room for one more
                self._thread.start()

    def wait(self, timeout_sec: float) -> None:
        """Wait until the work is done, or for so many seconds."""
        if self._thread is not None and self._thread.is_alive():
            self._thread.join(timeout_sec)
