"""Python's lists of threads, without those that are not the job's.

A job may wait for all threads: `for thread in threading.enumerate(): thread.join()`, or until
`threading.active_count()` is 1. It must not wait for ours, which end after it. As a job may look up
the name of each thread that has a stack, `sys._current_frames` leaves them out, too.
"""

from __future__ import annotations

import sys as shown_sys
import threading
from typing import TYPE_CHECKING, Any

from mlflow_perf.core.originals import is_native, load_native, os, sys

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

_get_ident: Callable[[], int] = load_native("_thread", "get_ident").get_ident
_MARK = "_mlflow_perf_hidden"
_LISTS = ("_active", "_limbo")  # both functions make their answer of the values of these two

own_idents: dict[int, int] = {}
"""Ident of each of our threads, and the process it is in: Python may not know the thread."""


class _Shown(dict[Any, threading.Thread]):
    """One of Python's dictionaries of threads; a thread still finds itself in it by its ident."""

    # A list, because Python needs no more and others may change the dictionary meanwhile.
    def values(self) -> list[threading.Thread]:  # type: ignore[override]
        """Return the threads that are not hidden."""
        return [one for one in [*super().values()] if not _is_hidden(one)]

    def __len__(self) -> int:
        """Return how many of them there are."""
        return len(self.values())


def _is_hidden(thread: threading.Thread) -> bool:
    return _MARK in getattr(thread, "__dict__", ())


def _current_frames() -> dict[int, FrameType]:
    """Return a dict mapping each thread's thread id to its current stack frame."""
    found = sys._current_frames()  # noqa: SLF001 - documented
    # The thread that asks is in this function. A name for this frame would keep it alive.
    caller = found[_get_ident()].f_back
    if caller is not None:
        found[_get_ident()] = caller
    hidden = [one.ident for one in list_threads() if _is_hidden(one)]
    ours = [ident for ident, pid in [*own_idents.items()] if pid == os.getpid()]
    for ident in (*hidden, *ours):
        found.pop(ident or 0, None)
    return found


def hide(thread: threading.Thread) -> None:
    """Leave a thread out of what Python's functions return that list threads."""
    vars(thread)[_MARK] = True
    if is_native(shown_sys._current_frames):  # noqa: SLF001
        shown_sys._current_frames = _current_frames  # noqa: SLF001
    if all(isinstance(getattr(threading, name, None), _Shown) for name in _LISTS):
        return
    with threading._active_limbo_lock:  # type: ignore[attr-defined]  # noqa: SLF001
        for name in _LISTS:
            setattr(threading, name, _Shown(getattr(threading, name)))


def list_threads() -> list[threading.Thread]:
    """Return all threads that Python knows, the hidden ones and those that begin too."""
    # `threading.enumerate` waits for a lock that a library may have patched.
    return [one for name in _LISTS for one in getattr(threading, name).copy().values()]
