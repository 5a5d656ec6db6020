"""One block's recording: sampler, operations, run and delivery. Imports everything below it."""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Callable
from typing import Any, TypeVar

from mlflow_perf import node as nodes
from mlflow_perf._version import __version__
from mlflow_perf.analysis.advice import verdict
from mlflow_perf.delivery import Delivery
from mlflow_perf.document import NodeDocument, PerfDocument, columns_of
from mlflow_perf.errand import Errand, is_refused
from mlflow_perf.errors import MlflowPerfError, RunNotFoundError, SettingError
from mlflow_perf.operations import OperationMetrics, context
from mlflow_perf.perf import PerformanceMetricsCollector
from mlflow_perf.sinks.mlflow import MlflowSink, Target, new_run, open_run

__all__ = ["Recording"]

T = TypeVar("T")

_log = logging.getLogger(__name__)


def _within(call: Callable[[], T], timeout_sec: float, name: str) -> T:
    return Errand(call, name=f"perf-{name}").result(timeout_sec)


def _tracking_uri() -> str:
    """Return the store that `mlflow` writes to, importing it only where nothing else tells."""
    uri = os.environ.get("MLFLOW_TRACKING_URI")
    if uri and "mlflow" not in sys.modules:
        return uri
    import mlflow

    return str(mlflow.get_tracking_uri())


class Recording:
    """What runs from the start of a block to its end, in the process that entered it.

    Args:
        name: The component.
        options: The settings, as `settings.resolve` returns them.
    """

    def __init__(self, name: str, options: dict[str, Any]) -> None:
        self.name = name
        self.node = _node(options["node"])
        self.operations = OperationMetrics()
        self.document = PerfDocument()
        self.summary: dict[str, float] = {}
        self._options = options
        self._tracking_uri = _tracking_uri()
        self._target: Target | None = None
        self._pending: Errand[Target] | None = None
        self._collector: PerformanceMetricsCollector | None = None

    @staticmethod
    def check_run(run_id: str, timeout_sec: float) -> None:
        """Raise when the store answers that there is no such run; a silent store is no answer.

        Raises:
            RunNotFoundError: When the run does not exist or was deleted.
        """
        uri = _tracking_uri()
        try:
            if not is_refused(uri):
                _within(lambda: open_run(run_id, tracking_uri=uri), timeout_sec, "open-run")
        except RunNotFoundError:
            raise
        except Exception as error:  # noqa: BLE001 - an ill server does not keep a job from starting
            _log.debug("The run %s could not be checked: %s", run_id, error)

    @property
    def run_id(self) -> str | None:
        """Id of the run, as soon as there is one."""
        self._adopt_pending(0.0)
        return None if self._target is None else self._target.run_id

    def start(self) -> None:
        """Find or make the run, then take the first sample.

        Raises:
            SettingError: When the local store cannot be used at all.
        """
        self._find_run()
        context.activate(self.operations, spool=None)
        if self.node.samples:
            self._collector = PerformanceMetricsCollector(
                self._options["max_length"], interval=self._options["interval"]
            )
            self._collector.start()

    def _find_run(self) -> None:
        known = self._options["run_id"] or _active_run_id() or os.environ.get("MLFLOW_RUN_ID")
        if known:
            self._target = Target(known)
            return
        if is_refused(self._tracking_uri):
            _log.warning(
                "The tracking server at %s refuses connections; the report is sent at the end.",
                self._tracking_uri,
            )
            return
        self._pending = Errand(self._make_run, name="perf-new-run")
        self._adopt_pending(self._options["start_timeout"], starting=True)

    def _make_run(self) -> Target:
        return new_run(self.name, tracking_uri=self._tracking_uri)

    def _adopt_pending(self, timeout_sec: float, *, starting: bool = False) -> None:
        """Take over the run that is being made, if it is there within the time."""
        if self._pending is None:
            return
        try:
            self._target = self._pending.result(timeout_sec)
        except TimeoutError:
            if starting:
                _log.warning("The tracking server is slow; the job starts without its run.")
            return
        except Exception as error:
            if starting and not self._tracking_uri.startswith(("http://", "https://")):
                raise SettingError(
                    f"The MLflow store {self._tracking_uri} cannot be used: {error}"
                ) from error
            _log.warning("No MLflow run could be made yet: %s", _first_line(error))
        self._pending = None

    def finish(self, error: BaseException | None) -> None:
        """Take the last sample, put the document together and send it.

        Args:
            error: The exception that ends the block; None when it went well.
        """
        deadline = time.monotonic() + self._options["exit_timeout"]
        if self._collector is not None:
            self._collector.finalize()
        context.deactivate()
        self._adopt_pending(deadline - time.monotonic())
        delivery = self._delivery(_status(error))
        self.document = PerfDocument({delivery.index: delivery.document})
        self.summary = dict(delivery.document.summary)
        if self._collector is not None:
            self._send(delivery, deadline)

    def _delivery(self, status: str) -> Delivery:
        document = self._node_document(status)
        finding = verdict(document.summary, document.node)
        document.extra.update(bottleneck=finding.bottleneck, advice=finding.advice)
        tags = {
            "mlflow_perf.version": __version__,
            "mlflow_perf.component": self.name,
            "mlflow_perf.bottleneck": finding.bottleneck,
            "mlflow_perf.advice": finding.advice,
            "mlflow_perf.status": status,
        }
        return Delivery(
            document=document,
            index=self.node.index,
            run_id=self.run_id,
            own_run=self._target is not None and self._target.own,
            tracking_uri=self._tracking_uri,
            run_name=self.name,
            artifact_path=self._options["artifact_path"],
            metrics_prefix=self._options["metrics_prefix"],
            tags=tags,
        )

    def _node_document(self, status: str) -> NodeDocument:
        document = NodeDocument(
            node=self.node.as_dict(), component=self.name, run_id=self.run_id, status=status
        )
        collector = self._collector
        if collector is not None and collector.report_thread is not None:
            collector.summary.set_fact("node_count", float(self.node.count))
            document.summary = collector.metrics()
            document.reports = columns_of(collector.series.columns())
            document.started = collector.report_thread.started
            document.duration_sec = document.summary.get("duration_sec")
        document.operations = self.operations.as_dict()
        document.summary.update(self.operations.summary_metrics())
        return document

    def _send(self, delivery: Delivery, deadline: float) -> None:
        try:
            if is_refused(delivery.tracking_uri):
                raise ConnectionRefusedError(f"{delivery.tracking_uri} refuses connections")
            run_id = _within(
                lambda: MlflowSink().write(delivery), deadline - time.monotonic(), "send"
            )
            self._target = Target(run_id, delivery.own_run)
        except Exception as error:  # noqa: BLE001 - a sink's edge: the job goes on without it
            _log.warning("The performance report was not sent: %s", _first_line(error))
            _log.debug("Not sent:", exc_info=True)


def _node(index: int | None) -> nodes.Node:
    try:
        environ = dict(os.environ)
        if index is not None:
            environ["MLFLOW_PERF_NODE"] = str(index)
        return nodes.detect(environ)
    except MlflowPerfError:
        raise
    except Exception:  # noqa: BLE001 - an odd launcher costs the node's place, not the job
        _log.warning("The node's place in its job could not be told.", exc_info=True)
        return nodes.detect({})


def _active_run_id() -> str | None:
    """Return the id of this thread's active run; without MLflow imported there is none."""
    if "mlflow" not in sys.modules:
        return None
    import mlflow

    run = mlflow.active_run()
    return None if run is None else str(run.info.run_id)


def _status(error: BaseException | None) -> str:
    if error is None or isinstance(error, GeneratorExit):
        return "FINISHED"
    if isinstance(error, SystemExit):
        return "FINISHED" if error.code in (None, 0) else "FAILED"
    return "KILLED" if isinstance(error, KeyboardInterrupt) else "FAILED"


def _first_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0]
