"""Reports of many runs, sent one after the other by one thread, so that no run waits for another.

The thread ends when there is nothing left to send.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

from mlflow_perf.core.handler_errors import is_from_handler
from mlflow_perf.core.own_cost import as_own
from mlflow_perf.core.safe_log import get_logger
from mlflow_perf.core.threads import Event, Lock, Thread
from mlflow_perf.core.uris import first_line
from mlflow_perf.core.workspaces import working_in
from mlflow_perf.publish.dispatch import dispatch
from mlflow_perf.publish.journal import Journal
from mlflow_perf.publish.node_writer import write_node
from mlflow_perf.tracking.delivery import Delivery

_LINGER_SEC = 1.0
# A report whose own time is over tells why it was not sent, and needs a moment for that.
_SETTLE_SEC = 0.5
_KEEP_SEC = 5.0  # a slow disk
_UNSENT = "its report was not sent: the time of the exit was over"
_log = get_logger(__name__)


class _KeptAlreadyError(Exception):
    """Another thread keeps the report, and tells the user."""


class LateJournal:
    """A journal that is made when a report has to be kept; most are sent at once.

    Args:
        make: Makes it.
    """

    def __init__(self, make: Callable[[], Journal]) -> None:
        self._make = make
        self._making = Lock()
        self._is_removed = self._is_kept = False
        self.journal: Journal | None = None

    def open(self) -> Journal:
        """Return the journal, which exists from now on."""
        with self._making:
            if self.journal is None:
                self.journal = self._make()
                if self._is_removed:  # the report was sent at this very moment
                    self.journal.remove()
            return self.journal

    @property
    def path(self) -> Path:
        """The file."""
        return self.open().path

    def secure(self, delivery: Delivery) -> bool:
        """Put a report into the journal; return whether it is on disk."""
        return self.open().secure(delivery)

    def keep(self, delivery: Delivery, *, unsent: str, figures_sent: bool = False) -> bool:
        """End the journal as `Journal.keep`; return whether the report is on disk.

        Raises:
            _KeptAlreadyError: When this is not the first call.
        """
        with self._making:
            if self._is_kept:
                raise _KeptAlreadyError
            self._is_kept = True
        return self.open().keep(delivery, unsent=unsent, figures_sent=figures_sent)

    def remove(self) -> None:
        """Delete the journal, if there is one; none is made any more."""
        with self._making:
            self._is_removed = True
            if self.journal is not None:
                self.journal.remove()


class Sending:
    """One report on its way.

    Args:
        make: Makes the delivery, in the queue's thread. Takes the moment on the monotonic clock
            until which it may ask the server.
        journal: Keeps the report if it cannot be sent.
        on_sent: Called with the delivery once MLflow has it.

    Attributes:
        done: Set when it was sent or kept.
        is_sent: Whether MLflow has it.
        until: When it is kept instead of sent, on the monotonic clock; infinite before `send`.
    """

    def __init__(
        self,
        make: Callable[[float], Delivery],
        journal: LateJournal,
        on_sent: Callable[[Delivery], object],
    ) -> None:
        self.done = Event()
        self.is_sent, self.until = False, math.inf
        self._make, self._journal, self._on_sent = make, journal, on_sent

    def send(self, timeout_sec: float) -> None:
        """Send it, or leave it in the journal after the time."""
        try:
            self.until = time.monotonic() + timeout_sec
            delivery = self._make(self.until)
            self.is_sent = (delivery.is_brief and self._send_directly(delivery)) or dispatch(
                delivery, self._journal, deadline=self.until
            )
            if self.is_sent:
                self._on_sent(delivery)
        except _KeptAlreadyError:
            _log.debug("Not sent either:", exc_info=True)
        except Exception as error:
            if is_from_handler(error):
                raise
            # A fault of ours; the next report may be well.
            _log.warning("A run's performance report could not be made: %s", first_line(error))
            _log.debug("Not made:", exc_info=True)
        finally:
            self.done.set()

    def _send_directly(self, delivery: Delivery) -> bool:
        """Send it without a thread and a deadline, which cost more than all else of ours."""
        try:
            with working_in(delivery.run.workspace):  # the job may be in another one by now
                write_node(delivery)
        except Exception:  # noqa: BLE001 - the way with a deadline and a journal follows
            _log.debug("Not sent at once:", exc_info=True)
            return False
        self._journal.remove()
        return True

    def keep(self) -> bool | None:
        """Put it into the journal instead, and return whether it is on disk.

        Returns:
            None where `send` has just done so, and tells the user.
        """
        try:
            return self._journal.keep(self._make(-math.inf), unsent=_UNSENT)
        except _KeptAlreadyError:
            self.done.wait(_KEEP_SEC)
            return None
        except Exception:  # noqa: BLE001 - as above
            _log.debug("Not kept:", exc_info=True)
            return False
        finally:
            self.done.set()

    @property
    def folder(self) -> Path:
        """Folder of the journal."""
        return self._journal.path.parent


class DeliveryQueue:
    """Sends reports in their order.

    Args:
        timeout_sec: Most seconds for one report; then it is kept in its journal.

    Attributes:
        timeout_sec: As above; it may be changed at any time.
    """

    def __init__(self, timeout_sec: float) -> None:
        self.timeout_sec = timeout_sec
        self._waiting: deque[Sending] = deque()
        self._sending: Sending | None = None
        self._lock = Lock()
        self._came = Event()
        self._thread: Thread | None = None
        self._is_closed = False

    def put(self, sending: Sending) -> None:
        """Add a report; never blocks."""
        with self._lock:
            self._waiting.append(sending)
            if self._thread is None:
                self._thread = Thread(self._run, name="mlflow-perf-delivery")
                try:
                    self._thread.start()
                except RuntimeError:  # the interpreter ends: `drain` sends it
                    self._thread = None
        self._came.set()

    @as_own()
    def _run(self) -> None:
        while True:
            with self._lock:
                self._came.clear()
                self._sending = self._waiting.popleft() if self._waiting else None
            if self._sending is not None:
                self._sending.send(self.timeout_sec)
            elif self._is_closed or not self._came.wait(_LINGER_SEC):
                with self._lock:
                    if not self._waiting:
                        self._thread = None
                        return

    @as_own()
    def drain(self, timeout_sec: float) -> None:
        """Wait until everything was sent; after the time, the rest goes into journals."""
        until = time.monotonic() + timeout_sec
        while True:
            with self._lock:
                next_one = self._sending or (self._waiting[0] if self._waiting else None)
                is_ours = self._thread is None or not self._thread.is_alive()
                if is_ours and self._waiting:
                    next_one = self._waiting.popleft()
            left_sec = until - time.monotonic()
            if next_one is None or left_sec <= 0:
                break
            if is_ours and not next_one.done.is_set():
                next_one.send(left_sec)
            elif not next_one.done.wait(left_sec):
                break
            elif next_one is self._sending:
                time.sleep(0.001)  # the thread takes the next one
        sending = self._sending
        if sending is not None and sending.until - time.monotonic() < _SETTLE_SEC:
            sending.done.wait(_SETTLE_SEC)
        self._keep_rest()

    def _keep_rest(self) -> None:
        with self._lock:
            rest = list(self._waiting)
            self._waiting.clear()
            if self._sending is not None and not self._sending.done.is_set():
                rest.insert(0, self._sending)
        answers = [(sending, sending.keep()) for sending in rest]
        kept = [sending for sending, is_kept in answers if is_kept]
        lost = sum(is_kept is False for _, is_kept in answers)
        if kept:
            _log.warning(
                "%s not sent in time, but kept; send with: mlflow-perf recover %s",
                _count_reports(len(kept)), kept[0].folder,
            )  # fmt: skip
        if lost:
            _log.warning("%s not sent in time and could not be kept.", _count_reports(lost))

    def close(self) -> None:
        """End the thread after the report that it is sending."""
        self._is_closed, thread = True, self._thread
        self._came.set()
        if thread is not None:
            thread.join(_LINGER_SEC)
        self._is_closed = False


def _count_reports(count: int) -> str:
    return "1 performance report was" if count == 1 else f"{count} performance reports were"
