"""Whether a job waits for a disk, by looks at the state of its threads.

The kernel's stalls (PSI) are those of the whole node. A thread that waits for a disk, or for a
network file system, is blocked in the kernel (state `D`, as `ps` and `vmstat` show it).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from mlflow_perf.model.columns import BUSY_CORES

_MOST_THREADS = 16
"""Threads of one look. More cost more than a sample may."""
_MOVED_MB = 0.0625
_SHORT_WAITS_PER_SEC = 200.0


class BlockedLooks:
    """Counts looks at the threads of a job, and those that found one blocked.

    Args:
        is_blocked: Returns whether the kernel blocks a thread, given its process's id and its own.

    Attributes:
        looks: How many looks there were.
        blocked: How many of them found a blocked thread.
    """

    def __init__(self, is_blocked: Callable[[int, int], bool]) -> None:
        self._is_blocked = is_blocked
        self._next, self._switches, self._at = 0, 0.0, math.inf
        self.looks = self.blocked = 0

    def is_time(self, report: Mapping[str, float], now: float, *, within: bool) -> bool:
        """Return whether a look would tell something of the time since this was asked before.

        A job that keeps a CPU busy, or has moved next to nothing, waits for no disk. Until a look
        from within a Python process has read the state, a short wait of another thread is over.

        Args:
            report: What the job used so far.
            now: Monotonic seconds.
            within: Whether this process is of the job.
        """
        switches = report.get("job_voluntary_switches", 0.0)
        many = (switches - self._switches) > _SHORT_WAITS_PER_SEC * (now - self._at)
        self._switches, self._at = switches, now
        moved_mb = report["job_io_read_mb"] + report["job_io_write_mb"]
        is_free = report["job_cpu_cores"] < BUSY_CORES and moved_mb >= _MOVED_MB
        return is_free and not (within and many)

    def look(self, threads: Sequence[tuple[int, int]]) -> None:
        """Look at threads, at most sixteen; of more, at others each time.

        A look that finds none blocked among only a part of the threads says nothing.

        Args:
            threads: Ids of a process and of a thread of it.
        """
        count = len(threads)
        first = self._next % count if count > _MOST_THREADS else 0
        seen = (*threads[first:], *threads[:first])[:_MOST_THREADS]
        self._next = first + len(seen)
        if any(self._is_blocked(pid, thread) for pid, thread in seen):
            self.blocked += 1
        elif count != len(seen) or not seen:
            return
        self.looks += 1
