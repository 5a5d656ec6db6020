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
    "concurrency": "analyses",
    "connect": "schema",
    "durations": "analyses",
    "import_sources": "imports",
    "sequences": "orderings",
    "sql": "query",
    "states": "state_curves",
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
