"""Libraries draw random numbers in our calls without changing those that the job draws.

A client waits a random time before it repeats a request, and takes that from Python's `random`. A
job that has called `random.seed` would get other numbers after a fault of its server.
"""

from __future__ import annotations

import random
import sys
from types import ModuleType
from typing import Any

from mlflow_perf.tracking.shared_libraries import is_own_call

_USERS = frozenset(
    {
        "azure",
        "botocore",
        "databricks",
        "google",
        "mlflow",
        "opentelemetry",
        "s3transfer",
        "urllib3",
    }
)
_modules = 0
"""How many modules there were at the last look."""


class _Random:
    """The module `random` for a library: of the system's numbers in our calls, else the job's."""

    def __getattr__(self, name: str) -> Any:
        return getattr(_own if is_own_call() and hasattr(_own, name) else random, name)

    def __setattr__(self, name: str, value: object) -> None:
        setattr(random, name, value)  # a test of the job's replaces a function

    def __delattr__(self, name: str) -> None:
        delattr(random, name)


_shared: Any = _Random()
_own = random.SystemRandom()  # it has no state, which forked processes would share


def uses_random(module: str) -> bool:
    """Return whether a module belongs to a library that MLflow sends by."""
    return module.partition(".")[0] in _USERS


def separate_random(module: ModuleType) -> None:
    """Let a module draw numbers of the system's in our calls."""
    own = vars(module)
    if own.get("random") is random:
        own["random"] = _shared


def separate_loaded() -> None:
    """Let all modules of such libraries do so that are loaded already, by the job too."""
    global _modules  # noqa: PLW0603 - of the process
    count = len(sys.modules)
    if count == _modules:  # a look at all of them takes 2 ms
        return
    _modules = count
    for name, module in sys.modules.copy().items():
        if uses_random(name) and isinstance(module, ModuleType):
            separate_random(module)
