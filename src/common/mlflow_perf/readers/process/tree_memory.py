"""The memory of several processes together, what they share counted once. Imports process.

Forked workers show the pages that they share with their parent as their own, so a sum of resident
memory counts them once per worker. The kernel's proportional share (PSS) tells the truth, but
asking costs 0.1 ms per process, and more for a large one. So it is asked rarely, within a budget of
CPU time, and a process's ratio of the two is used until its memory changes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from dataclasses import dataclass

from mlflow_perf.readers.process.process import Process, ProcessTable

__all__ = ["TreeMemory"]

# Half a per cent of a core, and at the start enough for some dozens of processes.
_BUDGET_SHARE, _BUDGET_MOST_SEC = 0.005, 0.005
_CHANGED = 0.1


@dataclass(slots=True)
class _Ratio:
    """What of its resident memory a process has for itself, as last asked."""

    started: int
    value: float
    rss_bytes: int
    members: int
    cost_sec: float

    def is_stale(self, process: Process, members: int) -> bool:
        moved = abs(process.rss_bytes - self.rss_bytes) > _CHANGED * self.rss_bytes
        return moved or abs(members - self.members) > _CHANGED * self.members


class TreeMemory:
    """Sums the memory of a tree's processes.

    Args:
        table: Where processes are read.
        clock: Monotonic seconds.
        cpu_clock: CPU seconds of this thread.
    """

    def __init__(
        self,
        table: ProcessTable,
        *,
        clock: Callable[[], float] = time.monotonic,
        cpu_clock: Callable[[], float] = time.thread_time,
    ) -> None:
        self._table, self._clock, self._cpu_clock = table, clock, cpu_clock
        self._ratios: dict[int, _Ratio] = {}
        self._since, self._budget_sec = clock(), _BUDGET_MOST_SEC

    def total(self, members: Collection[Process]) -> int:
        """Return the bytes of all members together: never less than those of the largest."""
        if len(members) < 2:
            return sum(process.rss_bytes for process in members)
        self._refill()
        self._ask(members)
        own = {p.pid: ratio.value for p in members if (ratio := self._of(p)) is not None}
        # Workers are alike: one that was not asked yet is taken for the mean of those that were.
        typical = sum(own.values()) / len(own) if own else 0.0
        shares = sum(p.rss_bytes * own.get(p.pid, typical) for p in members)
        return max(int(shares), *(p.rss_bytes for p in members))

    def _refill(self) -> None:
        now = self._clock()
        gained = _BUDGET_SHARE * max(0.0, now - self._since)
        self._budget_sec = min(_BUDGET_MOST_SEC, self._budget_sec + gained)
        self._since = now

    def _of(self, process: Process) -> _Ratio | None:
        ratio = self._ratios.get(process.pid)
        return ratio if ratio is not None and ratio.started == process.started else None

    def _ask(self, members: Collection[Process]) -> None:
        """Ask for those that were never asked, then for those that changed, the largest first."""
        if len(self._ratios) > 2 * len(members) + 64:
            self._ratios = {p.pid: r for p in members if (r := self._of(p)) is not None}
        stale = [
            process
            for process in members
            if (ratio := self._of(process)) is None or ratio.is_stale(process, len(members))
        ]
        stale.sort(key=lambda p: (self._of(p) is not None, -p.rss_bytes))
        for process in stale:
            ratio = self._of(process)
            if self._budget_sec <= 0 or (ratio and ratio.cost_sec > self._budget_sec):
                break
            self._measure(process, len(members))

    def _measure(self, process: Process, members: int) -> None:
        begin = self._cpu_clock()
        share = self._table.proportional_bytes(process.pid)
        cost = max(0.0, self._cpu_clock() - begin)
        self._budget_sec -= cost
        whole = process.rss_bytes
        value = 1.0 if share is None or whole <= 0 else min(1.0, share / whole)
        self._ratios[process.pid] = _Ratio(process.started, value, whole, members, cost)
