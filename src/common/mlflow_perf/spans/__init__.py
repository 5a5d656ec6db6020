"""Spans: a whole workflow's events in one SQL file, from any source, and what they tell.

The successor of dnpcsql: same data model and questions. May import errors; each part is loaded when
it is first used, so that importing this package is light.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

# Public name -> module that defines it. `__getattr__` below is the only reader.
_PUBLIC = {
    "Imported": "imports",
    "between": "analyses",
    "bind": "facets",
    "concurrency": "analyses",
    "connect": "schema",
    "critical_path": "waiting",
    "draw_graph": "graph",
    "durations": "analyses",
    "headline_figures": "run_log",
    "import_sources": "imports",
    "log_to_run": "run_log",
    "plot_concurrency": "plots",
    "plot_states": "plots",
    "plot_times": "plots",
    "report_pictures": "run_log",
    "sequences": "orderings",
    "span_durations": "analyses",
    "sql": "query",
    "state_counts": "state_curves",
    "states": "state_curves",
    "to_chrome_trace": "export",
    "to_dot": "graph",
    "to_parquet": "export",
    "type_graph": "graph",
    "types": "analyses",
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
