"""The running job's figures as a file for the textfile collector of Prometheus's node_exporter.

A job needs no port for it, and a cluster no service discovery.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping
from pathlib import Path

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from mlflow_perf.core.safe_log import get_logger
from mlflow_perf.errors import SettingError
from mlflow_perf.model.columns import COLUMNS, lookup_kind
from mlflow_perf.records import Kind

_NOT_IN_NAMES = re.compile(r"[^a-zA-Z0-9_]")
_logger = get_logger(__name__)


class TextfileExporter:
    """Writes each report to a file, which replaces the one before by a rename.

    It is a callback for `PerformanceReportingThread`. A fault of the file costs one warning.

    Args:
        path: Where: `<component>.prom` in node_exporter's `--collector.textfile.directory`.
        labels: Labels of every metric: component, node, run.

    Raises:
        SettingError: If the file's name does not end in `.prom`, its folder does not exist, or
            Prometheus does not allow the name of a label.
    """

    def __init__(
        self, path: str | os.PathLike[str], labels: Mapping[str, str] | None = None
    ) -> None:
        self._path = Path(path)
        if self._path.suffix != ".prom" or not self._path.parent.is_dir():
            raise SettingError(
                f"{str(path)!r} cannot be exported to: name a file that ends in .prom, in the "
                "folder that node_exporter reads."
            )
        self._labels = dict(labels or {})
        self._silent = False
        for label in self._labels:
            if not re.fullmatch(r"[a-zA-Z_][a-zA-Z0-9_]*", label):
                raise SettingError(f"{label!r} cannot name a label: letters, digits and _ only.")

    def __call__(self, report: Mapping[str, float]) -> None:
        """Write a report."""
        # In the same folder, so that the rename is atomic; the collector ignores this name.
        begun = self._path.with_name(f".{self._path.name}.{os.getpid()}")
        try:
            begun.write_bytes(format_report(report, self._labels))
            begun.replace(self._path)
        except OSError as error:
            if not self._silent:
                self._silent = True
                _logger.warning("The file %s cannot be written now: %s", self._path, error)

    def close(self) -> None:
        """Remove the file: a job that has ended has no current figures."""
        try:
            self._path.unlink(missing_ok=True)
        except OSError as error:
            _logger.warning("The file %s cannot be removed: %s", self._path, error)


def format_report(report: Mapping[str, float], labels: Mapping[str, str]) -> bytes:
    """Return a report in Prometheus's text format; values that are not finite are left out."""
    metrics: list[Metric] = []
    for column, value in report.items():
        if math.isfinite(value):
            family = (
                CounterMetricFamily if lookup_kind(column) is Kind.COUNTER else GaugeMetricFamily
            )
            meaning = COLUMNS[column].meaning if column in COLUMNS else ""
            name = f"mlflow_perf_{_NOT_IN_NAMES.sub('_', column)}"
            metric = family(name, meaning, labels=list(labels))
            metric.add_metric(list(labels.values()), value)
            metrics.append(metric)

    class Report(Collector):
        def collect(self) -> list[Metric]:
            return metrics

    registry = CollectorRegistry()
    registry.register(Report())
    return generate_latest(registry)
