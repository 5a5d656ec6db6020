"""Spans: a whole workflow's events in one SQL file, from any source, and what they tell.

The successor of dnpcsql: same data model and questions. May import errors; each part is loaded when
it is first used, so that importing this package is light.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

# Public name -> module that defines it. `__getattr__` below is the only reader.
_PUBLIC = {
    "Imported": "importers.load_sources",
    "between": "analyses.timings",
    "bind": "database.bind",
    "concurrency": "analyses.timings",
    "connect": "database.schema",
    "critical_path": "analyses.critical_path",
    "draw_graph": "analyses.type_graph",
    "durations": "analyses.timings",
    "headline_figures": "output.run_log",
    "import_sources": "importers.load_sources",
    "log_to_run": "output.run_log",
    "plot_concurrency": "output.plots",
    "plot_states": "output.plots",
    "plot_times": "output.plots",
    "report_pictures": "output.run_log",
    "sequences": "analyses.sequences",
    "span_durations": "analyses.timings",
    "sql": "database.sql",
    "state_counts": "analyses.state_curves",
    "states": "analyses.state_curves",
    "to_chrome_trace": "output.export",
    "to_dot": "analyses.type_graph",
    "to_parquet": "output.export",
    "type_graph": "analyses.type_graph",
    "types": "analyses.timings",
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
