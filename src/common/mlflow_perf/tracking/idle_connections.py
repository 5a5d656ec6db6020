"""Connections to the store that calls of MLflow leave open, closed when no call goes on.

Each is a descriptor that the job does not know of. A job that closes all descriptors, as a daemon
does, gets its number for the next file: our next request would be written into that file, and
urllib3 would close it at the end of the process, before Python has written what is left.
"""

from __future__ import annotations

import contextlib
import os
import weakref
from collections.abc import Iterator
from typing import Any

from mlflow_perf.core.originals import sys
from mlflow_perf.core.own_cost import is_unused
from mlflow_perf.core.threads import Lock
from mlflow_perf.tracking.fork_guard import call_inside

_lock = Lock()
_calls = 0
_before: weakref.WeakSet[Any] = weakref.WeakSet()
_ours: weakref.WeakSet[Any] = weakref.WeakSet()  # pools that were made during calls of ours


@contextlib.contextmanager
def closing_connections() -> Iterator[None]:
    """Call MLflow; close afterwards what waits in the pools of connections that this has made.

    Where calls go on beside each other, the last one does so. Those that the job had stay open.
    """
    global _calls, _before  # noqa: PLW0603 - of the process
    with _lock:
        if not _calls:
            _before = weakref.WeakSet(_list_pools())
        _calls += 1
    try:
        yield
    finally:
        with _lock:
            _calls -= 1
            if not _calls:
                with contextlib.suppress(Exception):  # these libraries may change
                    _ours.update(pool for pool in _list_pools() if pool not in _before)
                    call_inside(_close_waiting)


def _list_pools() -> list[Any]:
    """Return the pools of urllib3, also those of an object store, and engines of local stores."""
    close = getattr(sys.modules.get("urllib3.connectionpool"), "_close_pool_connections", None)
    # What closes each pool at its end. There is no other list of them.
    at_end: list[Any] = list(getattr(weakref.finalize, "_registry", {}).values())
    pools = [one.weakref() for one in at_end if one.func is close]
    store: Any = sys.modules.get("mlflow.store.tracking.sqlalchemy_store")
    engines = getattr(getattr(store, "SqlAlchemyStore", None), "_engine_map", {})
    return [pool for pool in (*pools, *engines.values()) if pool is not None]


def _close_waiting() -> None:
    for pool in list(_ours):
        if hasattr(pool, "dispose"):
            # A thread of the job may have a connection. And those of a database in memory hold it.
            if is_unused("mlflow") and type(pool.pool).__name__ in ("QueuePool", "NullPool"):
                pool.dispose()
        elif (waiting := pool.pool) is not None:  # None once the pool is closed
            with waiting.mutex:
                idle = [one for one in waiting.queue if one is not None]
                # urllib3 puts as many of these into it as it may have connections.
                waiting.queue[:] = [None] * len(waiting.queue)
            for connection in idle:
                connection.close()


def _forget_in_child() -> None:
    global _lock, _calls  # another thread of the parent may have held it
    _lock, _calls = Lock(), 0
    for pool in list(_ours):  # of a call that went on; those of SQLite must not be closed here
        for connection in list(getattr(getattr(pool, "pool", None), "queue", ())):
            if hasattr(connection, "sock"):
                connection.close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_in_child)
