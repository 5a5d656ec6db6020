"""Imports a package's modules when they are first used."""

from __future__ import annotations

import contextlib
import sys
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


def import_unseen(name: str) -> None:
    """Import a module where a profiler of the job, if there is one, does not see it: in our thread.

    VizTracer 1 ends the process when it has seen the functions of psutil 7.
    """
    if sys.getprofile() is None or name in sys.modules:
        return
    from mlflow_perf.core.threads import Thread

    def work() -> None:
        with contextlib.suppress(BaseException):  # the caller's own import says why
            import_module(name)

    thread = Thread(work, name="mlflow-perf-import")
    with contextlib.suppress(RuntimeError):  # no room for a thread
        thread.start()
        thread.join()
