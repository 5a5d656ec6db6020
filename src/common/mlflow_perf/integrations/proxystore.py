"""ProxyStore's store metrics, gathered from every process of a job.

Imports only operations and, of its own package, `startup`; never proxystore itself: it waits
until the job does. ProxyStore keeps the metrics of each `Store(metrics=True)` in that one object,
in one process. Here the three methods by which a store records (`StoreMetrics.add_time`,
`add_counter`, `add_attribute`) tell the session of each record as well. They are ProxyStore's
public interface; nothing else of it is touched, and its own metrics stay as they are.

What the session gets, under ProxyStore's own names:

- Times, over all stores, keys and processes. Those of `factory.*`, which ProxyStore up to 1.1.0
  gives in nanoseconds where it says milliseconds, are corrected.
- Counters.
- Attributes that are numbers (the sizes of objects), summed up over the operations, as counters.
"""

from __future__ import annotations

import functools
import importlib.util
import logging
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from mlflow_perf.integrations import startup
from mlflow_perf.recorders import current
from mlflow_perf.recorders.operations import OperationMetrics

__all__ = ["follow", "install", "uninstall"]

_MODULE = "proxystore.store.metrics"
_METHODS = ("add_time", "add_counter", "add_attribute")
_STARTUP = str(Path(__file__).parent / "startup")
# Which function measures each of these times: (class, method) in proxystore.store.factory.
_FACTORY_TIMES = {
    "factory.call": ("StoreFactory", "__call__"),
    "factory.resolve": ("StoreFactory", "resolve"),
    "factory.polling_resolve": ("PollingStoreFactory", "resolve"),
}
_logger = logging.getLogger(__name__)
_originals: dict[str, Any] = {}
_on_path = False
_installed = False


def install() -> None:
    """Gather the metrics of all stores of this process, and of the Python processes it will start.

    Does nothing when proxystore is not installed. New interpreters below this process run
    `startup/sitecustomize.py`, which they find by PYTHONPATH, and gather too.
    """
    global _installed, _on_path  # noqa: PLW0603 - a process is patched once
    if _installed or importlib.util.find_spec("proxystore") is None:
        return
    _installed = True
    startup.call(_MODULE, follow)
    parts = _python_path()
    _on_path = _STARTUP not in parts
    if _on_path:
        os.environ["PYTHONPATH"] = os.pathsep.join([_STARTUP, *parts])


def uninstall() -> None:
    """Leave proxystore and the environment as `install` found them."""
    global _installed  # noqa: PLW0603 - a process is patched once
    if not _installed:
        return
    _installed = False
    startup.forget(_MODULE)
    module = sys.modules.get(_MODULE)
    for name in _METHODS if module is not None and _originals else ():
        setattr(module.StoreMetrics, name, _originals.pop(name))  # type: ignore[union-attr] # mypy forgets the test above
    if _on_path:
        _leave_path()


def _python_path() -> list[str]:
    path = os.environ.get("PYTHONPATH")
    return path.split(os.pathsep) if path else []


def _leave_path() -> None:
    """Take our folder out of PYTHONPATH; what the job has put there meanwhile stays."""
    rest = [part for part in _python_path() if part != _STARTUP]
    if rest:
        os.environ["PYTHONPATH"] = os.pathsep.join(rest)
    else:
        os.environ.pop("PYTHONPATH", None)


def follow(module: ModuleType) -> None:
    """Let the stores of `proxystore.store.metrics`, those that exist too, tell the session."""
    if _originals:
        return
    told = {"add_time": _tell_time, "add_counter": _tell_counter, "add_attribute": _tell_attribute}
    for name in _METHODS:
        original = getattr(module.StoreMetrics, name)
        setattr(module.StoreMetrics, name, _also(original, told[name]))
        _originals[name] = original


def _also(original: Any, tell: Callable[[OperationMetrics, str, Any], None]) -> Any:
    @functools.wraps(original)
    def record(self: Any, name: str, key: Any, value: Any) -> None:
        original(self, name, key, value)
        recorder = current.recorder()
        if recorder is None:
            return
        try:
            tell(recorder, name, value)
        except Exception:  # noqa: BLE001 - the store's operation has succeeded: that must stand
            _warn_once(name)

    return record


@functools.cache
def _warn_once(name: str) -> None:
    _logger.warning("ProxyStore's %s cannot be recorded.", name, exc_info=True)


def _tell_time(recorder: OperationMetrics, name: str, value: Any) -> None:
    recorder.add_time(name, None, value / _divisor(name) if name in _FACTORY_TIMES else value)


def _tell_counter(recorder: OperationMetrics, name: str, value: Any) -> None:
    recorder.add_counter(name, None, value)


def _tell_attribute(recorder: OperationMetrics, name: str, value: Any) -> None:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        recorder.add_counter(name, None, value)


@functools.cache
def _divisor(name: str) -> float:
    """Return how many of the units in which this ProxyStore gives a time make a millisecond.

    Its version does not tell: it is a mistake, which may be mended in any. The function that takes
    the time does: it reads its timer's `elapsed_ns` or `elapsed_ms`.
    """
    owner, method = _FACTORY_TIMES[name]
    factory = sys.modules.get("proxystore.store.factory")
    function = getattr(getattr(factory, owner, None), method, None)
    code = getattr(function, "__code__", None)
    return 1e6 if code is not None and "elapsed_ns" in code.co_names else 1.0
