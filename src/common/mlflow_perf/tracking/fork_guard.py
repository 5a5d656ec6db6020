"""Keeps the job from forking while a thread of ours queries a database or imports a module.

A child has copies of all locks. One that our thread holds at that moment, of SQLite's memory, of
SQLAlchemy's pool or of a module, is never released there: the child would hang at its first query
or import of its own. MLflow tries at each new client to import PySpark, which takes a module's lock
also where it is not installed.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator
from typing import Any

from mlflow_perf.core.originals import time
from mlflow_perf.core.threads import RLock

_MOST_SEC = 5.0
"""A call that waits for another process's lock on the database lasts longer than a fork may wait;
the import of MLflow takes two seconds."""
_MOST_REMOTE_SEC = 0.2
"""A call to a server imports at its start. Then it waits for the answer, and holds no lock."""
_POLL_SEC = 0.0005

_lock = RLock()  # a handler of a signal may fork while its thread has it
_inside: dict[int, list[float]] = {}
"""Native id of a thread → until when forks wait for each of its calls, in monotonic seconds."""
_forking: set[int] = set()
"""Native ids of threads that fork now, or wait to."""


def call_inside(call: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """Call a function that queries a database or imports modules, while no thread here forks."""
    with _holding_forks(_MOST_SEC):
        return call(*args, **options)


def call_remote(call: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """Call a function that asks a server, while no thread here forks in its first moments."""
    with _holding_forks(_MOST_REMOTE_SEC):
        return call(*args, **options)


@contextlib.contextmanager
def _holding_forks(most_sec: float) -> Iterator[None]:
    thread, until = threading.get_native_id(), time.monotonic() + _MOST_SEC
    while True:
        with _lock:
            if not _forking or thread in _inside or time.monotonic() > until:
                _inside.setdefault(thread, []).append(time.monotonic() + most_sec)
                break
        time.sleep(_POLL_SEC)
    try:
        yield
    finally:
        with _lock:
            if until_each := _inside.get(thread):  # it has none in a child that the call forked
                until_each.pop()
            if not until_each:
                _inside.pop(thread, None)


def _before_fork() -> None:
    thread = threading.get_native_id()
    with _lock:
        _forking.add(thread)
    while any(
        time.monotonic() < max(until_each, default=0.0)
        for other, until_each in list(_inside.items())
        if other != thread
    ):
        time.sleep(_POLL_SEC)
    # What forks has the lock: the child's copy is whole.
    _lock.acquire()


def _after_fork() -> None:
    thread = threading.get_native_id()
    if thread in _forking:  # else this module was imported while it was forking
        _forking.remove(thread)
        _lock.release()


def _after_fork_in_child() -> None:
    global _lock  # noqa: PLW0603 - what forked has that of before
    _lock = RLock()
    for kept in (_forking, _inside):
        kept.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_before_fork,
        after_in_parent=_after_fork,
        after_in_child=_after_fork_in_child,
    )
