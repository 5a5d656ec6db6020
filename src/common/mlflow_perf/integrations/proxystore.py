"""ProxyStore's store metrics, gathered from every process of a job.

ProxyStore keeps the metrics of each `Store(metrics=True)` in that object, in one process. This
module extends the three methods of `StoreMetrics` that record (`add_time`, `add_counter`,
`add_attribute`), so that the session gets each record too. They are ProxyStore's public interface;
nothing else of it is changed, and its own metrics stay as they are. The module does not import
ProxyStore; it waits until the job does.

The session gets, under ProxyStore's own names:

- Times, over all stores, keys and processes, in milliseconds. ProxyStore up to 0.6.3 gives all of
  them in nanoseconds, and up to 1.1.0 those of `factory.*`; they are corrected.
- Counters.
- Attributes that are numbers (the sizes of objects), summed up over the operations, as counters.
"""

from __future__ import annotations

import functools
import importlib.util
import sys
from collections.abc import Callable
from inspect import signature
from types import ModuleType
from typing import Any

from mlflow_perf.core.safe_log import get_logger
from mlflow_perf.integrations import startup
from mlflow_perf.recorders import current
from mlflow_perf.recorders.operations import OperationMetrics

_MODULE = "proxystore.store.metrics"
# The function that measures each of these times: (class, method) in proxystore.store.factory.
_FACTORY_TIMES = {
    "factory.call": ("StoreFactory", "__call__"),
    "factory.resolve": ("StoreFactory", "resolve"),
    "factory.polling_resolve": ("PollingStoreFactory", "resolve"),
}
_logger = get_logger(__name__)
_originals: dict[str, Any] = {}
_unrecorded: set[str] = set()
_installed = False


def install() -> None:
    """Gather the metrics of all stores of this process and of the Python processes it will start.

    Does nothing when proxystore is not installed. New interpreters below this process find
    `startup/sitecustomize.py` through PYTHONPATH, run it and gather too.
    """
    global _installed  # noqa: PLW0603 - a process is patched once
    if _installed or not _is_available(tuple(sys.path)):
        return
    _installed = True
    startup.call(_MODULE, follow)
    startup.add_to_path("proxystore")


@functools.lru_cache(maxsize=1)
def _is_available(path: tuple[str, ...]) -> bool:
    """Return whether proxystore is installed; each block asks, and a search takes 0.2 ms."""
    del path  # another one is searched anew
    return importlib.util.find_spec("proxystore") is not None


def uninstall() -> None:
    """Restore proxystore and the environment to their state before `install`."""
    global _installed  # noqa: PLW0603 - a process is patched once
    if not _installed:
        return
    _installed = False
    startup.forget(_MODULE)
    while _originals:
        name, original = _originals.popitem()
        setattr(sys.modules[_MODULE].StoreMetrics, name, original)
    startup.remove_from_path("proxystore")


def follow(module: ModuleType) -> None:
    """Let all stores, also existing stores, record into the session too.

    Args:
        module: `proxystore.store.metrics`.
    """
    if _originals:
        return

    takes_ns = "time_ns" in signature(module.StoreMetrics.add_time).parameters

    def add_time(recorder: OperationMetrics, name: str, value: Any) -> None:
        divisor = 1e6 if takes_ns else _units_per_ms(name) if name in _FACTORY_TIMES else 1
        recorder.add_time(name, None, value / divisor)

    def add_counter(recorder: OperationMetrics, name: str, value: Any) -> None:
        recorder.add_counter(name, None, value)

    def add_attribute(recorder: OperationMetrics, name: str, value: Any) -> None:
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            recorder.add_counter(name, None, value)

    for add in (add_time, add_counter, add_attribute):
        original = getattr(module.StoreMetrics, add.__name__)
        setattr(module.StoreMetrics, add.__name__, _extend(original, add))
        _originals[add.__name__] = original


def _extend(original: Any, add: Callable[[OperationMetrics, str, Any], None]) -> Any:
    takes = signature(original)

    @functools.wraps(original)
    def record(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        recorder = current.recorder()
        if recorder is None:
            return
        if kwargs:
            args = takes.bind(self, *args, **kwargs).args[1:]
        name, _, value = args
        try:
            add(recorder, name, value)
        except Exception:  # The store's operation has succeeded: that must stand.
            if name not in _unrecorded:
                _unrecorded.add(name)
                _logger.warning("ProxyStore's %s cannot be recorded.", name, exc_info=True)

    return record


@functools.cache
def _units_per_ms(name: str) -> float:
    """Return how many of the units of this ProxyStore's time make a millisecond.

    The wrong unit may be corrected in any version of ProxyStore, so its version does not help. The
    function that measures the time does: it reads its timer's `elapsed_ns` or `elapsed_ms`.
    """
    owner, method = _FACTORY_TIMES[name]
    factory = sys.modules.get("proxystore.store.factory")
    function = getattr(getattr(factory, owner, None), method, None)
    code = getattr(function, "__code__", None)
    return 1e6 if code is not None and "elapsed_ns" in code.co_names else 1.0
