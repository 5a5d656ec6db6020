"""What a call of MLflow shares with the job, and leaves to it: warnings, loggers, thread pools.

MLflow runs in the job's process, in a thread of ours, with the same libraries.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any

from mlflow_perf.core.own_cost import is_brought, is_unused
from mlflow_perf.core.temporary import forget_temporary_folder
from mlflow_perf.core.threads import Lock
from mlflow_perf.tracking.finalizers import register_later
from mlflow_perf.tracking.warning_filters import put_behind

_calling: set[int] = set()  # native ids of threads
_lock = Lock()
_filtered: list[Any] = []  # lists of warning filters that ours is in
_call_handlers: Any = None  # ours in the place of `logging.Logger.callHandlers`, and what it was
_end_behind: Callable[[], None] | None = None
_had_tempdir = False  # whether Python had found its folder for temporary files before
_closed_pools: dict[str, Any] | None = None
"""Names of Python's module of pools, while the interpreter exits and our calls may use them."""


def is_own_call() -> bool:
    """Return whether this thread is in a call of ours, or belongs to the MLflow that we brought.

    MLflow's telemetry has threads of its own, which outlive the call that imports it.
    """
    if threading.get_native_id() in _calling:
        return True
    # `current_thread` would make an object for a thread that Python did not start.
    thread = threading._active.get(threading.get_ident())  # type: ignore[attr-defined]  # noqa: SLF001
    return is_brought(thread) and is_unused("mlflow")


@contextlib.contextmanager
def own_call() -> Iterator[None]:
    """Call MLflow in this thread, which is ours.

    Warnings of the call are ignored: with `-W error` each would be an exception. Filters of
    warnings that come with what it imports go behind the job's. What libraries log in it does not
    reach the job's handlers, OpenTelemetry makes no spans of its requests, and `http.client`, where
    the job sets its debug level, does not print them.
    Loggers that come with what it imports are not disabled by a later configuration of the job's.
    While the interpreter exits, the call may use pools of threads, as boto3 does for S3. Its
    finalizers leave the order of the job's exit handlers as it is.
    """
    _hide_own_loggers()
    register_later(is_own_call)
    thread = threading.get_native_id()
    with _lock:
        _calling.add(thread)
        _begin()
    try:
        with _untraced(), _unprinted():
            yield
    finally:
        with _lock:
            _calling.discard(thread)
            if not _calling:
                _end()


def _hide_own_loggers() -> None:
    """Keep `dictConfig` and `fileConfig` from disabling loggers that the job does not have.

    These are the loggers that come from now on with what only calls of ours import, and ours.
    """
    from logging import config

    private: Any = config  # `dictConfig` and `fileConfig` look it up
    handle: Callable[..., None] | None = getattr(private, "_handle_existing_loggers", None)
    if handle is None or handle.__module__ == __name__:
        return

    of_job = set(logging.root.manager.loggerDict)

    def is_own(name: str) -> bool:
        is_of_mlflow = name not in of_job and is_unused(name)
        return is_of_mlflow or name.partition(".")[0] == "mlflow_perf"

    def handle_others(existing: list[str], *rest: Any) -> None:
        handle([name for name in existing if not is_own(name)], *rest)

    private._handle_existing_loggers = handle_others  # noqa: SLF001


class _InOwnCall(type):
    def __subclasscheck__(cls, _: type) -> bool:
        return is_own_call()


class _OfOwnCall(Warning, metaclass=_InOwnCall):
    """Whatever a thread of ours is warned of, for a filter of Python's."""


_IGNORED = ("ignore", None, _OfOwnCall, None, 0)


def _begin() -> None:
    global _call_handlers, _closed_pools, _end_behind, _had_tempdir  # noqa: PLW0603 - of the process
    # Not by `simplefilter`: then the job would be warned again of what it is told once. The job may
    # have put a filter of its own before ours, or be within a `catch_warnings`, which copies them.
    filters: Any = warnings.filters
    if filters[:1] != [_IGNORED]:
        filters.insert(0, _IGNORED)
        _filtered.append(filters)
    logger: Any = logging.Logger
    if _call_handlers is None:
        ours = _drop_own(before := logger.callHandlers)
        _call_handlers, logger.callHandlers = (ours, before), ours
        _end_behind = put_behind(is_own_call)
        _had_tempdir = tempfile.tempdir is not None
    # There is no other way than these two private names. Python closes its pools before it waits
    # for the last threads and calls `atexit`, where a block without an end is reported.
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


def _end() -> None:
    global _call_handlers, _closed_pools, _end_behind  # noqa: PLW0603 - as above
    for filters in (*_filtered, warnings.filters):
        while _IGNORED in filters:
            filters.remove(_IGNORED)
    _filtered.clear()
    (ours, before), _call_handlers = _call_handlers, None
    logger: Any = logging.Logger
    if logger.callHandlers is ours:  # sentry-sdk puts one of its own around it
        logger.callHandlers = before
    if not _had_tempdir:
        forget_temporary_folder()
    if _end_behind is not None:
        _end_behind()
        _end_behind = None
    if _closed_pools is not None:
        _closed_pools["_shutdown"] = True
        _closed_pools = None


def _drop_own(call_handlers: Callable[..., None]) -> Callable[..., None]:
    """Return `logging.Logger.callHandlers` without what libraries log in own calls."""

    def call(logger: logging.Logger, record: logging.LogRecord) -> None:
        if not is_own_call() or record.name.partition(".")[0] == "mlflow_perf":
            call_handlers(logger, record)

    return call


@contextlib.contextmanager
def _untraced() -> Iterator[None]:
    otel: Any = sys.modules.get("opentelemetry.context")
    if otel is None:
        yield
        return
    token = otel.attach(otel.set_value("suppress_instrumentation", True))
    try:
        yield
    finally:
        otel.detach(token)


@contextlib.contextmanager
def _unprinted() -> Iterator[None]:
    client: Any = sys.modules.get("http.client")
    if not getattr(getattr(client, "HTTPConnection", None), "debuglevel", 0):
        yield
        return
    own = vars(client)
    if "print" not in own:  # it prints with Python's own
        own["print"] = _print_of_job
    try:
        yield
    finally:
        if own.get("print") is _print_of_job and not _calling - {threading.get_native_id()}:
            del own["print"]


def _print_of_job(*values: object, **options: Any) -> None:
    if not is_own_call():
        print(*values, **options)  # noqa: T201 - in the place of Python's


@contextlib.contextmanager
def uncached() -> Iterator[None]:
    """Let MLflow make sessions of `requests` without the cache that the job has installed.

    The cache would keep our answers among the job's, and give MLflow old ones.
    """
    utils: Any = sys.modules.get("mlflow.utils.request_utils")
    shown: Any = getattr(utils, "requests", None)
    kinds: tuple[type, ...] = getattr(getattr(shown, "Session", None), "__mro__", ())
    own = next((kind for kind in kinds if kind.__module__ == "requests.sessions"), None)
    if own is None or own is kinds[0]:
        yield
        return
    utils.requests = type(sys)(shown.__name__)
    vars(utils.requests).update(vars(shown), Session=own)
    try:
        yield
    finally:
        utils.requests = shown


def _renew_in_child() -> None:
    global _lock  # noqa: PLW0603 - another thread of the parent may have held it
    _lock = Lock()
    if _calling:
        _calling.clear()
        _end()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_in_child)
