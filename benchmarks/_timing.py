"""Timing that several benchmarks share."""

from __future__ import annotations

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
