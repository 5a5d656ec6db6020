"""One block's recording: sampler, operations, journal, run and delivery.

Imports everything below it.
"""

from __future__ import annotations

import logging
import os
import time
from typing import TYPE_CHECKING, Any

from mlflow_perf import node as nodes
from mlflow_perf import transfers
from mlflow_perf._version import __version__
from mlflow_perf.analysis.advice import verdict
from mlflow_perf.analysis.note import overview_note
from mlflow_perf.delivery import Delivery
from mlflow_perf.document import NodeDocument, PerfDocument, columns_of
from mlflow_perf.errand import Errand, is_refused
from mlflow_perf.errors import MlflowPerfError
from mlflow_perf.integrations import proxystore
from mlflow_perf.journal import Journal, state_folder
from mlflow_perf.operations import OperationMetrics, context
from mlflow_perf.operations.spool import drain
from mlflow_perf.perf import PerformanceMetricsCollector
from mlflow_perf.ranks import SpoolFolder
from mlflow_perf.readers import default_readers
from mlflow_perf.run_target import RunTarget, first_line
from mlflow_perf.sinks.live import LiveCurves
from mlflow_perf.sinks.mlflow import MlflowSink

if TYPE_CHECKING:
    from mlflow_perf.integrations.prometheus import ScrapeReader

__all__ = ["Recording"]

# Ranks of one job end together or not at all.
_WAIT_FOR_RANKS_SEC = 10.0
# Against a server that refuses: long enough for one that restarts, short enough for a job's end.
_KNOCK_SEC = 3.0

_log = logging.getLogger(__name__)


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
    """

    def __init__(self, name: str, options: dict[str, Any]) -> None:
        self.name = name
        self.node = _node(options["node"])
        self.operations = OperationMetrics()
        self.document = PerfDocument()
        self.summary: dict[str, float] = {}
        self._options = options
        self._target = RunTarget(
            name,
            self.node,
            run_id=options["run_id"],
            start_timeout_sec=options["start_timeout"],
        )
        self._transfers: dict[str, Any] = {}
        self._spool: SpoolFolder | None = None
        self._journal: Journal | None = None
        self._live: LiveCurves | None = None
        self._scrapers: list[ScrapeReader] = []
        self._collector: PerformanceMetricsCollector | None = None

    @property
    def run_id(self) -> str | None:
        """Id of the run, as soon as there is one."""
        return self._target.run_id

    @property
    def own_run(self) -> bool:
        """Whether the run was made for this block, which then ends it too."""
        return self._target.own

    def start(self) -> None:
        """Find or make the run, then take the first sample.

        Raises:
            SettingError: When a store on this machine cannot be used at all.
        """
        self._target.find()
        self._start_operations()
        if self.node.samples:
            self._start_sampling()

    def _start_operations(self) -> None:
        self._spool = SpoolFolder(self.node, self.run_id, parent=state_folder())
        folder = self._spool.path
        context.activate(self.operations, spool=folder, spooled=folder is not None)
        transfers.activate(folder, spooled=folder is not None)
        proxystore.install()

    def _start_sampling(self) -> None:
        self._scrapers = self._new_scrapers()
        collector = PerformanceMetricsCollector(
            self._options["max_length"],
            interval=self._options["interval"],
            readers=[*default_readers(), *self._scrapers],
            on_report=self._append,
        )
        if self._options["live"]:
            node = str(self.node.index) if self.node.count > 1 else ""
            self._live = LiveCurves(self._target.uri, lambda: self.run_id, node=node)
            self._live.start()
        collector.start()
        self._collector = collector
        self._journal = self._new_journal(collector)
        self._journal.start()

    def _new_journal(self, collector: PerformanceMetricsCollector) -> Journal:
        def snapshot() -> dict[str, Any]:
            summary, columns = collector.snapshot()
            return {"summary": summary, "columns": columns}

        thread = collector.report_thread
        facts = {
            "started": None if thread is None else thread.started,
            "counters": [] if thread is None else thread.counters,
            "facts": {"node_count": float(self.node.count)},
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

    def _new_scrapers(self) -> list[ScrapeReader]:
        if not self._options.get("scrape"):
            return []
        from mlflow_perf.integrations.prometheus import scrape_readers

        return scrape_readers(self._options["scrape"], interval=self._options["interval"])

    def _append(self, report: dict[str, float]) -> None:
        if self._live is not None:
            self._live.append(report)
        if self._journal is not None:
            self._journal.append(report)

    def finish(self, error: BaseException | None) -> None:
        """Take the last sample, put the document together and send it.

        Args:
            error: The exception that ends the block; None when it went well.
        """
        deadline = time.monotonic() + self._options["exit_timeout"]
        if self._collector is not None:
            self._collector.finalize()
        if self._live is not None:
            self._live.close()
        self._gather(deadline)
        if self._collector is None:
            return
        self._target.settle(deadline - time.monotonic())
        delivery = self._delivery(self._final_document(_status(error)))
        self.document = PerfDocument({delivery.index: delivery.document})
        self.summary = dict(delivery.document.summary)
        self._send(delivery, deadline)

    def _gather(self, deadline: float) -> None:
        """Take over what the other processes of the job recorded."""
        spool = self._spool
        folder = None if spool is None else spool.path
        context.deactivate()
        if spool is not None and self._collector is None:
            transfers.deactivate()
            spool.leave()
            return
        if spool is not None and folder is not None:
            left = deadline - time.monotonic()
            spool.wait_for_others(min(_WAIT_FOR_RANKS_SEC, left / 2))
            drain(folder, self.operations)
        self._transfers = transfers.collect(folder)
        for scraper in self._scrapers:
            if not (found := scraper.transfers()).is_empty():
                self._transfers = transfers.merge(self._transfers, {"nixl": found})
        transfers.deactivate()

    def _node_document(self, status: str) -> NodeDocument:
        return NodeDocument(
            node=dict(self.node.as_dict()), component=self.name, run_id=self.run_id, status=status
        )

    def _final_document(self, status: str) -> NodeDocument:
        document = self._node_document(status)
        collector = self._collector
        if collector is not None and collector.report_thread is not None:
            collector.summary.set_fact("node_count", float(self.node.count))
            document.summary = collector.metrics()
            for scraper in self._scrapers:
                # The endpoint's own figures tell counters from gauges, which the columns do not.
                own = scraper.summary_metrics()
                document.summary = _without_columns(document.summary, scraper.name) | own
            document.reports = columns_of(collector.series.columns())
            document.started = collector.report_thread.started
            document.duration_sec = document.summary.get("duration_sec")
        document.operations = self.operations.as_dict()
        document.summary.update(self.operations.summary_metrics())
        document.transfers = transfers.as_dict(self._transfers)
        for name, stats in self._transfers.items():
            document.summary.update(transfers.summary_metrics(name, stats))
        finding = verdict(document.summary, document.node)
        document.extra.update(bottleneck=finding.bottleneck, advice=finding.advice)
        return document

    def _delivery(self, document: NodeDocument) -> Delivery:
        tags = {
            "mlflow_perf.version": __version__,
            "mlflow_perf.component": self.name,
            "mlflow_perf.status": document.status or "",
            **self.node.tags(),
        }
        for name in ("bottleneck", "advice"):
            if name in document.extra:
                tags[f"mlflow_perf.{name}"] = str(document.extra[name])
        target = self._target.header()
        return Delivery(
            document=document,
            index=self.node.index,
            run_name=self.name,
            artifact_path=self._options["artifact_path"],
            metrics_prefix=self._options["metrics_prefix"],
            tags=tags,
            note=overview_note(document, experiment_id=target["experiment_id"]),
            **target,
        )

    def _send(self, delivery: Delivery, deadline: float) -> None:
        try:
            _knock(delivery.tracking_uri, min(deadline, time.monotonic() + _KNOCK_SEC))
            sending = Errand(lambda: MlflowSink().write(delivery), name="perf-send")
            delivery.run_id = sending.result(deadline - time.monotonic())
        # A sink's edge: whatever the store does, the job goes on, and the journal keeps the report.
        except Exception as error:  # noqa: BLE001
            _log.debug("Not sent:", exc_info=True)
            self._keep(delivery, error)
            return
        self._target.made(delivery.run_id)
        if self._journal is not None:
            self._journal.remove()
        if self._spool is not None:
            self._spool.remove()

    def _keep(self, delivery: Delivery, error: Exception) -> None:
        kept = self._journal is not None and self._journal.keep(delivery)
        if self._spool is not None:
            self._spool.remove()
        if kept:
            _log.warning(
                "The performance report of %r was not sent (%s). It is kept; send it with: "
                "mlflow-perf recover %s", self.name, first_line(error), state_folder(),
            )  # fmt: skip
        else:
            _log.warning(
                "The performance report of %r was not sent and is lost: %s",
                self.name, first_line(error),
            )  # fmt: skip


def _without_columns(summary: dict[str, float], prefix: str) -> dict[str, float]:
    heads = (f"avg_{prefix}", f"max_t_{prefix}", f"total_{prefix}")
    return {key: value for key, value in summary.items() if not key.startswith(heads)}


def _knock(uri: str, until: float) -> None:
    """Return when the server may be there.

    Raises:
        ConnectionRefusedError: When it still refuses at the end of the time.
    """
    while is_refused(uri):
        if time.monotonic() >= until:
            raise ConnectionRefusedError(f"{uri} refuses connections")
        time.sleep(0.2)


def _node(index: int | None) -> nodes.Node:
    environ = dict(os.environ)
    if index is not None:
        environ["MLFLOW_PERF_NODE"] = str(index)
    try:
        return nodes.detect(environ)
    except MlflowPerfError:
        raise
    except Exception:  # noqa: BLE001 - an odd launcher costs the node's place, not the job
        _log.warning("The node's place in its job could not be told.", exc_info=True)
        return nodes.detect({})


def _status(error: BaseException | None) -> str:
    if error is None or isinstance(error, GeneratorExit):
        return "FINISHED"
    if isinstance(error, SystemExit):
        return "FINISHED" if error.code in (None, 0) else "FAILED"
    return "KILLED" if isinstance(error, KeyboardInterrupt) else "FAILED"
