"""One block's recording: sampler, operations, journal, run and delivery.

Imports everything below it.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from dataclasses import dataclass
from typing import Any

from mlflow_perf._version import __version__
from mlflow_perf.analysis.advice import decide_verdict
from mlflow_perf.integrations import proxystore
from mlflow_perf.model.document import NodeDocument, PerfDocument, round_columns
from mlflow_perf.node.exit_cause import oom_counts
from mlflow_perf.publish.dispatch import dispatch
from mlflow_perf.publish.journal import Journal, state_folder
from mlflow_perf.publish.live_curves import LiveCurves
from mlflow_perf.readers import host_facts
from mlflow_perf.recorders import current
from mlflow_perf.recorders.collect import collect_operations, collect_transfers
from mlflow_perf.recorders.operations import OperationMetrics
from mlflow_perf.recorders.spool_folder import SpoolFolder
from mlflow_perf.sampling.sampler import PerformanceMetricsCollector
from mlflow_perf.session.run_sources import (
    exporters_of,
    node_of,
    readers_of,
    scrapers_of,
    without_columns,
)
from mlflow_perf.session.run_target import RunTarget
from mlflow_perf.tracking.delivery import Delivery, add_recorded

__all__ = ["Outcome", "Recording"]

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Outcome:
    """How a block or a command ended.

    Attributes:
        status: The status of a run of its own: `FINISHED`, `FAILED` or `KILLED`.
        cause: Why, in a few words, where it did not end by itself.
    """

    status: str = "FINISHED"
    cause: str | None = None

    @classmethod
    def of(cls, error: BaseException | None) -> Outcome:
        """Return the outcome of a block that an exception ended, or none."""
        if error is None or isinstance(error, GeneratorExit):
            return cls()
        cause = type(error).__name__  # no more: a message may hold anything
        if isinstance(error, SystemExit):
            return cls() if error.code in (None, 0) else cls("FAILED", cause)
        return cls("KILLED" if isinstance(error, KeyboardInterrupt) else "FAILED", cause)


class Recording:
    """What runs from the start of a block to its end, in the process that entered it.

    Args:
        name: The component.
        options: The settings, as `settings.resolve` returns them.

    Attributes:
        node: This process's place in its job.
        operations: What this process, and later all of the job, recorded.
        summary: Metric key → value, after `finish`.
        document: What was reported, after `finish`.
        sent: Whether MLflow has all of it, after `finish`.
    """

    def __init__(self, name: str, options: dict[str, Any]) -> None:
        self.name = name
        self.node = node_of(options["node"])
        self.operations = OperationMetrics()
        self.document = PerfDocument()
        self.summary: dict[str, float] = {}
        self.sent = False
        self._options = options
        self._target = RunTarget(
            name,
            self.node,
            run_id=options["run_id"],
            start_timeout_sec=options["start_timeout"],
            on_made=self._redirect,
        )
        self._scrapers = scrapers_of(options["scrape"], options["interval"])
        self._transfers: dict[str, Any] = {}
        self._spool: SpoolFolder | None = None
        self._journal: Journal | None = None
        self._listeners = exporters_of(options, component=name, node=self.node.index)
        self._collector: PerformanceMetricsCollector | None = None
        self._sending = threading.Lock()
        self._finished = False

    @property
    def run_id(self) -> str | None:
        """Id of the run, as soon as there is one."""
        return self._target.run_id

    @property
    def own_run(self) -> bool:
        """Whether the run was made for this block, which then ends it too."""
        return self._target.own

    def start(self, *, wait: bool = True, root_pid: int | None = None) -> None:
        """Find or make the run, then take the first sample.

        Args:
            wait: Whether to wait for a run that has to be made.
            root_pid: First process of the job, where that is not this one.

        Raises:
            SettingError: When a store on this machine cannot be used at all.
        """
        self._target.find(wait=wait)
        self.gather()
        if self.node.samples:
            self._start_sampling(root_pid)

    def gather(self) -> None:
        """Let this process and those that it starts from now on record operations."""
        if self._spool is not None:
            return
        self._spool = SpoolFolder(self.node, self.run_id, parent=state_folder())
        folder = self._spool.path
        current.activate(self.operations, folder=folder, spooled=folder is not None)
        proxystore.install()

    def _start_sampling(self, root_pid: int | None) -> None:
        collector = PerformanceMetricsCollector(
            self._options["max_length"],
            interval=self._options["interval"],
            readers=[
                *readers_of(root_pid, self.node, carbon=self._options["carbon"]),
                *self._scrapers,
            ],
            on_report=self._append,
        )
        if self._options["live"]:
            self._listeners.append(self._new_live())
        collector.start()
        self._collector = collector
        self._journal = self._new_journal(collector)
        self._redirect()
        self._journal.start()

    def _new_live(self) -> LiveCurves:
        node = str(self.node.index) if self.node.count > 1 else ""
        live = LiveCurves(self._target.uri, lambda: self.run_id, node=node)
        live.start()
        return live

    def _new_journal(self, collector: PerformanceMetricsCollector) -> Journal:
        def snapshot() -> dict[str, Any]:
            summary, columns = collector.snapshot()
            return {"summary": summary, "columns": columns}

        thread = collector.report_thread
        facts = {
            "started": None if thread is None else thread.started,
            "counters": [] if thread is None else thread.counters,
            "facts": self._facts(),
            "oom_kills": oom_counts(),
            "spool": None
            if self._spool is None or self._spool.path is None
            else self._spool.path.name,
        }
        return Journal(
            self._delivery(self._node_document("KILLED")),
            facts,
            folder=state_folder(),
            snapshot=snapshot,
            max_rows=collector.max_length,
        )

    def _facts(self) -> dict[str, float]:
        price = self._options["node_price"]
        facts = {"node_count": float(self.node.count)}
        return facts if price is None else {**facts, "node_price": float(price)}

    def _redirect(self) -> None:
        """Tell the journal which run was made meanwhile: who sends it then makes no second one."""
        if self._journal is not None and self._journal.target != self._target.header():
            self._journal.redirect(self._delivery(self._node_document("KILLED")))

    def _append(self, report: dict[str, float]) -> None:
        if self._journal is not None:
            self._journal.append(report)
        for listener in self._listeners:
            listener(report)

    def finish(self, outcome: Outcome, *, limit_sec: float | None = None) -> None:
        """Take the last sample, put the document together and send it.

        A second call waits for the first one and does nothing.

        Args:
            outcome: How the block ended.
            limit_sec: Most seconds, where whatever ends the job gives it no more than that.
        """
        deadline = time.monotonic() + min(self._options["exit_timeout"], limit_sec or math.inf)
        if not self._sending.acquire(timeout=max(1.0, deadline - time.monotonic())):
            return
        try:
            if not self._finished:
                self._finished = True
                self._finish(outcome, deadline)
        finally:
            self._sending.release()

    def stop(self) -> None:
        """Take the last sample; `finish` does so too."""
        if self._collector is not None:
            self._collector.finalize()
        listeners, self._listeners = self._listeners, []
        for listener in listeners:
            listener.close()

    def _finish(self, outcome: Outcome, deadline: float) -> None:
        self.stop()
        self._gather(deadline)
        if not self.node.samples:
            return
        # Half the time at most: the rest is for the figures.
        self._target.close((deadline - time.monotonic()) / 2)
        delivery = self._delivery(self._final_document(outcome))
        self.document = PerfDocument({delivery.index: delivery.document})
        self.summary = dict(delivery.document.summary)
        self.sent = dispatch(
            delivery, self._journal, deadline=deadline, secure=outcome.status == "KILLED"
        )
        if self.sent and delivery.run_id is not None:
            self._target.made(delivery.run_id)
        if self._spool is not None:
            self._spool.remove()

    def report_now(self, outcome: Outcome, *, limit_sec: float) -> None:
        """Send what there is by now; the recording goes on, and its end sends all again.

        For a job that was told to end and may be killed before it does.

        Args:
            outcome: How the job will have ended, if nothing more is heard of it.
            limit_sec: Most seconds.
        """
        if self._journal is not None:
            self._journal.flush(sync=True)
        if not self._sending.acquire(blocking=False):
            return
        try:
            if not self._finished and self._collector is not None:
                deadline = time.monotonic() + limit_sec
                self._target.settle(limit_sec / 2)
                delivery = self._delivery(self._final_document(outcome))
                dispatch(delivery, None, deadline=deadline)
        finally:
            self._sending.release()

    def _gather(self, deadline: float) -> None:
        """Take over what the other processes of the job recorded."""
        spool = self._spool
        folder = None if spool is None else spool.path
        recorders = current.deactivate()
        if spool is not None and not self.node.samples:
            spool.leave()
            return
        if spool is not None and folder is not None:
            left = deadline - time.monotonic()
            spool.wait_for_others(left / 2)
            collect_operations(folder, self.operations)
        self._transfers = collect_transfers(folder, recorders.transfers)
        for scraper in self._scrapers:
            stats = scraper.transfers()
            if not stats.is_empty():
                self._transfers.setdefault("nixl", type(stats)()).aggregate(stats)
        proxystore.uninstall()

    def _node_document(self, status: str) -> NodeDocument:
        return NodeDocument(
            node={**self.node.as_dict(), **host_facts()},
            component=self.name,
            run_id=self.run_id,
            status=status,
        )

    def _final_document(self, outcome: Outcome) -> NodeDocument:
        document = self._node_document(outcome.status)
        collector = self._collector
        if collector is not None and collector.report_thread is not None:
            for name, value in self._facts().items():
                collector.summary.set_fact(name, value)
            document.summary = collector.metrics()
            document.reports = round_columns(collector.snapshot()[1])
            document.started = collector.report_thread.started
            document.duration_sec = document.summary.get("duration_sec")
        add_recorded(document, self.operations, self._transfers)
        for scraper in self._scrapers:
            # The endpoint's own figures tell counters from gauges, which the columns do not.
            document.summary = without_columns(document.summary, scraper.name)
            document.summary.update(scraper.summary_metrics())
        if outcome.cause is not None:
            document.extra["cause"] = outcome.cause
        finding = decide_verdict(document.summary, document.node)
        document.extra.update(bottleneck=finding.bottleneck, advice=finding.advice)
        return document

    def _delivery(self, document: NodeDocument) -> Delivery:
        tags = {
            "mlflow_perf.version": __version__,
            "mlflow_perf.component": self.name,
            "mlflow_perf.status": document.status or "",
            **self.node.tags(),
        }
        for name in ("bottleneck", "advice", "cause"):
            if name in document.extra:
                tags[f"mlflow_perf.{name}"] = str(document.extra[name])
        return Delivery(
            document=document,
            index=self.node.index,
            run_name=self.name,
            artifact_path=self._options["artifact_path"],
            metrics_prefix=self._options["metrics_prefix"],
            tags=tags,
            page=self._target.has_page,
            **self._target.header(),
        )
