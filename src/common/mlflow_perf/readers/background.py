"""A thread that asks a source that may block, so that the sampler never blocks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from mlflow_perf.core.own_cost import as_own
from mlflow_perf.core.safe_log import get_logger
from mlflow_perf.core.threads import Event, Thread
from mlflow_perf.core.uris import first_line
from mlflow_perf.errors import MlflowPerfError

T = TypeVar("T")

_log = get_logger(__name__)


def warn_left_out(error: Exception) -> None:
    """Warn that a source is left out: in one line if the error already has a recommendation."""
    if isinstance(error, MlflowPerfError):
        _log.warning("A source is left out: %s", error)
    else:
        _log.warning("A source cannot be read and is left out: %s", first_line(error))
        _log.debug("Not read:", exc_info=error)


class Background(Generic[T]):
    """Asks a source in a daemon thread and returns the newest answer.

    Args:
        open_source: Called once in the thread: opens the source and returns the function that asks.
        name: Name of the thread.
        patience_sec: Longest time that `newest` waits for a fresh answer.
        on_close: Called in the thread when it ends, if the source was opened.
    """

    def __init__(
        self,
        open_source: Callable[[], Callable[[], T]],
        *,
        name: str,
        patience_sec: float = 0.02,
        on_close: Callable[[], object] | None = None,
    ) -> None:
        self._open, self._patience_sec, self._on_close = open_source, patience_sec, on_close
        self._asked, self._answered = Event(), Event()
        self._closing = False
        self._value: T | None = None
        self._thread = Thread(self._run, name=name)
        self._thread.start()

    @as_own()
    def _run(self) -> None:
        try:
            ask = self._open()
        # A broken driver costs its own values, never the job.
        except Exception as error:  # noqa: BLE001 - see above
            warn_left_out(error)
            return
        while True:
            self._asked.wait()
            self._asked.clear()
            if self._closing:
                break
            try:
                self._value = ask()
            except Exception:  # noqa: BLE001 - as above; it is asked again next time
                _log.debug("A source did not answer.", exc_info=True)
                self._value = None
            self._answered.set()
        try:
            if self._on_close is not None:
                self._on_close()
        except Exception:  # noqa: BLE001 - as above
            _log.debug("A source could not be closed.", exc_info=True)

    def newest(self, patience_sec: float | None = None) -> T | None:
        """Ask, wait a little, and return the newest answer; None while there is none.

        Args:
            patience_sec: Longest time to wait this time; default: that of the constructor.
        """
        self._answered.clear()
        self._asked.set()
        if self._thread.is_alive():
            self._answered.wait(self._patience_sec if patience_sec is None else patience_sec)
        return self._value

    def close(self) -> None:
        """End the thread after its present question; a thread that hangs in a driver stays."""
        self._closing = True
        self._asked.set()
        self._thread.join(self._patience_sec)
