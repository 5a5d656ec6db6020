"""The end of a report: a finished delivery is sent within its time, or kept in the journal.

Imports addresses, errand, journal and the MLflow sink.
"""

from __future__ import annotations

import logging
import threading
import time

from mlflow_perf.core.background_call import BackgroundCall
from mlflow_perf.core.uris import first_line, is_refused, redact_password
from mlflow_perf.publish.journal import Journal, state_folder
from mlflow_perf.publish.node_writer import MlflowSink
from mlflow_perf.tracking.delivery import Delivery

__all__ = ["dispatch"]

# Against a server that refuses: long enough for one that restarts, short enough for a job's end.
_KNOCK_SEC = 3.0
_KNOCK_EVERY_SEC = 0.2
# A send that takes longer than this is secured against what may still come: a kill, a power cut.
_SECURE_AFTER_SEC = 0.5

_log = logging.getLogger(__name__)


def dispatch(
    delivery: Delivery, journal: Journal | None, *, deadline: float, secure: bool = False
) -> bool:
    """Send a delivery to MLflow, or leave it in the journal for `mlflow-perf recover`.

    Args:
        delivery: What to send; it has its run's id afterwards.
        journal: The recording's journal, which is removed once all is sent.
        deadline: When to give up, on the monotonic clock.
        secure: Whether to put the delivery into the journal before anything is sent: what ends the
            job may not leave the time for sending.

    Returns:
        Whether it was sent.
    """
    attempt = _Attempt(delivery)
    try:
        if secure and journal is not None:
            journal.secure(delivery)
        _knock(delivery.tracking_uri, min(deadline, time.monotonic() + _KNOCK_SEC))
        sending = BackgroundCall(lambda: _send(attempt, journal), name="send")
        if not sending.done_within(min(_SECURE_AFTER_SEC, deadline - time.monotonic())):
            _secure(delivery, journal, already=secure)
        sending.result(deadline - time.monotonic())
    # A sink's edge: whatever the store does, the job goes on, and the journal keeps the report.
    except Exception as error:  # noqa: BLE001
        _log.debug("Not sent:", exc_info=True)
        attempt.give_up()
        _keep(delivery, journal, error)
        return False
    # A second Ctrl-C, or a signal handler of the job's that raises: it is impatient, and right.
    except BaseException as error:
        attempt.give_up()
        _keep(delivery, journal, error)
        raise
    return True


class _Attempt:
    """One attempt to send a delivery, which may go on after nobody waits for it any more.

    A run that is made only then would be a second one, beside that of `recover`.

    Args:
        delivery: What is sent.
    """

    def __init__(self, delivery: Delivery) -> None:
        self.delivery = delivery
        self._lock = threading.Lock()
        self._is_over = False

    def adopt(self, run_id: str) -> bool:
        """Let the delivery go to a run that was made for it, unless that came too late."""
        with self._lock:
            if not self._is_over:
                self.delivery.run_id, self.delivery.own_run = run_id, True
            return not self._is_over

    def give_up(self) -> None:
        """Take no run any more."""
        with self._lock:
            self._is_over = True


def _send(attempt: _Attempt, journal: Journal | None) -> None:
    MlflowSink().write(attempt.delivery, adopt=attempt.adopt)
    # Here, so that the journal goes even if the job had stopped waiting before this was done.
    if journal is not None:
        journal.remove()


def _secure(delivery: Delivery, journal: Journal | None, *, already: bool) -> None:
    if journal is not None and not already:
        journal.secure(delivery)


def _keep(delivery: Delivery, journal: Journal | None, error: BaseException) -> None:
    name = delivery.document.component
    if journal is not None and journal.keep(delivery):
        _log.warning(
            "The performance report of %r was not sent (%s). It is kept; send it with: "
            "mlflow-perf recover %s", name, first_line(error), state_folder(),
        )  # fmt: skip
    else:
        _log.warning(
            "The performance report of %r was not sent and is lost: %s", name, first_line(error)
        )


def _knock(uri: str, until: float) -> None:
    """Return when the server may be there.

    Raises:
        ConnectionRefusedError: When it still refuses at the end of the time.
    """
    while is_refused(uri):
        if time.monotonic() >= until:
            raise ConnectionRefusedError(f"{redact_password(uri)} refuses connections")
        time.sleep(_KNOCK_EVERY_SEC)
