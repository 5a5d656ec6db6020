"""mlflow-perf: workflow performance reporting in MLflow.

Importing this package is light: each public name is loaded when it is first used, and MLflow itself
only when something has to be logged.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

from mlflow_perf._version import __version__
from mlflow_perf.core import import_locks as _import_locks  # noqa: F401 - before the job forks
from mlflow_perf.core import originals as _originals  # noqa: F401 - before the job mocks any
from mlflow_perf.core.hooks import hooks
from mlflow_perf.core.no_effect import explain_import, is_from_handler, warn_no_effect
from mlflow_perf.core.replaced import explain_replaced
from mlflow_perf.core.submodules import import_unseen, load_submodule

if TYPE_CHECKING:  # what `__getattr__` returns, for type checkers and editors
    from mlflow_perf.analysis.compare import compare as compare
    from mlflow_perf.analysis.explanations import explain as explain
    from mlflow_perf.analysis.gate import check as check
    from mlflow_perf.errors import MlflowPerfError as MlflowPerfError
    from mlflow_perf.model.document import PerfDocument as PerfDocument
    from mlflow_perf.readers import add_reader as add_reader
    from mlflow_perf.recorders.operations import Metrics as Metrics
    from mlflow_perf.recorders.operations import OperationMetrics as OperationMetrics
    from mlflow_perf.recorders.operations import Timer as Timer
    from mlflow_perf.recorders.operations import TimeStats as TimeStats
    from mlflow_perf.recorders.steps import part as part
    from mlflow_perf.recorders.steps import steps as steps
    from mlflow_perf.recorders.timing import time as time
    from mlflow_perf.recorders.transfers import KVConnectorStats as KVConnectorStats
    from mlflow_perf.recorders.transfers import NixlKVConnectorStats as NixlKVConnectorStats
    from mlflow_perf.sampling.plotter import PerfReportPlotter as PerfReportPlotter
    from mlflow_perf.sampling.sampler import (
        PerformanceMetricsCollector as PerformanceMetricsCollector,
    )
    from mlflow_perf.sampling.sampler import (
        PerformanceReportingThread as PerformanceReportingThread,
    )
    from mlflow_perf.session.autolog import autolog as autolog
    from mlflow_perf.session.flat import start as start
    from mlflow_perf.session.flat import stop as stop
    from mlflow_perf.session.report import report as report
    from mlflow_perf.tracking.load import load as load

# Public name -> module that defines it. `__getattr__` below is the only reader.
_PUBLIC = {
    "KVConnectorStats": "recorders.transfers",
    "Metrics": "recorders.operations",
    "MlflowPerfError": "errors",
    "NixlKVConnectorStats": "recorders.transfers",
    "OperationMetrics": "recorders.operations",
    "PerfDocument": "model.document",
    "PerfReportPlotter": "sampling.plotter",
    "PerformanceMetricsCollector": "sampling.sampler",
    "PerformanceReportingThread": "sampling.sampler",
    "TimeStats": "recorders.operations",
    "Timer": "recorders.operations",
    "add_reader": "readers",
    "autolog": "session.autolog",
    "check": "analysis.gate",
    "compare": "analysis.compare",
    "explain": "analysis.explanations",
    "load": "tracking.load",
    "part": "recorders.steps",
    "report": "session.report",
    "start": "session.flat",
    "steps": "recorders.steps",
    "stop": "session.flat",
    "time": "recorders.timing",
}

# The names that a job is written with: if they cannot be loaded, the job runs without them.
_IN_JOBS = {"autolog", "part", "report", "start", "steps", "stop", "time"}

__all__ = [*sorted(_PUBLIC), "__version__"]  # noqa: PLE0604 - the names come from the table above


def __getattr__(name: str) -> Any:
    module = _PUBLIC.get(name)
    if module is None:
        return load_submodule(__name__, name)
    if sys.is_finalizing():
        return warn_no_effect(name, "the interpreter is ending")
    try:
        # Importing calls more functions of Python than a block, and keeps what a mock answers.
        if name in _IN_JOBS and (replaced := explain_replaced()):
            return warn_no_effect(name, replaced)
        from mlflow_perf.core.own_cost import bring

        with bring():  # 20 MB for `report`, which are not the job's
            import_unseen("psutil")
            value = getattr(import_module(f"{__name__}.{module}"), name)
    except (Exception, SystemExit) as error:  # what a module of the job raises that hides another
        if name not in _IN_JOBS or is_from_handler(error):
            raise
        return warn_no_effect(name, explain_import(error))
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_PUBLIC})


def load_ipython_extension(shell: Any) -> None:
    """Give a notebook the magic `%%mlflow_perf NAME`; `%load_ext mlflow_perf` calls this."""
    from mlflow_perf.session.cell_magic import register_magic

    register_magic(shell)


def _plot(document: Any, **options: Any) -> Any:
    from mlflow_perf.reports.matplotlib_figure import plot

    return plot(document, **options)


def _notebook_html(thing: Any) -> str:
    from mlflow_perf.reports.notebook import show

    return show(thing)


hooks.plot, hooks.notebook_html = _plot, _notebook_html
