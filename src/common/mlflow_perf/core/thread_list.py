"""Python's list of threads, without those that are not the job's.

A job may wait for all threads: `for thread in threading.enumerate(): thread.join()`, or until
`threading.active_count()` is 1. It must not wait for ours, which end after it.
"""

from __future__ import annotations

import threading
from typing import Any

_MARK = "_mlflow_perf_hidden"
_LISTS = ("_active", "_limbo")  # both functions make their answer of the values of these two


class _Shown(dict[Any, threading.Thread]):
    """One of Python's dictionaries of threads; a thread still finds itself in it by its ident."""

    # A list, because Python needs no more and others may change the dictionary meanwhile.
    def values(self) -> list[threading.Thread]:  # type: ignore[override]
        """Return the threads that are not hidden."""
        return [one for one in [*super().values()] if _MARK not in getattr(one, "__dict__", ())]

    def __len__(self) -> int:
        """Return how many of them there are."""
        return len(self.values())


def hide(thread: threading.Thread) -> None:
    """Leave a thread out of what `threading.enumerate` and `threading.active_count` return."""
    vars(thread)[_MARK] = True
    if all(isinstance(getattr(threading, name, None), _Shown) for name in _LISTS):
        return
    with threading._active_limbo_lock:  # type: ignore[attr-defined]  # noqa: SLF001
        for name in _LISTS:
            setattr(threading, name, _Shown(getattr(threading, name)))


def list_threads() -> list[threading.Thread]:
    """Return all threads that Python knows, the hidden ones too."""
    # `threading.enumerate` waits for a lock that a library may have patched.
    return [*threading._active.copy().values()]  # type: ignore[attr-defined]  # noqa: SLF001
