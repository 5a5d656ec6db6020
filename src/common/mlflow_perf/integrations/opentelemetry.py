"""The running job's figures as OpenTelemetry metrics."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from importlib import import_module
from typing import Any
from weakref import WeakKeyDictionary

from mlflow_perf.core.extras import needing
from mlflow_perf.model.columns import COLUMNS, lookup_kind
from mlflow_perf.records import Kind

_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_.\-/]")
# OpenTelemetry writes units by UCUM, in which our MB of 2^20 bytes is MiBy.
_UNITS = {"%": "%", "MB": "MiBy", "s": "s", "cores": "{core}", "W": "W"}


class OpenTelemetryExporter:
    """Gives the newest report to OpenTelemetry's SDK, which exports it at its own interval.

    It is a callback for `PerformanceReportingThread`. Each column is the observable instrument
    `mlflow_perf.<column>`. The target of the export is the SDK's own configuration.

    Args:
        attributes: Attributes of every observation: component, node, run.
        provider: The SDK's meter provider; the global one if not given.

    Raises:
        MissingDependencyError: If opentelemetry is not installed.
    """

    def __init__(
        self, attributes: Mapping[str, str] | None = None, *, provider: Any = None
    ) -> None:
        with needing("opentelemetry-sdk", "opentelemetry"):
            self._api = import_module("opentelemetry.metrics")
        self._attributes = dict(attributes or {})
        self._present: Mapping[str, float] = {}
        self._shared = _share_instruments(provider, self._api)
        self._shared.living.append(self)

    def __call__(self, report: Mapping[str, float]) -> None:
        """Take a report; a column becomes an instrument when it first appears."""
        self._present = dict(report)
        for column in report:
            self._shared.create(column)

    def close(self) -> None:
        """Observe nothing from now on: a job that has ended has no current figures."""
        self._present = {}
        if self in self._shared.living:
            self._shared.living.remove(self)

    def observe(self, column: str) -> Iterable[Any]:
        """Yield the newest value of a column, if there is one."""
        value = self._present.get(column, math.nan)
        if math.isfinite(value):
            yield self._api.Observation(value, self._attributes)


class _Instruments:
    """The instruments of one meter provider, and the exporters that are not closed.

    The SDK makes only one instrument of a name, so the exporters of a process share it: that of a
    second exporter would never be observed.
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

        def observe(_options: Any) -> Iterable[Any]:
            return [found for one in list(self.living) for found in one.observe(column)]

        counter = lookup_kind(column) is Kind.COUNTER
        create = (
            self._meter.create_observable_counter if counter
            else self._meter.create_observable_gauge
        )  # fmt: skip
        about = COLUMNS.get(column)
        create(
            f"mlflow_perf.{_NOT_IN_NAMES.sub('_', column)}"[:255],
            callbacks=[observe],
            unit=_UNITS.get(about.unit, "1") if about else "1",
            description=about.meaning if about else "",
        )


_by_provider: WeakKeyDictionary[Any, _Instruments] = WeakKeyDictionary()
_global: list[_Instruments] = []


def _share_instruments(provider: Any, api: Any) -> _Instruments:
    """Return the instruments of a provider; None is the global one."""
    if provider is not None:
        return _by_provider.setdefault(provider, _Instruments(provider, api))
    now = api.get_meter_provider()
    # The API's proxy before a provider is set passes its instruments on to that provider.
    if not _global or not (_global[0].under is now or "Proxy" in type(_global[0].under).__name__):
        _global[:] = [_Instruments(None, api)]
    return _global[0]
