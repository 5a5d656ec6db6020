"""The names of the timers around: what hierarchical names are made of. Imports nothing of ours."""

from __future__ import annotations

import contextvars
from typing import Any, Protocol

__all__ = ["Recorder", "nest", "unnest"]

_path: contextvars.ContextVar[str] = contextvars.ContextVar("mlflow_perf_operation", default="")
# Name of the innermost timer around that was made with `nested=True`, per thread and task.


class Recorder(Protocol):
    """What a timer records into."""

    def add_time(self, name: str, key: Any, time_ms: float) -> None:
        """Record one time."""
        ...


def nest(name: str) -> tuple[str, contextvars.Token[str]]:
    """Put a name below the one around and make it the innermost.

    Returns:
        The whole name, and what `unnest` needs.
    """
    around = _path.get()
    whole = f"{around}.{name}" if around else name
    return whole, _path.set(whole)


def unnest(whole: str, token: contextvars.Token[str]) -> str:
    """Leave a name again and return its own part."""
    around = token.old_value if token.old_value is not contextvars.Token.MISSING else ""
    _path.set(around)
    return whole[len(around) + 1 :] if around else whole
