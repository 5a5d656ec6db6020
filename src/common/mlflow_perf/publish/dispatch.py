"""The end of a report: it is sent within its time, or kept in the journal."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Protocol

from mlflow_perf.core.handler_errors import is_from_handler
from mlflow_perf.core.safe_log import get_logger
from mlflow_perf.core.uris import first_line, is_refused, redact_password
from mlflow_perf.errors import NotUploadedError
from mlflow_perf.publish.node_writer import write_node
from mlflow_perf.tracking.delivery import Delivery
from mlflow_perf.tracking.mlflow_call import MlflowCall
from mlflow_perf.tracking.new_store import await_new_store, is_restarting, is_unmade

# How long to try a server that refuses or restarts: enough for a restart, not too much for an exit.
_KNOCK_SEC = 3.0
_KNOCK_EVERY_SEC = 0.2
_CONNECT_SEC, _LEAST_CONNECT_SEC = 2.0, 0.05
# A report that takes longer to send goes to the disk too, in case of a kill or a power cut.
_SECURE_AFTER_SEC = 0.5

_log = get_logger(__name__)


def load_mlflow(uri: str, *, deadline: float) -> None:
    """Import MLflow, unless it is imported, so that the report can contain its memory.

    A store that refuses connections needs no import.

    Args:
        uri: The store.
        deadline: When to give up sending, on the monotonic clock; half of the time may pass.
    """
    if "mlflow" not in sys.modules and not is_refused(uri, timeout_sec=_CONNECT_SEC):
        with contextlib.suppress(RuntimeError):  # no room; sending reports that
            loading = MlflowCall(lambda: import_module("mlflow"), name="import")
            loading.done_within((deadline - time.monotonic()) / 2)


class ReportKeeper(Protocol):
    """Keeps a report on disk that may not be sent: a journal."""

    @property
    def path(self) -> Path:
        """The file."""
        ...

    def secure(self, delivery: Delivery) -> bool:
        """Put a report on disk, in case that it cannot be sent; return whether it is there."""
        ...

    def keep(self, delivery: Delivery, *, unsent: str) -> bool:
        """Put a report on disk for `recover`, with why it was not sent; return if it is there."""
        ...

    def remove(self) -> None:
        """Delete the file, because the report was sent."""
        ...


def dispatch(
    delivery: Delivery, journal: ReportKeeper | None, *, deadline: float, secure: bool = False
) -> bool:
    """Send a report to MLflow, or leave it in the journal for `mlflow-perf recover`.

    Args:
        delivery: The report. Its run has an id afterwards.
        journal: The recording's journal, which is removed once everything is sent.
        deadline: When to give up, on the monotonic clock. A new local database may take
            minutes longer, unless `secure`.
        secure: Whether to put the report into the journal before anything is sent, because the job
            may be killed before that is done.

    Returns:
        Whether it was sent.
    """
    claim, uri = delivery.run.claim(), delivery.run.tracking_uri
    knock_until = min(deadline, time.monotonic() + _KNOCK_SEC)

    def send() -> None:
        while True:
            try:
                write_node(delivery, claim=claim)
                break
            except Exception as error:
                if not is_restarting(error) or time.monotonic() >= knock_until:
                    raise
                time.sleep(_KNOCK_EVERY_SEC)
        # In this thread, so that the journal goes even if the job no longer waits.
        if journal is not None:
            journal.remove()

    try:
        if secure and journal is not None:
            journal.secure(delivery)
        while is_refused(uri, timeout_sec=_limit_knock(deadline)):
            if time.monotonic() >= knock_until:
                raise ConnectionRefusedError(f"{redact_password(uri)} cannot be reached")
            time.sleep(_KNOCK_EVERY_SEC)
        sending = MlflowCall(send, name="send")
        is_sent = sending.done_within(min(_SECURE_AFTER_SEC, deadline - time.monotonic()))
        if journal is not None and not (is_sent or secure):
            journal.secure(delivery)
        patience_sec = deadline - time.monotonic()
        if not (sending.done_within(patience_sec) or secure):
            await_new_store(sending.done_within, uri)
        sending.result(0.0)
    # The edge to MLflow: whatever the store does, the job goes on and the journal keeps the report.
    # A second Ctrl-C, or a signal handler of the job that raises: the user does not want to wait.
    except BaseException as error:
        _log.debug("Not sent:", exc_info=True)
        claim.withdraw()
        _keep(delivery, journal, error)
        if not isinstance(error, Exception) or is_from_handler(error):
            raise
        return False
    return True


def _limit_knock(deadline: float) -> float:
    # However late it is: a server that refuses does so in a millisecond, and is the true reason.
    return max(_LEAST_CONNECT_SEC, min(_CONNECT_SEC, deadline - time.monotonic()))


@contextlib.contextmanager
def kept_if_interrupted(
    make: Callable[[], Delivery], journal: ReportKeeper | None
) -> Iterator[None]:
    """Leave a report in the journal if a Ctrl-C or a job's handler ends what precedes sending.

    Args:
        make: Returns the report.
        journal: Keeps it, if there is one.
    """
    try:
        yield
    except BaseException as error:
        _keep(make(), journal, error)
        raise


def _keep(delivery: Delivery, journal: ReportKeeper | None, error: BaseException) -> None:
    name, uri = delivery.document.component, delivery.run.tracking_uri
    reason = first_line(error)
    if isinstance(error, TimeoutError) and is_unmade(uri):
        reason = f"the new MLflow store {redact_password(uri)} was not ready in time"
    if isinstance(error, KeyboardInterrupt):
        reason = "it was interrupted"
    unsent = f"its report was not sent: {reason}"
    if isinstance(error, ConnectionRefusedError):
        unsent = "the tracking server could not be reached"
    if journal is not None and journal.keep(delivery, unsent=unsent):
        folder = journal.path.parent
        is_ours = os.access(folder, os.W_OK, effective_ids=os.access in os.supports_effective_ids)
        _log.warning(
            "The performance report of %r was not sent (%s). It is kept; send it%s with: "
            "mlflow-perf recover %s",
            name, reason, "" if is_ours else ", as the user that the job began as,", folder,
        )  # fmt: skip
    elif isinstance(error, NotUploadedError):
        _log.warning("The figures of %r are in MLflow; its document is lost: %s", name, reason)
    else:
        _log.warning("The performance report of %r was not sent and is lost: %s", name, reason)
