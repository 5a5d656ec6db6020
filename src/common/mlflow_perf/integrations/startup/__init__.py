"""What Python processes below a session do first, by `sitecustomize.py` beside this file.

Imports, of its own package, `_after_import`, and `proxystore` once the process imports the real
one: a process that has nothing to do with ProxyStore pays for no more than this file.
"""

from __future__ import annotations

import importlib
from types import ModuleType

from mlflow_perf.integrations import _after_import

__all__ = ["begin"]


def begin() -> None:
    """Gather the metrics of ProxyStore's stores from the moment that it is imported."""
    _after_import.call("proxystore.store.metrics", _gather)


def _gather(module: ModuleType) -> None:
    # Only here: it imports the recorder, which few processes need.
    importlib.import_module("mlflow_perf.integrations.proxystore").follow(module)
