"""The running job's figures as a file for the textfile collector of Prometheus's node_exporter.

Imports only errors and column_table: the format is a few lines, so that it takes no library. A job
needs no port for it and a cluster no service discovery.
"""

from __future__ import annotations

import logging
import math
import os
import re
from collections.abc import Mapping
from pathlib import Path

from mlflow_perf.errors import SettingError
from mlflow_perf.model.columns import COLUMNS, lookup_kind
from mlflow_perf.records import Kind

__all__ = ["TextfileExporter", "exposition"]

_NOT_IN_NAMES = re.compile(r"[^a-zA-Z0-9_]")
_logger = logging.getLogger(__name__)


class TextfileExporter:
    """Writes each report to a file, which takes the place of the one before in one step.

    It is a callback for `PerformanceReportingThread`. A fault of the file costs one warning.

    Args:
        path: Where: `<component>.prom` in node_exporter's `--collector.textfile.directory`.
        labels: Labels of every metric: component, node, run.

    Raises:
        SettingError: If the file's name does not end in `.prom`, its folder does not exist, or a
            label's name is not one of Prometheus's.
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
        exposition({}, self._labels)
        self._silent = False

    def __call__(self, report: Mapping[str, float]) -> None:
        """Write a report."""
        # A name that the collector does not read, in the same folder: a rename within it is whole.
        begun = self._path.with_name(f".{self._path.name}.{os.getpid()}")
        try:
            begun.write_text(exposition(report, self._labels), encoding="utf-8")
            begun.replace(self._path)
        except OSError as error:
            if not self._silent:
                self._silent = True
                _logger.warning("The file %s cannot be written now: %s", self._path, error)

    def close(self) -> None:
        """Take the file away: what has ended has no present figures."""
        try:
            self._path.unlink(missing_ok=True)
        except OSError as error:
            _logger.warning("The file %s cannot be removed: %s", self._path, error)


def exposition(report: Mapping[str, float], labels: Mapping[str, str]) -> str:
    """Return a report in Prometheus's text format.

    Args:
        report: Column name -> value; what is not finite is left out.
        labels: Labels of every metric.

    Raises:
        SettingError: If a label's name is not one of Prometheus's.
    """
    for label in labels:
        if not re.fullmatch(r"[a-zA-Z_][a-zA-Z0-9_]*", label):
            raise SettingError(f"{label!r} cannot name a label: letters, digits and _ only.")
    pairs = ",".join(f'{label}="{_escaped(value)}"' for label, value in labels.items())
    series = f"{{{pairs}}}" if pairs else ""
    lines = []
    for column, value in report.items():
        if not math.isfinite(value):
            continue
        counter = lookup_kind(column) is Kind.COUNTER
        name = f"mlflow_perf_{_NOT_IN_NAMES.sub('_', column)}" + ("_total" if counter else "")
        if column in COLUMNS:
            lines.append(f"# HELP {name} {_escaped(COLUMNS[column].meaning)}")
        lines.append(f"# TYPE {name} {'counter' if counter else 'gauge'}")
        lines.append(f"{name}{series} {float(value)!r}")
    return "\n".join([*lines, ""])


def _escaped(text: str) -> str:
    return str(text).replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
