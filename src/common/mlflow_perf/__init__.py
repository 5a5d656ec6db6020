"""mlflow-perf: workflow performance reporting in MLflow.

Importing this package is light: each public name is loaded when it is first used, and MLflow itself
only when something has to be logged.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from mlflow_perf._version import __version__

# Public name -> module that defines it. `__getattr__` below is the only reader.
_PUBLIC = {
    "KVConnectorStats": "transfers",
    "Metrics": "operations",
    "MlflowPerfError": "errors",
    "NixlKVConnectorStats": "transfers",
    "OperationMetrics": "operations",
    "PerfDocument": "document",
    "PerfReportPlotter": "plotter",
    "PerformanceMetricsCollector": "perf",
    "PerformanceReportingThread": "perf",
    "TimeStats": "operations",
    "Timer": "operations",
    "add_reader": "readers",
    "check": "analysis.gate",
    "compare": "analysis.compare",
    "load": "runs",
    "report": "session",
    "time": "operations.context",
}

__all__ = [*sorted(_PUBLIC), "__version__"]  # noqa: PLE0604 - the names come from the table above


def __getattr__(name: str) -> Any:
    module = _PUBLIC.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{module}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_PUBLIC})
