"""Records all MLflow runs of this process, for `autolog()`.

`tracking.run_events` reports each run that starts or ends. All runs share one sampler, one watch of
signals and one queue of reports; each run has its own window.
"""

from __future__ import annotations

import contextlib
import math
import sys
import time
from collections.abc import Callable
from typing import Any

from mlflow_perf.core.background_call import BackgroundCall
from mlflow_perf.core.format import format_count
from mlflow_perf.core.originals import os
from mlflow_perf.core.own_cost import as_own, bring
from mlflow_perf.core.safe_log import get_logger
from mlflow_perf.core.settings import Settings
from mlflow_perf.core.threads import RLock
from mlflow_perf.core.uris import is_http
from mlflow_perf.integrations import proxystore
from mlflow_perf.model.document import AUTOLOG, PerfDocument
from mlflow_perf.node.exit_cause import name_signal
from mlflow_perf.publish.delivery_queue import DeliveryQueue, Sending
from mlflow_perf.publish.journal_file import find_state_folder
from mlflow_perf.recorders import current
from mlflow_perf.recorders.collect import collect_operations
from mlflow_perf.recorders.operations import OperationMetrics
from mlflow_perf.recorders.spool_folder import SpoolFolder
from mlflow_perf.sampling.windows import WindowSampler
from mlflow_perf.session.address import describe_node, name_process
from mlflow_perf.session.closing_line import write_closing_line, write_note
from mlflow_perf.session.open_runs import (
    count_overlaps,
    find_run_around,
    is_joined,
    is_left_to_script,
    leave_to_parent,
    open_runs,
)
from mlflow_perf.session.outcome import Outcome
from mlflow_perf.session.patience import Patience
from mlflow_perf.session.run_recording import RunRecording
from mlflow_perf.session.run_sources import detect_node, open_job_readers
from mlflow_perf.session.signals import SignalWatch
from mlflow_perf.session.stand_ins import meets_stand_in
from mlflow_perf.tracking.delivery import Delivery
from mlflow_perf.tracking.page_probe import has_page
from mlflow_perf.tracking.reporting_notes import note_reporting
from mlflow_perf.tracking.run_events import StartedRun
from mlflow_perf.tracking.run_notes import note_reported

_MAX_OPEN = 256  # runs; more are those that somebody creates and never ends
_MAX_DELETED = 16  # the newest, which may be restored
# Of the runs below a second, the first ones have a page, a description and a line of their own.
_FULL_SHORT_RUNS = 20
# Freed when a run ends, so that MLflow can end it where memory is short; its pages are untouched.
_RESERVE_BYTES = 1 << 20
GRACE_SEC = 20.0  # Slurm and Kubernetes kill a process 30 s after its signal
_log = get_logger(__name__)


class RunRecorder:
    """Records the runs of this process, as MLflow starts and ends them.

    Args:
        settings: The settings of every report.
    """

    @bring()
    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._name = settings.name or name_process()
        self._node = detect_node(settings.node)
        self._node_facts = {**describe_node(self._node), "recorded_by": AUTOLOG}
        self._pid = os.getpid()
        self._lock = RLock()
        self._operations = OperationMetrics()
        self._queue = DeliveryQueue(settings.exit_timeout)
        self._patience = Patience(settings.exit_timeout)
        self._watch = SignalWatch(self._on_fatal, self._on_handled)
        self._state_folder = find_state_folder(settings.dir)
        self._reserve: bytearray | None = None
        self._sampler: WindowSampler | None = None
        self._spool: SpoolFolder | None = None
        self._pages: dict[str, BackgroundCall[bool]] = {}
        self._deleted: dict[str, RunRecording] = {}
        self._short_runs = self._silent_runs = 0
        self._is_full = self._ends_with_pool = False

    @as_own()
    def run_started(self, run: StartedRun) -> None:
        """Open the run's window, unless it has one or is no run of the present."""
        with self._lock:
            if os.getpid() != self._pid:
                leave_to_parent()
                self.__init__(self._settings)  # type: ignore[misc] # the same listener, all fresh
            if run.run_id in open_runs:
                open_runs[run.run_id].is_active |= not run.is_new
                return
            block = _find_block()
            is_blocks = block is not None and block.run_id == run.run_id
            if is_blocks or meets_stand_in("run", run.run_id) or is_joined(run, self._state_folder):
                return  # something else reports to it, or nothing can
            if not self._node.samples:
                self._gather()  # another rank of this node samples for all of them
                return
            if len(open_runs) >= _MAX_OPEN:
                if not self._is_full:
                    self._is_full = True
                    _log.warning("%d runs are open; further ones are not reported.", _MAX_OPEN)
                return
            sampler = self._begin()
            parent = open_runs.get(run.parent_id or "")
            # A trial that is logged after its search: it began with its parent.
            is_late = parent is not None and run.is_new and run.start_ms == parent.started.start_ms
            if parent is not None and is_late:
                window = sampler.open_like(parent.window)
            elif not run.is_backdated:
                window = sampler.open()
            else:
                return  # copied from elsewhere: nothing of it happened here and now
            recording = RunRecording(
                run,
                name=self._name,
                node=self._node,
                node_facts=self._node_facts,
                settings=self._settings,
                sampler=sampler,
                window=window,
                state_folder=self._state_folder,
                spool_folder=None if self._spool is None else self._spool.path,
                operations=current.recorder() or self._operations,
                read_operations=self._read_operations,
            )
            recording.is_late = is_late
            if block is not None and block.run_id == run.parent_id:
                recording.block = block
            recording.measured_by = _find_around(recording)
            count_overlaps(recording)
            open_runs[run.run_id] = recording

    @as_own()
    def run_ending(self, run_id: str, status: str) -> None:
        """Take the last reading of a run that is about to end."""
        recording = open_runs.get(run_id)
        if recording is not None and os.getpid() == self._pid:
            self._reserve = None
            error = sys.exc_info()[1]
            failed = status != "FINISHED" and error is not None
            if meets_stand_in("run", run_id):
                recording.discard()
            else:
                _close(recording, Outcome(status, type(error).__name__ if failed else None))

    @as_own()
    def run_ended(self, run_id: str) -> None:
        """Send the report of a run that has ended."""
        with self._lock:
            recording = None if os.getpid() != self._pid else open_runs.pop(run_id, None)
        if recording is None:
            return
        below = None if self._spool is None else self._spool.path
        if recording.is_discarded or is_left_to_script(below, run_id):
            recording.discard()
            return
        sending = self._send(recording)
        if not open_runs:  # they would have the wait in their figures
            self._patience.await_report(sending, run_sec=recording.window.summary.duration() or 0.0)

    @as_own()
    def run_deleted(self, run_id: str) -> None:
        """Set a run aside: it has no report, unless it is restored while this process works."""
        with self._lock:
            recording = None if os.getpid() != self._pid else open_runs.pop(run_id, None)
            if recording is not None:
                self._deleted[run_id] = recording
            given_up = [self._deleted.pop(one) for one in list(self._deleted)[:-_MAX_DELETED]]
        for one in given_up:
            one.discard()

    def run_restored(self, run_id: str) -> None:
        """Go on with a run that was deleted."""
        with self._lock:
            recording = None if os.getpid() != self._pid else self._deleted.pop(run_id, None)
            if recording is not None:
                open_runs[run_id] = recording

    def _send(self, recording: RunRecording) -> Sending:
        is_short = recording.is_short and recording.started.is_new
        with self._lock:
            self._short_runs += is_short
            brief = is_short and self._short_runs > _FULL_SHORT_RUNS
        sending = recording.send(brief=brief, has_page=self._has_page, on_sent=self._say)
        self._queue.put(sending)
        return sending

    def _has_page(self, uri: str, until: float) -> bool:
        """Return whether a server has our page; each is asked once.

        Args:
            uri: The store.
            until: When the report has to be sent, on the monotonic clock; half of the time may
                pass until the server answers.
        """
        left_sec = until - time.monotonic()
        if not is_http(uri) or left_sec <= 0:
            return False
        try:
            if uri not in self._pages:
                self._pages[uri] = BackgroundCall(lambda: has_page(uri), name="page")
            asked = self._pages[uri]
            return asked.done_within(left_sec / 2) and asked.result(0.0)
        except RuntimeError:  # no room for a thread
            return False

    def _say(self, delivery: Delivery) -> None:
        note_reported(delivery.run, self._node.count, delivery.tags.get("mlflow_perf.measured_by"))
        note_reporting(delivery.run, PerfDocument({0: delivery.document}))
        if self._settings.quiet or delivery.index:
            return
        if delivery.is_brief:
            self._silent_runs += 1
        else:
            write_closing_line(delivery.run, delivery.document)

    def _begin(self) -> WindowSampler:
        """Return the sampler; the first run starts all that the runs share."""
        self._gather()
        self._reserve = self._reserve or bytearray(_RESERVE_BYTES)
        # Not before a run: a child of a fork server imports the script before it knows what it is.
        if not self._ends_with_pool and (pool := _find_pool()):
            self._ends_with_pool = True
            pool.Finalize(None, self._finish_child, exitpriority=100)
        if not self._watch.is_watching:
            self._watch = SignalWatch(self._on_fatal, self._on_handled)
            self._watch.arm()
        if self._sampler is None:
            settings = self._settings
            with bring():
                readers = open_job_readers(None, self._node, carbon=settings.carbon)
            self._sampler = WindowSampler(
                readers, interval=settings.interval, max_length=settings.max_length
            )
        return self._sampler

    def _gather(self) -> None:
        """Let this process, and those that it starts from now on, record operations."""
        if current.recorder() is not None:
            return  # a block's, or those of the process above
        if self._spool is None:
            self._spool = SpoolFolder(self._node, None, parent=self._state_folder)
            proxystore.install()
        folder = self._spool.path
        current.activate(self._operations, folder=folder, spooled=folder is not None)

    def _read_operations(self) -> OperationMetrics:
        """Return a copy of the operations of all processes of the job so far."""
        copied = OperationMetrics()
        recorder = current.recorder() or self._operations
        folder = None if self._spool is None else self._spool.path
        if not recorder.is_empty():
            copied.merge(recorder)
        # Mostly there is no file but this process's own.
        with contextlib.suppress(OSError):
            if folder is not None and len(os.listdir(folder)) > 1:
                collect_operations(folder, copied)
        return copied

    def change(self, settings: Settings) -> None:
        """Use other settings for the runs that start from now on."""
        with self._lock:
            self._settings, self._name = settings, settings.name or name_process()
            self._queue.timeout_sec = self._patience.limit_sec = settings.exit_timeout
            if self._sampler is not None and not open_runs:
                self._sampler.stop()
                self._sampler = None

    @as_own()
    def end_runs(self, judge: Callable[[RunRecording], Outcome | None]) -> None:
        """Take the last reading of all runs that are open, and queue their reports.

        Args:
            judge: Returns how a run ended; None for no report.
        """
        ended = list(open_runs.values())
        for recording in reversed(ended):  # the inner ones first
            outcome = judge(recording)
            if outcome is None or meets_stand_in("run", recording.started.run_id):
                recording.discard()
            else:
                _close(recording, outcome)
        for recording in ended:
            mine = open_runs.pop(recording.started.run_id, None)
            if mine is not None and not mine.is_discarded:  # no other thread has ended it
                self._send(recording)

    @as_own()
    def stop(
        self, judge: Callable[[RunRecording], Outcome | None], *, limit_sec: float = math.inf
    ) -> None:
        """End all recordings, and release the shared sampler, signals and queue.

        Args:
            judge: As for `end_runs`.
            limit_sec: Most seconds to wait until all reports were sent, if that is less than the
                setting `exit_timeout` allows.
        """
        if os.getpid() != self._pid:
            return
        self.end_runs(judge)
        while self._deleted:
            self._deleted.popitem()[1].discard()
        self._queue.drain(min(limit_sec, self._patience.left_sec()))
        if self._silent_runs and not self._settings.quiet:
            runs = format_count(self._silent_runs, "more run")
            write_note(f"mlflow-perf: {self._name!a} | {runs}, each below a second")
        self._silent_runs = 0
        self._queue.close()
        with self._lock:
            sampler, self._sampler = self._sampler, None
            if sampler is not None:
                sampler.stop()
            self._watch.disarm()
            self._leave_spool()

    def _leave_spool(self) -> None:
        if self._spool is not None:
            if current.recorder() is self._operations:
                current.deactivate()
                proxystore.uninstall()
            self._spool.leave()
            self._spool.remove()
            self._spool = None

    def renew_lock(self) -> None:
        """Take a new lock: in a forked child, another thread of the parent may hold the old one."""
        self._lock = RLock()

    def _finish_child(self) -> None:
        error = sys.exc_info()[1]  # this runs in a `finally`
        self.stop(lambda one: judge_exit(one, error))

    def _on_fatal(self, number: int) -> None:
        self.end_runs(lambda _: Outcome("KILLED", name_signal(number)))
        self._queue.drain(min(GRACE_SEC, self._patience.left_sec()))
        self._leave_spool()

    def _on_handled(self, number: int) -> None:
        sent = []
        for recording in list(open_runs.values()):
            recording.measured_by = _find_around(recording)
            sent.append(recording.report_now(Outcome("KILLED", name_signal(number))))
        until = time.monotonic() + GRACE_SEC
        for sending in sent:
            self._queue.put(sending)
        for sending in sent:
            sending.done.wait(max(0.0, until - time.monotonic()))


def _close(recording: RunRecording, outcome: Outcome) -> None:
    """Take a run's last reading while the runs above it are still open."""
    if recording.is_open:
        recording.close(outcome)
        recording.measured_by = _find_around(recording)


def _find_around(recording: RunRecording) -> str | None:
    block = recording.block if recording.block is _find_block() else None
    return find_run_around(recording, None if block is None else block.run_id)


def _find_block() -> Any:
    """Return the `report()` block of this process, if there is one."""
    blocks = sys.modules.get("mlflow_perf.session.report")
    return None if blocks is None else blocks.current()


def judge_exit(recording: RunRecording, error: BaseException | None) -> Outcome:
    """Return how a run ended that its program left open.

    Args:
        recording: The run's recording.
        error: What ended the program; None where nothing did.
    """
    if not recording.is_active:
        return Outcome("KILLED", "the interpreter ended inside the run")
    return Outcome.from_error(error)


def _find_pool() -> Any:
    """Return the module whose finalizers end this process instead of exit handlers, if any does."""
    processes = sys.modules.get("multiprocessing.process")
    is_child = processes is not None and processes.parent_process() is not None
    # One that was not forked has exit handlers.
    is_forked = is_child and "--multiprocessing-fork" not in sys.orig_argv
    return sys.modules.get("multiprocessing.util") if is_forked else None
