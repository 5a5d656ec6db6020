"""Reports of many nodes → metrics, JSON. Imports the document and the summary."""

from __future__ import annotations

import logging
import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from mlflow_perf.model.document import to_json, write_text
from mlflow_perf.model.summary import summarise

__all__ = ["MetricsLogger", "PerfReportPlotter"]

_log = logging.getLogger(__name__)


class MetricsLogger(Protocol):
    """What takes a metric: `mlflow` itself, a client bound to a run, or a recorder in a test."""

    def log_metric(self, key: str, value: float, step: int) -> object:
        """Take one metric of one node."""
        ...


class PerfReportPlotter:
    """Collects the reports of all nodes of a job and hands their metrics to a logger.

    Args:
        metrics_logger: Has `log_metric(key, value, step=node)`.
        cpu_count: CPUs of a node whose reports do not say how many it had; default: this
            machine's, with a warning, since the nodes of one job are mostly alike.
    """

    def __init__(self, metrics_logger: MetricsLogger, *, cpu_count: int | None = None) -> None:
        self.metrics_logger = metrics_logger
        self.all_reports: dict[int, Sequence[Mapping[str, float]]] = {}
        self._cpu_count = cpu_count

    def add_perf_reports(self, perf_reports: Sequence[Mapping[str, float]], node: int) -> None:
        """Add the reports of one node, in the order of time; they replace earlier ones of it."""
        self.all_reports[node] = perf_reports

    def report_nodes_perf(self) -> None:
        """Call `metrics_logger.log_metric(key, value, step=node)` for each metric of each node."""
        for node, reports in self.all_reports.items():
            for key, value in self._summary(reports).items():
                self.metrics_logger.log_metric(key, value, step=node)

    def _summary(self, reports: Sequence[Mapping[str, float]]) -> dict[str, float]:
        if reports and not any("cpu_limit_cores" in report for report in reports):
            cores = float(self._cpu_count or self._assumed_cpu_count())
            reports = [{**report, "cpu_limit_cores": cores} for report in reports]
        return summarise(reports, facts={"node_count": float(len(self.all_reports))})

    def _assumed_cpu_count(self) -> int:
        count = self._cpu_count = os.cpu_count() or 1
        _log.warning(
            "The reports do not say how many CPUs their node had; CPU-hours assume the %d of this "
            "machine. Pass cpu_count=… to PerfReportPlotter.",
            count,
        )
        return count

    def save_to(self, path: str | os.PathLike[str] | None = None) -> str:
        """Write all reports as strict JSON, `{node: [report, …]}`, and return the file's path.

        Args:
            path: Where to; default: a new file in the temporary folder.

        Raises:
            OSError: When the place cannot be written.
        """
        if path is None:
            handle, path = tempfile.mkstemp(prefix="perf-report-", suffix=".json")
            os.close(handle)
        reports = {str(node): list(reports) for node, reports in self.all_reports.items()}
        return str(write_text(Path(path), to_json(reports)))
