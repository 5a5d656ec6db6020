"""The running job's figures as OpenTelemetry metrics.

The only importer of opentelemetry. Imports errors, records and column_table.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from typing import Any
from weakref import WeakKeyDictionary

from mlflow_perf.errors import MissingDependencyError
from mlflow_perf.model.columns import COLUMNS, lookup_kind
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
        self._present: Mapping[str, float] = {}
        self._shared = _shared_of(provider, self._api)
        self._shared.living.append(self)

    def __call__(self, report: Mapping[str, float]) -> None:
        """Take a report; its columns become instruments when they first show."""
        self._present = dict(report)
        for column in report:
            self._shared.create(column)

    def close(self) -> None:
        """Observe nothing from now on: what has ended has no present figures."""
        self._present = {}
        if self in self._shared.living:
            self._shared.living.remove(self)

    def observe(self, column: str) -> Iterable[Any]:
        """Yield the newest value of a column, if there is one."""
        value = self._present.get(column, math.nan)
        if math.isfinite(value):
            yield self._api.Observation(value, self._attributes)


class _Shared:
    """The instruments of one meter provider, and the exporters that live.

    The SDK makes one instrument of a name: a second exporter's, as of the next block in a process,
    would never be asked.
    """

    def __init__(self, provider: Any, api: Any) -> None:
        self.under = api.get_meter_provider() if provider is None else None
        self.living: list[OpenTelemetryExporter] = []
        self._meter = api.get_meter("mlflow_perf", meter_provider=provider)
        self._known: set[str] = set()

    def create(self, column: str) -> None:
        """Make a column's instrument, if there is none."""
        if column in self._known:
            return
        self._known.add(column)
        counter = lookup_kind(column) is Kind.COUNTER
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
            return [found for one in list(self.living) for found in one.observe(column)]

        return observe


_of_provider: WeakKeyDictionary[Any, _Shared] = WeakKeyDictionary()
_of_global: list[_Shared] = []


def _shared_of(provider: Any, api: Any) -> _Shared:
    """Return what the exporters of a provider share; None is the global one."""
    if provider is not None:
        return _of_provider.setdefault(provider, _Shared(provider, api))
    now = api.get_meter_provider()
    # Instruments of the stand-in that the API has before a provider is set go over to that one.
    same = _of_global and (
        _of_global[0].under is now or "Proxy" in type(_of_global[0].under).__name__
    )
    if not same:
        _of_global[:] = [_Shared(None, api)]
    return _of_global[0]
