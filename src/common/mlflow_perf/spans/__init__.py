"""Spans: a whole workflow's events in one SQL file, from any source, and their analyses.

The successor of dnpcsql, with the same data model. Each part is loaded on first use, so importing
this package is cheap.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

# Module → the public names that it defines; `__getattr__` below imports it.
_MODULES = {
    "analyses.concurrency": "concurrency",
    "analyses.critical_path": "critical_path",
    "analyses.sequences": "sequences",
    "analyses.state_curves": "state_counts states",
    "analyses.times": "between durations span_durations",
    "analyses.type_graph": "draw_graph to_dot type_graph types",
    "database.bind": "bind",
    "database.schema": "connect",
    "database.sql": "sql",
    "importers.load_sources": "Imported import_sources",
    "output.export": "to_chrome_trace to_parquet",
    "output.plots": "plot_concurrency plot_states plot_times",
    "output.run_log": "headline_figures log_to_run report_pictures",
}
_PUBLIC = {name: module for module, names in _MODULES.items() for name in names.split()}

__all__ = sorted(_PUBLIC)  # noqa: PLE0605 - the names of the table above


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_PUBLIC[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_PUBLIC})
