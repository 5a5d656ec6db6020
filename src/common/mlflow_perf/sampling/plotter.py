"""The reports of many nodes, turned into metrics or saved as JSON."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from mlflow_perf.core.json_io import to_json, write_text
from mlflow_perf.core.safe_log import get_logger
from mlflow_perf.core.temporary import find_temporary_folder
from mlflow_perf.model.summary import summarise

_log = get_logger(__name__)


class MetricsLogger(Protocol):
    """Takes metrics: `mlflow` itself, a client bound to a run, or a recorder in a test."""

    def log_metric(self, key: str, value: float, step: int) -> object:
        """Take one metric of one node."""
        ...


class PerfReportPlotter:
    """Collects the reports of all nodes of a job and logs their metrics.

    Args:
        metrics_logger: Has `log_metric(key, value, step=node)`.
        cpu_count: CPUs of a node whose reports do not contain their number. Default: this
            machine's, with a warning, since the nodes of one job are mostly alike.
    """

    def __init__(self, metrics_logger: MetricsLogger, *, cpu_count: int | None = None) -> None:
        self.metrics_logger = metrics_logger
        self.all_reports: dict[int, Sequence[Mapping[str, float]]] = {}
        self._cpu_count = cpu_count

    def add_perf_reports(self, perf_reports: Sequence[Mapping[str, float]], node: int) -> None:
        """Add the reports of one node, in the order of time; they replace its earlier ones."""
        self.all_reports[node] = perf_reports

    def report_nodes_perf(self) -> None:
        """Call `metrics_logger.log_metric(key, value, step=node)` for each metric of each node."""
        facts = {"node_count": float(len(self.all_reports))}
        for node, reports in self.all_reports.items():
            if reports and not any("cpu_limit_cores" in report for report in reports):
                if not self._cpu_count:
                    self._cpu_count = os.cpu_count() or 1
                    _log.warning(
                        "The reports do not say how many CPUs their node had; CPU-hours assume the "
                        "%d of this machine. Pass cpu_count=… to PerfReportPlotter.",
                        self._cpu_count,
                    )
                cores = {"cpu_limit_cores": float(self._cpu_count)}
                reports = [{**report, **cores} for report in reports]  # noqa: PLW2901
            if len(reports) == 1:  # a single instant has lasted 0 s, unless it says otherwise
                reports = [{"elapsed_sec": 0.0, **reports[0]}]  # noqa: PLW2901
            for key, value in summarise(reports, facts=facts).items():
                self.metrics_logger.log_metric(key, value, step=node)

    def save_to(self, path: str | os.PathLike[str] | None = None) -> str:
        """Write all reports as strict JSON, `{node: [report, …]}`, and return the file's path.

        Args:
            path: The file to write; default: a new file in the temporary folder.

        Raises:
            OSError: When the file cannot be written.
        """
        if path is None:
            place = find_temporary_folder()
            handle, path = tempfile.mkstemp(prefix="perf-report-", suffix=".json", dir=place)
            os.close(handle)
        reports = {str(node): list(reports) for node, reports in self.all_reports.items()}
        return str(write_text(Path(path), to_json(reports)))
