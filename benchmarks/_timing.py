"""Timing that several benchmarks share."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable


def best_of(times: int, work: Callable[[], object]) -> float:
    """Return the shortest of several times of a piece of work, in seconds."""
    taken = []
    for _ in range(times):
        start = time.perf_counter()
        work()
        taken.append(time.perf_counter() - start)
    return min(taken)


def usual_cpu(times: int, work: Callable[[], object]) -> float:
    """Return the median CPU time of this thread for a piece of work, in seconds.

    On a machine that others use, the shortest of several wall times holds waits for a CPU: work of
    some milliseconds is hardly ever left alone.
    """
    taken = []
    for _ in range(times):
        start = time.thread_time()
        work()
        taken.append(time.thread_time() - start)
    return statistics.median(taken)
