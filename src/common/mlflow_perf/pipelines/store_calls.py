"""Calls of MLflow while a pipeline runs: however the store fails, its steps go on, and it ends."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from mlflow_perf.core.safe_log import get_logger
from mlflow_perf.core.settings import read_setting
from mlflow_perf.core.uris import first_line, is_local, is_refused, reason_of, redact_password
from mlflow_perf.publish.pipeline_journal import end_steps, list_unsent
from mlflow_perf.publish.recovery import recover
from mlflow_perf.publish.recovery_checks import shorten
from mlflow_perf.tracking.client import open_client
from mlflow_perf.tracking.mlflow_call import MlflowCall

T = TypeVar("T")

_LOOK_SEC = 0.1
_KNOCK_SEC = 2.0
_STOPPED_SEC = 10.0
_KNOCK_EVERY_SEC = 5.0
_ANSWER_SEC = 60.0  # a server may hand a large file on before it answers
_SILENT = "no answer came in time"
_log = get_logger(__name__)
_away: set[tuple[str, str]] = set()
"""Stores that did not answer this process the last time, and what was asked of them."""


def send_left(uri: str, work: Path) -> bool:
    """Send what the steps of a pipeline left, and end their runs; return whether all was sent.

    Args:
        uri: The store.
        work: The pipeline's work folder.

    Raises:
        Exception: Whatever MLflow raises when the store does not answer.
    """
    for folder in dict.fromkeys(path.parent for path in list_unsent(work)):
        for left in recover(folder, of_any_host=True, store=uri):
            _log.debug("%s was sent at last", left.journal)
    end_steps(open_client(uri), work)
    return not list_unsent(work)


def _knock(uri: str) -> MlflowCall[object]:
    return MlflowCall(lambda: open_client(uri).search_experiments(max_results=1), name="knock")


class _Knocker:
    """Asks a server for next to nothing, now and then beside a call that may take long.

    MLflow uploads the files of a folder in threads of its own, whose faults nobody sees, and waits
    two minutes for a server that hangs.
    """

    def __init__(self, uri: str) -> None:
        self._uri, self._fault = uri, ""
        self._latest: MlflowCall[object] | None = None
        self._knocked = time.monotonic()

    def find_fault(self, now: float) -> str:
        """Return what is wrong with the server; empty if nothing is, or if it is this machine.

        Args:
            now: The time, on the monotonic clock.
        """
        if now - self._knocked >= _KNOCK_EVERY_SEC and not is_local(self._uri):
            self._knocked = now
            if self._latest is None or self._latest.done_within(0):
                self._latest, self._fault = _knock(self._uri), ""
            else:
                self._fault = self._latest.find_fault() or _SILENT
        return self._fault


class StoreCalls:
    """Asks the store of a pipeline, from the runner or from a step, in bounded time.

    A store that did not answer once is knocked at before it is asked again, and may answer then
    but fail at what it did not do before: a pipeline of many steps waits for it once.

    Args:
        uri: The store.
        stop: The file that tells that the pipeline is stopped; then nobody waits for long.

    Attributes:
        has_failed: Whether the store did not take something.
    """

    def __init__(self, uri: str, stop: Path) -> None:
        self.has_failed = False
        self._uri, self._stop = uri, stop

    def ask(
        self,
        call: Callable[[], T],
        what: str,
        *names: str,
        undo: Callable[[T], object] | None = None,
        is_long: bool = False,
    ) -> T | None:
        """Return what a call returns; None, with one warning, where it fails or takes too long.

        Args:
            call: The call; one that takes too long goes on in a daemon thread.
            what: What is missing without it, as a sentence; the same for all steps, with `%r` for
                each name.
            names: The names in it.
            undo: Takes the result of a call that was done too late.
            is_long: Whether it may take long, as what moves files: then its time counts from the
                first request that fails.
        """
        is_late = threading.Event()

        def make() -> T:
            answer = call()
            if is_late.is_set() and undo is not None:
                undo(answer)
            return answer

        try:
            if self._is_away():
                if is_refused(self._uri):
                    raise ConnectionRefusedError("nothing listens there")
                _knock(self._uri).result(_KNOCK_SEC)
            calling = MlflowCall(make, name="pipeline")
            self._wait(calling, is_long=is_long)
            answer = calling.result(_LOOK_SEC)
        # The edge to MLflow: a record that fails changes nothing about how the steps end.
        except Exception as error:  # noqa: BLE001 - see above
            self._tell(what, names, error)
            return None
        else:
            _away.discard((self._uri, what))
            return answer
        finally:
            is_late.set()

    def _wait(self, calling: MlflowCall[T], *, is_long: bool) -> None:
        """Wait until a call is done.

        Raises:
            TimeoutError: When it takes too long, with what is wrong.
        """
        limit_sec = max(_KNOCK_SEC, read_setting("exit_timeout"))
        # A store on this machine is only slow when it is busy, and does not go away.
        stopped_sec = limit_sec if is_local(self._uri) else _STOPPED_SEC
        # One that was away is there, but may still fail at what is asked of it.
        was_away = self._is_away()
        failing_sec = _KNOCK_SEC if was_away else limit_sec
        silent_sec = math.inf if is_long else stopped_sec if was_away else limit_sec
        answer_sec = stopped_sec if was_away else max(_ANSWER_SEC, limit_sec)
        began, knocker = time.monotonic(), _Knocker(self._uri)
        failing_since: float | None = None
        stopped_since: float | None = None
        while not calling.done_within(_LOOK_SEC):
            now, fault = time.monotonic(), calling.find_fault()
            if is_long:
                fault = fault or knocker.find_fault(now)
            failing_since = (failing_since or now) if fault else None
            if self._stop.exists():
                stopped_since = stopped_since or now
            is_failing = failing_since is not None and now - failing_since >= failing_sec
            is_stopped = stopped_since is not None and now - stopped_since >= stopped_sec
            is_silent = calling.count_awaited_sec(now) >= answer_sec or now - began >= silent_sec
            if is_failing or is_stopped or is_silent:
                raise TimeoutError(fault or _SILENT)

    def _is_away(self) -> bool:
        return any(uri == self._uri for uri, _ in tuple(_away))

    def _tell(self, what: str, names: Sequence[str], error: Exception) -> None:
        self.has_failed = True
        reason = reason_of(error)
        why = shorten(reason)
        # Of a broken connection, MLflow raises an exception of its own after its last try, and a
        # database's driver one of many kinds.
        is_away = isinstance(error, (TimeoutError, ConnectionError)) or why != reason
        if not (is_away or is_refused(self._uri)):
            _log.warning(f"{what}: %s", *names, first_line(error))
        else:
            if not self._is_away():
                _log.warning(
                    "MLflow at %s does not answer (%s). The steps go on.",
                    redact_password(self._uri),
                    why,
                )
            _away.add((self._uri, what))
        _log.debug(what, *names, exc_info=error)
