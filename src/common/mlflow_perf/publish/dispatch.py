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
from mlflow_perf.core.threads import Event
from mlflow_perf.core.uris import first_line, is_refused, redact_password
from mlflow_perf.errors import NotUploadedError
from mlflow_perf.publish.node_writer import write_node
from mlflow_perf.tracking.delivery import Delivery
from mlflow_perf.tracking.mlflow_call import MlflowCall
from mlflow_perf.tracking.new_store import await_new_store, is_restarting, is_unmade
from mlflow_perf.tracking.reporting_notes import is_gathering, note_own

# How long to try a server that refuses or restarts: enough for a restart, not too much for an exit.
_KNOCK_SEC = 3.0
_KNOCK_EVERY_SEC = 0.2
_CONNECT_SEC, _LEAST_CONNECT_SEC = 2.0, 0.05
# A report that takes longer to send goes to the disk too, in case of a kill or a power cut.
_SECURE_AFTER_SEC = 0.5
# What is nearly sent when the job's handler raises, is sent; the job waits no longer for the rest.
_INTERRUPTED_SEC = 1.0
_LEAST_RENEWAL_SEC = 1.0

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

    def keep(self, delivery: Delivery, *, unsent: str, figures_sent: bool) -> bool:
        """Put a report on disk for `recover`, with why it was not sent; return if it is there.

        The file goes where it does not take the report and `figures_sent`: nothing else is in it.
        """
        ...

    def remove(self) -> None:
        """Delete the file, because the report was sent."""
        ...


def dispatch(
    delivery: Delivery, journal: ReportKeeper | None, *, deadline: float, secure: bool = False,
    interrupt: BaseException | None = None, is_last: bool = True,
) -> bool:  # fmt: skip
    """Send a report to MLflow, or leave it in the journal for `recover`; return if it was sent.

    Args:
        delivery: The report. Its run has an id afterwards.
        journal: The recording's journal, which is removed once everything is sent.
        deadline: When to give up, on the monotonic clock. A new local database may take
            minutes longer, unless `secure`.
        secure: Whether the journal gets the report first, because the job may be killed meanwhile.
        interrupt: What left so little time; where that is too short, it is the reason.
        is_last: Whether nothing is sent of this recording later: a failure is said aloud.
    """
    claim, uri, sent = delivery.run.claim(), delivery.run.tracking_uri, Event()
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
        sent.set()

    try:
        if secure and journal is not None:
            journal.secure(delivery)
        _knock(uri, until=knock_until, deadline=deadline)
        sending = MlflowCall(send, name="send", workspace=delivery.run.workspace)
        is_sent = sending.done_within(min(_SECURE_AFTER_SEC, deadline - time.monotonic()))
        if journal is not None and not (is_sent or secure):
            journal.secure(delivery)
        if not (sending.done_within(deadline - time.monotonic()) or secure):
            await_new_store(sending.done_within, uri)
        sending.result(0.0)
    # The edge to MLflow: whatever the store does, the job goes on and the journal keeps the report.
    # A second Ctrl-C, or a signal handler of the job that raises: the user does not want to wait.
    except BaseException as error:
        _log.debug("Not sent:", exc_info=True)
        is_interrupted = not isinstance(error, Exception) or is_from_handler(error)
        with contextlib.ExitStack() as otherwise:
            if is_last:
                otherwise.callback(_keep, delivery, journal, error, interrupt)
            otherwise.callback(claim.withdraw)
            if is_interrupted and sent.wait(_INTERRUPTED_SEC):
                otherwise.pop_all()
        if is_interrupted:
            raise
        return False
    _renew_workflow(delivery, journal, deadline=deadline)
    return True


def _renew_workflow(delivery: Delivery, journal: ReportKeeper | None, *, deadline: float) -> None:
    """Renew the report of a step's workflow, where its group has ended before the step."""
    # Without a journal the same report is sent again later.
    if journal is None or not delivery.run.parent_id or is_gathering():
        return
    uri, run_id = delivery.run.tracking_uri, str(delivery.run.run_id)

    def renew() -> None:
        from mlflow_perf.publish.workflow_renewal import renew_workflows

        renew_workflows([(uri, run_id)])

    # The edge to MLflow, as above; the step's own report is sent.
    try:
        renewing = MlflowCall(renew, name="renew", workspace=delivery.run.workspace)
        renewing.result(max(_LEAST_RENEWAL_SEC, deadline - time.monotonic()))
    except Exception as error:
        if is_from_handler(error):
            raise
        _log.warning("The report of the step's workflow is not renewed: %s", first_line(error))


def _knock(uri: str, *, until: float, deadline: float) -> None:
    while True:
        # However late it is: a server that refuses does so in a millisecond: the true reason.
        patience_sec = max(_LEAST_CONNECT_SEC, min(_CONNECT_SEC, deadline - time.monotonic()))
        if not is_refused(uri, timeout_sec=patience_sec):
            return
        if time.monotonic() >= until:
            raise ConnectionRefusedError(f"{redact_password(uri)} cannot be reached")
        time.sleep(_KNOCK_EVERY_SEC)


@contextlib.contextmanager
def sent_if_interrupted(
    make: Callable[[], Delivery], journal: ReportKeeper | None
) -> Iterator[None]:
    """Send or keep a report at once if a Ctrl-C or a job's handler ends what precedes sending.

    Args:
        make: Returns the report.
        journal: Keeps it, if there is one.
    """
    try:
        yield
    except BaseException as error:
        delivery = make()
        is_fault = isinstance(error, Exception) and not is_from_handler(error)
        if is_fault or delivery.run.is_left:
            _keep(delivery, journal, error)
        else:
            until = time.monotonic() + _INTERRUPTED_SEC
            dispatch(delivery, journal, deadline=until, interrupt=error)
        raise


def _keep(
    delivery: Delivery,
    journal: ReportKeeper | None,
    error: BaseException,
    interrupt: BaseException | None = None,
) -> None:
    if interrupt is not None and isinstance(error, TimeoutError):
        error = interrupt  # of the job, which left too little time
    name, uri = delivery.document.component, delivery.run.tracking_uri
    reason = first_line(error)
    if isinstance(error, TimeoutError) and is_unmade(uri):
        reason = f"the new MLflow store {redact_password(uri)} was not ready in time"
    if isinstance(error, KeyboardInterrupt):
        reason = "it was interrupted"
    unsent = f"its report was not sent: {reason}"
    if isinstance(error, ConnectionRefusedError):
        unsent = "the tracking server could not be reached"
    figures_sent = isinstance(error, NotUploadedError)
    note_own(delivery, is_over=True)
    if journal is not None and journal.keep(delivery, unsent=unsent, figures_sent=figures_sent):
        folder = journal.path.parent
        is_ours = os.access(folder, os.W_OK, effective_ids=os.access in os.supports_effective_ids)
        # What only takes longer is sent meanwhile, as long as this process lives.
        send = "if it does not arrive, send it" if isinstance(error, TimeoutError) else "send it"
        _log.warning(
            "The performance report of %r was not sent (%s). It is kept; %s%s with: "
            "mlflow-perf recover %s",
            name, reason, send, "" if is_ours else ", as the user that the job began as,", folder,
        )  # fmt: skip
    elif figures_sent:
        _log.warning("The figures of %r are in MLflow; its document is lost: %s", name, reason)
    elif journal is not None and journal.path.exists():
        _log.warning(
            "The performance report of %r was not sent (%s), and its end could not be kept. Send "
            "what was written before, as of a killed job, with: mlflow-perf recover %s",
            name, reason, journal.path.parent,
        )  # fmt: skip
    else:
        _log.warning("The performance report of %r was not sent and is lost: %s", name, reason)
