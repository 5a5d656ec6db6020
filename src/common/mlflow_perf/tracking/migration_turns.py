"""Lets a store be migrated in turns with the job's own migrations.

Alembic has one context for the whole process: two migrations at once take it from each other, and
both fail.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from mlflow_perf.core.originals import sys, time
from mlflow_perf.core.threads import Lock, RLock

_MOST_SEC = 60.0
"""For how long one waits for the other: a migration may wait for a lock on its database."""
_POLL_SEC = 0.01
_one = Lock()


@contextmanager
def migrating_alone() -> Iterator[None]:
    """Migrate when no migration of the job's goes on; one that begins meanwhile waits."""
    from alembic.util import langhelpers

    proxy: Any = langhelpers.ModuleClsProxy
    turn, taken = RLock(), list[Any]()

    def install_alone(context: Any) -> None:
        if turn.acquire(timeout=_MOST_SEC):
            taken.append(context)
        install(context)

    def remove_alone(context: Any) -> None:
        try:
            remove(context)
        finally:
            if context in taken:
                taken.remove(context)
                turn.release()

    with _one:
        install, remove = proxy._install_proxy, proxy._remove_proxy  # noqa: SLF001 - no public names
        proxy._install_proxy, proxy._remove_proxy = install_alone, remove_alone  # noqa: SLF001
        try:
            until = time.monotonic() + _MOST_SEC
            # One of the job's that is under way needs further turns to come to its end.
            while (is_ours := turn.acquire(timeout=_MOST_SEC)) and time.monotonic() < until:
                if getattr(sys.modules.get("alembic.context"), "_proxy", None) is None:
                    break
                turn.release()
                time.sleep(_POLL_SEC)
            try:
                yield
            finally:
                if is_ours:
                    turn.release()
        finally:
            proxy._install_proxy, proxy._remove_proxy = install, remove  # noqa: SLF001
