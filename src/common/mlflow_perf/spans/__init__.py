"""Spans: a whole workflow's events in one SQL file, from any source, and questions to them.

The successor of dnpcsql, with the same data model. Each part is loaded on first use, so importing
this package is cheap.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

# Public name → the module that defines it; `__getattr__` below imports it.
_PUBLIC = {
    "Imported": "importers.load_sources",
    "between": "analyses.times",
    "bind": "database.bind",
    "concurrency": "analyses.concurrency",
    "connect": "database.schema",
    "critical_path": "analyses.critical_path",
    "draw_graph": "analyses.type_graph",
    "durations": "analyses.times",
    "headline_figures": "output.run_log",
    "import_sources": "importers.load_sources",
    "log_to_run": "output.run_log",
    "plot_concurrency": "output.plots",
    "plot_states": "output.plots",
    "plot_times": "output.plots",
    "report_pictures": "output.run_log",
    "sequences": "analyses.sequences",
    "span_durations": "analyses.times",
    "sql": "database.sql",
    "state_counts": "analyses.state_curves",
    "states": "analyses.state_curves",
    "to_chrome_trace": "output.export",
    "to_dot": "analyses.type_graph",
    "to_parquet": "output.export",
    "type_graph": "analyses.type_graph",
    "types": "analyses.type_graph",
}

__all__ = sorted(_PUBLIC)  # noqa: PLE0605 - the names come from the table above


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_PUBLIC[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_PUBLIC})
