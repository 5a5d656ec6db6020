"""Imports a package's modules when they are first used."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType


def load_submodule(package: str, name: str) -> ModuleType:
    """Return a public module of a package, for its `__getattr__`.

    So `mlflow_perf.integrations.lightning` works after `import mlflow_perf` alone.

    Raises:
        AttributeError: When there is no such module.
    """
    from importlib.util import find_spec  # `import mlflow_perf` stays light

    if name.startswith("_") or find_spec(f"{package}.{name}") is None:
        raise AttributeError(f"module {package!r} has no attribute {name!r}")
    return import_module(f"{package}.{name}")
