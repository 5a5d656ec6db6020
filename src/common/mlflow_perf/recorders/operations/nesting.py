"""The names of the nested timers that are running: they prefix the name of the next one."""

from __future__ import annotations

import contextvars
from typing import Any, Protocol

# Name of the innermost running timer that was made with `nested=True`, per thread and task.
_path: contextvars.ContextVar[str] = contextvars.ContextVar("mlflow_perf_operation", default="")


class Recorder(Protocol):
    """The target of a timer."""

    def add_time(self, name: str, key: Any, time_ms: float) -> None:
        """Record one time."""
        ...


def nest(name: str) -> tuple[str, contextvars.Token[str]]:
    """Prefix a name with the innermost one and make it the innermost.

    Returns:
        The whole name, and the token for `unnest`.
    """
    around = _path.get()
    whole = f"{around}.{name}" if around else name
    return whole, _path.set(whole)


def unnest(whole: str, token: contextvars.Token[str]) -> str:
    """Undo `nest` and return the name without its prefix."""
    around = token.old_value if token.old_value is not contextvars.Token.MISSING else ""
    _path.set(around)
    return whole[len(around) + 1 :] if around else whole
