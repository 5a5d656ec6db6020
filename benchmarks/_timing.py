"""How long a piece of work takes: what several benchmarks measure by."""

from __future__ import annotations

import time
from collections.abc import Callable


def best_of(times: int, work: Callable[[], object]) -> float:
    """Return the shortest time that some work took, in seconds."""
    taken = []
    for _ in range(times):
        start = time.perf_counter()
        work()
        taken.append(time.perf_counter() - start)
    return min(taken)
