"""The threads of mlflow-perf in this process: their CPU time is not the job's."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["as_own", "own_cpu_sec", "own_thread_ids"]

_began: dict[int, float] = {}
"""Native id of a thread that works for us now → its CPU time when it began to."""

_ended_sec = 0.0
_guard = threading.Lock()


@contextmanager
def as_own() -> Iterator[None]:
    """Count this thread's work as that of mlflow-perf; inside itself it changes nothing."""
    global _ended_sec  # noqa: PLW0603 - one account for the process
    thread = threading.get_native_id()
    if thread in _began:
        yield
        return
    _began[thread] = time.thread_time()
    try:
        yield
    finally:
        with _guard:
            _ended_sec += time.thread_time() - _began.pop(thread)


def own_thread_ids() -> set[int]:
    """Return the native ids of the threads that work for mlflow-perf now."""
    return set(_began)


def own_cpu_sec() -> float:
    """Return the CPU time that mlflow-perf has used in this process so far."""
    with _guard:
        used, began = _ended_sec, dict(_began)
    for thread, before in began.items():
        try:
            # The kernel's encoding of a thread's clock, as pthread_getcpuclockid makes it.
            used += time.clock_gettime((~thread << 3) | 6) - before
        except (AttributeError, OSError, OverflowError):
            continue  # it has just ended, or this is another platform
    return used


def _forget_in_child() -> None:
    # A forked child has none of its parent's threads.
    global _ended_sec, _guard
    _began.clear()
    _ended_sec, _guard = 0.0, threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_in_child)
