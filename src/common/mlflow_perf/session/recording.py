"""One recording: sampler, operations, journal, run and delivery from a block's start to its end."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

from mlflow_perf.core.background_call import undisturbed
from mlflow_perf.core.json_io import round_columns
from mlflow_perf.core.own_cost import as_own, bring, brought_bytes, own_cpu_sec, own_memory_bytes
from mlflow_perf.core.settings import Settings
from mlflow_perf.core.threads import Lock
from mlflow_perf.errors import SettingError
from mlflow_perf.integrations import proxystore
from mlflow_perf.model.document import NodeDocument, PerfDocument
from mlflow_perf.node.exit_cause import read_oom_counts
from mlflow_perf.publish.dispatch import dispatch, load_mlflow, sent_if_interrupted
from mlflow_perf.publish.final_document import make_final_document
from mlflow_perf.publish.journal import Journal
from mlflow_perf.publish.journal_facts import JournalFacts
from mlflow_perf.publish.journal_file import find_state_folder
from mlflow_perf.publish.live_curves import LiveCurves
from mlflow_perf.recorders import current
from mlflow_perf.recorders.collect import collect_operations, collect_steps, collect_transfers
from mlflow_perf.recorders.operations import OperationMetrics
from mlflow_perf.recorders.rank_commands import RankCommand
from mlflow_perf.recorders.spool_folder import SpoolFolder
from mlflow_perf.recorders.steps.metrics import StepMetrics
from mlflow_perf.recorders.transfers import NixlKVConnectorStats
from mlflow_perf.records import MB
from mlflow_perf.sampling.sampler import PerformanceMetricsCollector
from mlflow_perf.session import run_sources
from mlflow_perf.session.address import address, describe_node, tag_end
from mlflow_perf.session.closing_line import write_closing_line
from mlflow_perf.session.outcome import Outcome
from mlflow_perf.session.patience import Patience
from mlflow_perf.session.run_finder import RunFinder, find_tracking_uri, name_store
from mlflow_perf.session.stack_recording import build_job_profile, open_engine
from mlflow_perf.tracking.delivery import Delivery
from mlflow_perf.tracking.run_events import StartedRun
from mlflow_perf.tracking.run_handle import RunHandle
from mlflow_perf.tracking.run_notes import note_reported

_charged_sec = 0.0  # our CPU time in this process that belongs to the recordings so far
_patience = Patience(0.0)  # of all blocks of this process


class Recording:
    """What runs from the start of a block to its end, in the process that entered it.

    Args:
        name: The component.
        settings: The settings.
        is_command: Whether it records a command from outside, which must not wait for MLflow.
        hold: Whether to leave the report in the journal, for another program to send.

    Attributes:
        node: This process's place in its job.
        run: The run that gets the report.
        operations: Operations of this process; after `finish`, those of the whole job.
        summary: Metric key → value, after `finish`.
        spool: Where the processes of the job write their records, after `gather`.
        document: The report, after `finish`; `sent` says whether MLflow has all of it.
        on_free: Called before sending, if this process may begin another recording then.
    """

    @bring()
    def __init__(
        self, name: str, settings: Settings, *, is_command: bool = False, hold: bool = False
    ) -> None:
        self.name, self.settings = name, settings
        self._is_command, self._hold = is_command, hold
        node = self.node = run_sources.detect_node(settings.node)
        uri = name_store() if is_command else find_tracking_uri(settings.start_timeout)
        self.run = RunHandle(uri, name, settings.run_id, job_key=node.shared_key)
        self.operations = OperationMetrics()
        self.document, self.summary, self.sent = PerfDocument(), dict[str, float](), False
        self.on_free: Callable[[], object] = lambda: None
        self.finder = RunFinder(
            self.run, self.node, start_timeout_sec=settings.start_timeout, on_made=self._note_run,
            await_shared=lambda sec: None if self.spool is None else self.spool.await_run(sec),
        )  # fmt: skip
        self._state_folder = find_state_folder(settings.dir)
        self._scrapers = run_sources.open_scrapers(settings.scrape, settings.interval)
        self._transfers, self._steps = dict[str, NixlKVConnectorStats](), StepMetrics()
        self._stacks = open_engine(settings.profile_engine, settings.profile)
        self.spool: SpoolFolder | None = None
        self._journal: Journal | None = None
        self._oom_kills, self._wrapper_mb = read_oom_counts(), 0.0
        self._listeners = run_sources.open_exporters(settings, component=name, node=self.node)
        self._collector: PerformanceMetricsCollector | None = None
        self._recorders: current.Recorders | None = None
        self._has_ended = self._is_gathered = self._finished = False
        self._sending = Lock()

    @bring()
    def start(
        self,
        *,
        wait: bool = True,
        root_pid: int | None = None,
        postpone: bool = False,
        on_ready: Callable[[], object] = lambda: None,
    ) -> None:
        """Find or create the run, then take the first sample.

        Args:
            wait: Whether to wait for a new run.
            root_pid: First process of the job; default: this one.
            postpone: Whether to create a new run only at the end, or at `begin_own_run`.
            on_ready: Called just before the first sample, when everything else is done.

        Raises:
            SettingError: When the store's address can never be used.
        """
        self.gather()
        self.finder.choose()
        if self.node.samples:
            # Before the run: a kill in between would leave one that nobody ends.
            self._journal = self._open_journal()
        try:
            # Another rank reports for a command that does not sample.
            if self.node.samples or root_pid is None:
                self.finder.find(wait=wait, postpone=postpone)
        except SettingError:
            self.abandon()
            raise
        if self._journal is None:
            self._stacks.begin()
            on_ready()
            self._stacks.note_begin()
            return
        self._note_run()
        spool, is_command = self.spool, root_pid is not None
        commands, above = spool.begin_sampling(is_command=is_command) if spool else (None, None)
        readers = run_sources.open_job_readers(
            root_pid, self.node, carbon=self.settings.carbon, commands=commands, above=above
        )
        collector = PerformanceMetricsCollector(
            self.settings.max_length, interval=self.settings.interval, on_report=self._take_report,
            readers=[*readers, *self._scrapers], own_cpu_before_sec=_charged_sec,
        )  # fmt: skip
        if self.settings.live:
            node = str(self.node.index) if self.node.count > 1 else ""
            self._listeners.append(LiveCurves.begin(self.run, node=node, component=self.name))
        # Everything else first: what is done after the first sample would be the block's.
        run_sources.begin_scraping(self._scrapers)
        self._stacks.begin()
        known = {"counters": collector.report_thread.counters, "facts": self._list_facts()}
        self._journal.start(self._list_journal_facts(started=time.time(), **known))
        on_ready()
        self._collector = collector
        collector.start()
        self._stacks.note_begin()

    def gather(self) -> None:
        """Let this process, or the command below it, and all below it, record operations."""
        if self.spool is not None:
            return
        self.spool = SpoolFolder(
            self.node, self.settings.run_id, self.name, parent=self._state_folder
        )
        folder = self.spool.path
        current.activate(self.operations, folder=folder, spooled=folder is not None)
        self._stacks.offer(folder, is_command=self._is_command)
        proxystore.install()

    def abandon(self) -> None:
        """Take back what `gather` and `start` did, because nothing is recorded."""
        current.deactivate()
        proxystore.uninstall()
        self.finder.drop()
        if self._journal is not None:
            self._journal.remove()
        if self.spool is not None:
            self.spool.leave()
            self.spool.remove()

    @property
    def spool_path(self) -> Path | None:
        """Folder for the records of the job's processes."""
        return None if self.spool is None else self.spool.path

    def join(self, run: StartedRun) -> None:
        """Report to a run that the command started, in whatever store it is."""
        self.finder.drop()
        self.run.use(run)
        self._note_run()

    def note_command(self, command: RankCommand) -> None:
        """Tell the rank that samples on this node of this rank's command, or of its end."""
        self._wrapper_mb = command.wrapper_mb
        if (spool := self.spool) is not None and spool.commands is not None:
            spool.commands.note(command)

    def _open_journal(self) -> Journal:
        document = NodeDocument(node=describe_node(self.node), component=self.name, status="KILLED")
        return Journal(
            self._address(document), self._list_journal_facts(), folder=self._state_folder,
            # Nothing is shortened before the block begins.
            snapshot=lambda: cast(PerformanceMetricsCollector, self._collector).snapshot(),
            max_rows=self.settings.max_length,
        )  # fmt: skip

    def _list_journal_facts(self, **begun: Any) -> JournalFacts:
        spool = self.spool_path.name if self.spool_path else None
        return JournalFacts(oom_kills=self._oom_kills, spool=spool, **begun)

    def _list_facts(self) -> dict[str, float]:
        """Return the figures that no reader gives."""
        # Beside a command, this whole process is ours.
        ours_mb = (own_memory_bytes() if self._is_command else brought_bytes()) / MB
        others = [] if self.spool is None else self.spool.list_other_commands()
        others_mb = sum(command.wrapper_mb for command in others)
        facts = {"node_count": float(self.node.count), "perf_mem_mb": ours_mb + others_mb}
        if self._is_command:
            # Sending loads MLflow when the command's own memory is free again.
            facts["perf_mem_beside_mb"] = (self._wrapper_mb or ours_mb) + others_mb
        if self.settings.node_price is not None:
            facts["node_price"] = self.settings.node_price
        return facts

    @property
    def run_id(self) -> str | None:
        """Id of the run, perhaps that of the rank that samples on this node; None without one."""
        if self.run.run_id is None and not self.node.samples and self.spool is not None:
            return self.spool.read_run() or None
        return self.run.run_id

    def _note_run(self) -> None:
        """Tell journal and other ranks of the run, so that nobody creates a second one."""
        if self._journal is not None:
            self._journal.note_run()
        if self.spool is not None and self.node.samples:
            self.spool.note_run(self.run.run_id)

    def _take_report(self, report: dict[str, float]) -> None:
        self._stacks.tidy()
        if self._journal is not None:
            self._journal.append(report)
        for listener in self._listeners:
            listener(report)

    def pause(self, *, is_over: bool = False) -> None:
        """Take what may be the last sample; when the pause is over, sample on."""
        if self._collector is not None:
            thread = self._collector.report_thread
            (thread.resume if is_over else thread.pause)()

    def note_end(self) -> None:
        """Let the block end at this moment, however long the last sample takes."""
        if self._collector is not None:
            self._collector.report_thread.note_end()
        self._stacks.note_end()

    @as_own()
    def finish(self, outcome: Outcome, *, limit_sec: float | None = None) -> None:
        """Take the last sample, make the document and send it.

        A second call waits for the first one, and does what a handler of the job kept it from.

        Args:
            outcome: How the block ended.
            limit_sec: Most seconds, where the job has less time than `exit_timeout`.
        """
        global _charged_sec  # noqa: PLW0603 - of the process
        began, most_sec = time.monotonic(), _patience.for_block(self.settings.exit_timeout)
        deadline = began + min(most_sec, limit_sec or math.inf)
        if not self._sending.acquire(timeout=max(1.0, deadline - time.monotonic())):
            return
        try:
            if self._finished:
                return
            if not self._has_ended:
                undisturbed(lambda: self._end_gathering(outcome, deadline))
            if not self.node.samples:
                return
            if self._collector is None and self.run.run_id is None:
                # Interrupted before it began. The server may still create the run.
                is_alone = self.finder.withdraw((deadline - time.monotonic()) / 2)
                if self._journal is not None:
                    (self._journal.remove if is_alone else self._journal.leave)()
                return
            is_killed, is_held = outcome.status == "KILLED", self._hold or self.run.is_left
            with sent_if_interrupted(lambda: self._make_delivery(outcome), self._journal):
                self._finished = True
                if self.spool is not None and not self._is_command:
                    outcome = outcome.worst_with(self.spool.list_other_ends())
                if self._is_command and self._journal is not None:
                    # MLflow takes seconds to load, in which this process may be killed.
                    self._journal.secure(self._make_delivery(outcome))
                half_sec = (deadline - time.monotonic()) / 2  # the rest is for sending
                deadline += self.finder.close(half_sec, finish_store=not is_killed)
                if not (is_killed or is_held):
                    load_mlflow(self.run.tracking_uri, deadline=deadline)
                delivery = undisturbed(lambda: self._make_delivery(outcome))
                self.document = PerfDocument({delivery.index: delivery.document})
                self.summary = dict(delivery.document.summary)
            if is_held and self._journal is not None:
                self._journal.keep(delivery, held=True)
            else:
                self.sent = dispatch(delivery, self._journal, deadline=deadline, secure=is_killed)
                _patience.note(is_sent=self.sent, began=began)
            note_reported(self.run if self.sent else None, self.node.count)
            if self.sent and delivery.index == 0 and not self.settings.quiet:
                write_closing_line(delivery.run, delivery.document)
        finally:
            if self._is_gathered and self.spool is not None:
                self.spool.remove()
            self.finder.withdraw()
            _charged_sec = own_cpu_sec()
            self._sending.release()

    @as_own()
    def stop(self) -> None:
        """Take the last sample; `finish` does so too."""
        self.note_end()
        if self._collector is not None:
            self._collector.finalize(end_cost=self._is_command)
        while self._listeners:
            self._listeners.pop().close()

    def leave(self, outcome: Outcome) -> None:
        """Let this process record no more; the journal has the end, and `finish` comes later."""
        if self._collector is not None:
            self._collector.report_thread.finalize()
        self._recorders = self._recorders or current.deactivate()
        if self._journal is not None:
            self._journal.note_end(outcome.status, outcome.cause)

    @as_own()
    def report_now(self, outcome: Outcome, *, limit_sec: float) -> None:
        """Send the report so far of a job that was asked to end; its end sends everything again.

        Args:
            outcome: How the job will have ended if it is killed.
            limit_sec: Most seconds.
        """
        if self._journal is not None:
            self._journal.flush(sync=True)
        if not self._sending.acquire(blocking=False):
            return
        try:
            if not (self._finished or self._collector is None or self.run.is_left):
                deadline = time.monotonic() + limit_sec
                self.finder.settle(limit_sec / 2)
                dispatch(self._make_delivery(outcome), None, deadline=deadline, is_last=False)
        finally:
            self._sending.release()

    def _end_gathering(self, outcome: Outcome, deadline: float) -> None:
        """Take the last sample, and what the other processes of the job recorded."""
        self._has_ended = True
        self.stop()
        spool, folder = self.spool, self.spool_path
        ended = self._recorders or current.deactivate()
        proxystore.uninstall()
        self._stacks.end()
        if not (spool and spool.is_shared):
            self.on_free()
        if spool is not None and not self.node.samples:
            spool.leave(outcome.status, outcome.cause)
            return
        if spool is not None and folder is not None:
            spool.wait_for_others((deadline - time.monotonic()) / 2, briefly=outcome.is_failure)
            collect_operations(folder, self.operations)
            self._stacks.collect()
        self._transfers = collect_transfers(folder, ended.transfers)
        self._steps = ended.steps or self._steps
        collect_steps(folder, self._steps)
        run_sources.add_scraped(self._transfers, self._scrapers)
        self._is_gathered = True

    def _make_delivery(self, outcome: Outcome) -> Delivery:
        """Return the finished report of this node."""
        outcome = outcome.explain(describe_node(self.node))
        summary, reports, started = dict[str, float](), {}, None
        if (collector := self._collector) and collector.report_thread.was_started:
            for name, value in self._list_facts().items():
                collector.summary.set_fact(name, value)
            summary = collector.metrics()
            reports = round_columns(collector.columns())
            started = collector.report_thread.started
        summary = run_sources.replace_scraped(summary, self._scrapers)
        document = make_final_document(
            node=describe_node(self.node), component=self.name, status=outcome.status,
            cause=outcome.cause, started=started, summary=summary, reports=reports,
            operations=self.operations, transfers=self._transfers, steps=self._steps,
            profile=build_job_profile(self._stacks, started, summary.get("duration_sec")),
            elsewhere=outcome.elsewhere,
        )  # fmt: skip
        delivery = self._address(document)
        tag_end(delivery, is_command=self._is_command)
        return delivery

    def _address(self, document: NodeDocument) -> Delivery:
        return address(document, self.run, name=self.name, node=self.node, settings=self.settings)
