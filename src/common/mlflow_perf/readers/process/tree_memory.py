"""The memory of several processes together, with shared pages counted once.

The resident memory of forked workers includes the pages that they share with their parent, so a sum
counts them once per worker. The kernel's proportional share (PSS) is exact, but asking for it costs
0.1 ms per process, and more for a large one. So it is asked for rarely, within a budget of CPU
time, and a process's ratio of PSS to resident memory is used until its memory changes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Protocol

from mlflow_perf.core.originals import time
from mlflow_perf.readers.process.process import Process

# Half a per cent of a core, and at the start enough for some dozens of processes.
_BUDGET_SHARE, _BUDGET_MOST_SEC = 0.005, 0.005
_CHANGED = 0.1


class ShareTable(Protocol):
    """Reads the proportional memory of processes: a `ProcessTable`."""

    def proportional_bytes(self, pid: int) -> int | None:
        """Return a process's memory, with shared pages divided among their users."""
        ...


@dataclass(slots=True)
class _Ratio:
    """The ratio of proportional to resident memory, as last asked."""

    started: int
    value: float
    rss_bytes: int
    members: int
    cost_sec: float


class TreeMemory:
    """Sums the memory of a tree's processes.

    Args:
        table: Where processes are read.
        clock: Monotonic seconds.
        cpu_clock: CPU seconds of this thread.
    """

    def __init__(
        self,
        table: ShareTable,
        *,
        clock: Callable[[], float] = time.monotonic,
        cpu_clock: Callable[[], float] = time.thread_time,
    ) -> None:
        self._table, self._clock, self._cpu_clock = table, clock, cpu_clock
        self._ratios: dict[int, _Ratio] = {}
        self._since, self._budget_sec = clock(), _BUDGET_MOST_SEC

    def total(self, members: Collection[Process]) -> int:
        """Return the bytes of all members together, at least those of the largest."""
        if len(members) < 2:
            return sum(process.rss_bytes for process in members)
        now = self._clock()
        gained = _BUDGET_SHARE * max(0.0, now - self._since)
        self._budget_sec = min(_BUDGET_MOST_SEC, self._budget_sec + gained)
        self._since = now
        self._ask(members)
        known = {p.pid: ratio.value for p in members if (ratio := self._find(p)) is not None}
        # Workers are alike: a process that was not asked yet gets the mean of those that were.
        typical = sum(known.values()) / len(known) if known else 0.0
        shares = sum(p.rss_bytes * known.get(p.pid, typical) for p in members)
        return max(int(shares), *(p.rss_bytes for p in members))

    def _find(self, process: Process) -> _Ratio | None:
        ratio = self._ratios.get(process.pid)
        return ratio if ratio is not None and ratio.started == process.started else None

    def _ask(self, members: Collection[Process]) -> None:
        """Ask about new processes, then about changed ones, the largest first."""
        count = len(members)
        if len(self._ratios) > 2 * count + 64:
            self._ratios = {p.pid: r for p in members if (r := self._find(p)) is not None}
        stale: list[tuple[bool, int, Process, float]] = []
        for process in members:
            ratio, rss = self._find(process), process.rss_bytes
            if ratio is None:
                stale.append((False, -rss, process, 0.0))
            elif (
                abs(rss - ratio.rss_bytes) > _CHANGED * ratio.rss_bytes
                or abs(count - ratio.members) > _CHANGED * ratio.members
            ):
                stale.append((True, -rss, process, ratio.cost_sec))
        stale.sort(key=lambda row: row[:2])
        for *_, process, cost in stale:
            if self._budget_sec <= 0 or cost > self._budget_sec:
                break
            begin = self._cpu_clock()
            share = self._table.proportional_bytes(process.pid)
            spent = max(0.0, self._cpu_clock() - begin)
            self._budget_sec -= spent
            rss = process.rss_bytes
            value = 1.0 if share is None or rss <= 0 else min(1.0, share / rss)
            self._ratios[process.pid] = _Ratio(process.started, value, rss, count, spent)
