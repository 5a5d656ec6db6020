"""Whether a job waits for a disk, by looks at the state of its threads.

The kernel's stalls (PSI) are those of the whole node. A thread that waits for a disk, or for a
network file system, is blocked in the kernel (state `D`, as `ps` and `vmstat` show it).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

_MOST_THREADS = 16
"""Threads of one look. More cost more than a sample may."""


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
        self._next = 0
        self.looks = self.blocked = 0

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
