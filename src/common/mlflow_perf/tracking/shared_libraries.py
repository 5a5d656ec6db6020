"""What a call of MLflow shares with the job, and leaves to it: warnings, thread pools and loggers.

MLflow runs in the job's process, in a thread of ours, with the same libraries.
"""

from __future__ import annotations

import contextlib
import logging
import sys
import threading
import warnings
from collections.abc import Iterator
from importlib import import_module
from typing import Any, TypeGuard

_calling: set[int] = set()  # native ids of threads
_closed_pools: dict[str, Any] | None = None
"""Names of Python's module of pools, while the interpreter exits and our calls may use them."""


class _InOwnCall(type):
    def __subclasscheck__(cls, _: type) -> bool:
        return threading.get_native_id() in _calling


class _OfOwnCall(Warning, metaclass=_InOwnCall):
    """Whatever a thread of ours is warned of, for a filter of Python's."""


_IGNORED = ("ignore", None, _OfOwnCall, None, 0)


@contextlib.contextmanager
def own_call() -> Iterator[None]:
    """Call MLflow in this thread, which is ours: without warnings, and at the exit too."""
    thread = threading.get_native_id()
    _calling.add(thread)
    try:
        with _warnings_ignored(), _pools_open():
            yield
    finally:
        _calling.discard(thread)


@contextlib.contextmanager
def loggers_kept() -> Iterator[None]:
    """Keep the levels and handlers that loggers have: importing MLflow sets those of SQLAlchemy."""
    loggers = [one for one in logging.root.manager.loggerDict.values() if _is_set(one)]
    before = [(one.level, one.handlers[:], one.propagate) for one in loggers]
    try:
        yield
    finally:
        for logger, (level, handlers, propagate) in zip(loggers, before, strict=True):
            if logger.level != level:
                logger.setLevel(level)
            logger.handlers[:], logger.propagate = handlers, propagate


def _is_set(logger: object) -> TypeGuard[logging.Logger]:
    """Return whether somebody has set a logger; MLflow's own are its own."""
    return (
        isinstance(logger, logging.Logger)
        and bool(logger.level or logger.handlers)
        and logger.name.partition(".")[0] != "mlflow"
    )


@contextlib.contextmanager
def _warnings_ignored() -> Iterator[None]:
    """Ignore the warnings of own calls: with `-W error` each would be an exception."""
    # Not by `simplefilter`: then the job would be warned again of what it is told once.
    filters: Any = warnings.filters
    filters.insert(0, _IGNORED)
    try:
        yield
    finally:
        present: Any = warnings.filters  # another list, if the job is within a `catch_warnings`
        for one in (filters,) if present is filters else (filters, present):
            with contextlib.suppress(ValueError):
                one.remove(_IGNORED)


@contextlib.contextmanager
def _pools_open() -> Iterator[None]:
    """Let MLflow use pools of threads while the interpreter exits, as boto3 does for S3.

    Python closes them before it waits for the last threads and calls `atexit`, where a block
    without an end is reported.
    """
    global _closed_pools  # noqa: PLW0603 - of the process
    # There is no other way than these two private names.
    if "concurrent.futures.thread" not in sys.modules and vars(threading).get("_SHUTTING_DOWN"):
        vars(threading)["_SHUTTING_DOWN"] = False
        try:
            import_module("concurrent.futures.thread")
        finally:
            vars(threading)["_SHUTTING_DOWN"] = True
    pools = vars(sys.modules.get("concurrent.futures.thread", object))
    if pools.get("_shutdown"):
        _closed_pools = pools
        _closed_pools["_shutdown"] = False
    try:
        yield
    finally:
        if _closed_pools is not None and len(_calling) == 1:
            _closed_pools["_shutdown"] = True
            _closed_pools = None
