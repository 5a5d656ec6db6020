"""Keeps the job from forking while a thread of ours queries a database or imports a module.

A child has copies of all locks. One that our thread holds at that moment, of SQLite's memory, of
SQLAlchemy's pool or of a module, is never released there: the child would hang at its first query
or import of its own.
"""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

from mlflow_perf.core.originals import time
from mlflow_perf.core.threads import RLock

_MOST_SEC = 5.0
"""A call that waits for another process's lock on the database lasts longer than a fork may wait;
the import of MLflow takes two seconds."""
_POLL_SEC = 0.0005

_lock = RLock()  # a handler of a signal may fork while its thread has it
_inside: Counter[int] = Counter()  # native ids of threads
_forks = 0


def call_inside(call: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """Call a function that queries a database or imports modules, while no thread here forks."""
    thread, until = threading.get_native_id(), time.monotonic() + _MOST_SEC
    while True:
        with _lock:
            if not _forks or thread in _inside or time.monotonic() > until:
                _inside[thread] += 1
                break
        time.sleep(_POLL_SEC)
    try:
        return call(*args, **options)
    finally:
        with _lock:
            _inside[thread] -= 1
            if _inside[thread] <= 0:
                del _inside[thread]  # also where a fork has waited for it in vain


def _before_fork() -> None:
    global _forks  # noqa: PLW0603 - of this process
    with _lock:
        _forks += 1
    until, thread = time.monotonic() + _MOST_SEC, threading.get_native_id()
    while any(other != thread for other in list(_inside)) and time.monotonic() < until:
        time.sleep(_POLL_SEC)
    # What forks has the lock: the child's copy is whole.
    _lock.acquire()
    for other in [one for one in _inside if one != thread]:  # no further fork waits for it
        del _inside[other]


def _after_fork() -> None:
    global _forks  # noqa: PLW0603 - as above
    _forks -= 1
    _lock.release()


def _after_fork_in_child() -> None:
    global _forks, _lock
    _forks, _lock = 0, RLock()
    _inside.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_before_fork,
        after_in_parent=_after_fork,
        after_in_child=_after_fork_in_child,
    )
