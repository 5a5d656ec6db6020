"""The running job's figures as OpenTelemetry metrics.

The only importer of opentelemetry. Imports errors, records and column_table.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from typing import Any

from mlflow_perf.column_table import COLUMNS, kind_of
from mlflow_perf.errors import MissingDependencyError
from mlflow_perf.records import Kind

__all__ = ["OpenTelemetryExporter"]

_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_.\-/]")
_UNITS = {"%": "%", "MB": "MiBy", "s": "s", "cores": "{core}", "W": "W"}
# Our MB is 2^20 bytes; OpenTelemetry writes units by UCUM.


class OpenTelemetryExporter:
    """Hands the newest report to OpenTelemetry's SDK, which exports it when it wants to.

    It is a callback for `PerformanceReportingThread`. Each column is the observable instrument
    `mlflow_perf.<column>`; where to export to is the SDK's own configuration.

    Args:
        attributes: Attributes of every observation: component, node, run.
        provider: The SDK's meter provider; the global one if not given.

    Raises:
        MissingDependencyError: If opentelemetry is not installed.
    """

    def __init__(
        self, attributes: Mapping[str, str] | None = None, *, provider: Any = None
    ) -> None:
        try:
            self._api = import_module("opentelemetry.metrics")
        except ImportError as error:
            raise MissingDependencyError("opentelemetry-sdk", "opentelemetry") from error
        self._attributes = dict(attributes or {})
        self._meter = self._api.get_meter("mlflow_perf", meter_provider=provider)
        self._present: Mapping[str, float] = {}
        self._known: set[str] = set()

    def __call__(self, report: Mapping[str, float]) -> None:
        """Take a report; its columns become instruments when they first show."""
        self._present = dict(report)
        for column in report:
            if column not in self._known:
                self._known.add(column)
                self._create(column)

    def close(self) -> None:
        """Observe nothing from now on: what has ended has no present figures."""
        self._present = {}

    def _create(self, column: str) -> None:
        counter = kind_of(column) is Kind.COUNTER
        create = (
            self._meter.create_observable_counter if counter
            else self._meter.create_observable_gauge
        )  # fmt: skip
        about = COLUMNS.get(column)
        create(
            f"mlflow_perf.{_NOT_IN_NAMES.sub('_', column)}"[:255],
            callbacks=[self._observer(column)],
            unit=_UNITS.get(about.unit, "1") if about else "1",
            description=about.meaning if about else "",
        )

    def _observer(self, column: str) -> Callable[[Any], Iterable[Any]]:
        def observe(_options: Any) -> Iterable[Any]:
            value = self._present.get(column, math.nan)
            if not math.isfinite(value):
                return []
            return [self._api.Observation(value, self._attributes)]

        return observe
