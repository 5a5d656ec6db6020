"""What the job's own processes use: a process and all that descend from it, ended ones included.

Imports ended, process, tree_memory and the column table.

The kernel adds a child that ended to the parent that waited for it, so the sum over the living
processes is that of all, as long as somebody waits. Processes that leave the tree without that
(their parent died before them, or ignores its children) are kept here at their last figures.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Sequence

from mlflow_perf.errors import SourceUnavailableError
from mlflow_perf.model.columns import JOB_COLUMNS
from mlflow_perf.readers.process.process import Process, ProcessTable, Usage
from mlflow_perf.readers.process.reaped import reaped_peak_bytes, reaped_sec
from mlflow_perf.readers.process.tree_memory import TreeMemory
from mlflow_perf.records import MB, Column

__all__ = ["ProcessTreeReader"]

# Shorter than this, the 10 ms steps of a child's CPU time would make false peaks. An interval of
# 0.1 s is longer, also where one sample comes late and the next does not.
_LEAST_SPAN_SEC = 0.08
# A number that was given again between two reads is seen at the latest after this many.
_RELIST_EVERY = 64
# Largest processes whose own peak is asked of the kernel at each read.
_PEAKS_ASKED = 3


class ProcessTreeReader:
    """CPU time, memory and disk IO of a process and its descendants, since this reader was made.

    Args:
        root_pid: The process; default: this one. A child of this one counts from its own start.
        table: Where processes are read.
        cores: Most CPUs that the tree can keep busy.
        clock: Monotonic seconds.

    Raises:
        SourceUnavailableError: When the process cannot be read.
    """

    name = "processes"
    columns: Sequence[Column] = JOB_COLUMNS

    def __init__(
        self,
        root_pid: int | None = None,
        *,
        table: ProcessTable | None = None,
        cores: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._table = table or ProcessTable()
        self._root = root_pid or self._table.own_pid or os.getpid()
        self._most_cores = cores or float(os.cpu_count() or 1)
        self._clock = clock
        self._members: dict[int, Process] = {}
        self._strangers: set[int] = set()
        self._newest: bytes | None = None
        self._reads = 0
        self._left = Usage()  # of those that nobody waited for
        self._memory = TreeMemory(self._table)
        self._find_root()
        self._follow()
        # A command that this process started is the job from its first instruction on.
        whole = self._whole = self._reaps and self._root != self._table.own_pid
        # Before that, its memory is a copy of this process's.
        self._held = whole and self._table.is_copy(self._root)
        self._copied = self._most_copied() if self._held else 0
        self._base = Usage() if whole else self._sum()
        self._total = Usage()
        self._was_read = not whole
        self._peak = 0
        known = () if whole else self._members
        self._peaks_before = {pid: self._table.peak_bytes(pid) for pid in known}
        self._reaped_peak_before = reaped_peak_bytes() if self._reaps else 0
        self._since, self._cpu_since = self._clock(), 0.0
        self._cores: float | None = None

    def _find_root(self) -> None:
        root = self._table.find(self._root)
        if root is None:
            raise SourceUnavailableError(f"Process {self._root} cannot be read.")
        self._members[root.pid] = root
        self._table.keep(root.pid)
        own = self._table.own_pid
        # What ends below this process is known from its own account, if the tree hangs on it.
        self._reaps = own == os.getpid() and own in (root.pid, root.parent)
        self._reaped_sec = reaped_sec() if self._reaps else 0.0

    def _most_copied(self) -> int:
        """Return the most that a copy of this process can have before it is another program."""
        # The kernel copies no pages of mapped files: the copy gets those as it touches them.
        return max(self._table.peak_bytes(self._root), self._table.own_peak_bytes())

    def _follow(self) -> None:
        """Find new members, then bring all up to date: parents first, and so none counts twice."""
        self._find_new()
        gone = [process for process in self._members.values() if not self._table.refresh(process)]
        if gone:
            for process in gone:
                del self._members[process.pid]
                self._table.drop(process.pid)
            self._settle(gone)

    def _find_new(self) -> None:
        if len(self._members) == 1 and self._table.is_childless(self._root):
            return
        newest = self._table.newest()
        self._reads += 1
        if newest is not None and newest == self._newest and self._reads % _RELIST_EVERY:
            return
        self._newest = newest
        pids = self._table.pids()
        known = set() if self._reads % _RELIST_EVERY == 0 else self._strangers & pids
        found = (self._table.find(pid) for pid in sorted(pids - known - self._members.keys()))
        self._strangers = known | self._adopt(process for process in found if process is not None)

    def _adopt(self, found: Iterable[Process]) -> set[int]:
        """Take in those that descend from a member; return the numbers of the others."""
        waiting = list(found)
        while True:
            others = []
            for process in waiting:
                if process.parent in self._members:
                    self._members[process.pid] = process
                    self._table.keep(process.pid)
                else:
                    others.append(process)
            if len(others) == len(waiting):
                return {process.pid for process in others}
            waiting = others

    def _settle(self, gone: list[Process]) -> None:
        """Keep the figures of ended processes that no member took over."""
        parents = {process.pid: process.parent for process in gone}
        heirs: dict[int | None, list[Process]] = {}
        for process in gone:
            heir: int | None = process.parent
            while heir in parents:
                heir = parents[heir]
            heirs.setdefault(heir if heir in self._members else None, []).append(process)
        for heir, ended in heirs.items():
            if heir is None:
                self._keep(ended, self._reaped_since())
            elif not self._took_over(self._members[heir], ended):
                self._keep(ended, 0.0)

    def _took_over(self, heir: Process, ended: list[Process]) -> bool:
        used = sum(process.usage.cpu_sec for process in ended)
        # Read again: the heir may have waited after it was read and before its child was.
        now = self._table.children_sec(heir.pid)
        gained = 0.0 if now is None else now - heir.children_before_sec
        return used - gained <= 4 * len(ended) * self._table.tick_sec or gained >= used / 2

    def _keep(self, ended: list[Process], at_least_sec: float) -> None:
        used = Usage()
        for process in ended:
            used.add(process.usage)
        used.cpu_sec = max(used.cpu_sec, at_least_sec)
        self._left.add(used)

    def _reaped_since(self) -> float:
        """Return what children of this process used that ended since last asked."""
        if not self._reaps or self._root == self._table.own_pid:
            return 0.0
        before, self._reaped_sec = self._reaped_sec, reaped_sec()
        return self._reaped_sec - before

    def _sum(self) -> Usage:
        total = Usage()
        total.add(self._left)
        for process in self._members.values():
            total.add(process.usage)
        return total

    def _update(self) -> Usage:
        self._follow()
        now, base, total = self._sum(), self._base, self._total
        # A child that is between its parent's account and its own is missing for one read.
        total.cpu_sec = max(total.cpu_sec, now.cpu_sec - base.cpu_sec)
        total.read_bytes = max(total.read_bytes, now.read_bytes - base.read_bytes)
        total.write_bytes = max(total.write_bytes, now.write_bytes - base.write_bytes)
        return total

    def seconds(self) -> float:
        """Return the CPU time that the tree used since this reader was made."""
        return self._update().cpu_sec

    def read(self, report: dict[str, float]) -> None:
        """Put what the tree used since this reader was made, and its memory, into the report."""
        # The sampler takes the first reading for zero: what a command used by then comes next.
        total = self._update() if self._was_read else Usage()
        self._was_read = True
        report["job_cpu_sec"] = total.cpu_sec
        report["job_io_read_mb"] = total.read_bytes / MB
        report["job_io_write_mb"] = total.write_bytes / MB
        self._note_cores(total.cpu_sec)
        if self._cores is not None:
            report["job_cpu_cores"] = self._cores
        report["job_processes"] = float(len(self._members))
        self._read_memory(report)

    def _note_cores(self, cpu_sec: float) -> None:
        now = self._clock()
        span = now - self._since
        if span >= _LEAST_SPAN_SEC or (self._cores is None and span > 0):
            self._cores = min(self._most_cores, (cpu_sec - self._cpu_since) / span)
            self._since, self._cpu_since = now, cpu_sec

    def sample_peak(self) -> None:
        """Note the memory between two reads, where a sum over processes or a command may peak."""
        if self._whole or not self._table.is_childless(self._root):
            self._update()
            together = self._note_memory()
            self._peak = max(self._peak, together)

    def _read_memory(self, report: dict[str, float]) -> None:
        now = self._note_memory()
        if now:
            report["job_mem_mb"] = now / MB
        if self._peak:
            report["job_mem_peak_mb"] = self._peak / MB

    def _note_memory(self) -> int:
        """Return the bytes of all members together and take note of the kernel's peaks."""
        was_held = self._held
        self._held = was_held and self._table.is_copy(self._root)
        if self._held or not self._members:
            return 0
        self._peak = max(self._peak, self._kernels_peak())
        # Its size was read before it was seen to be a program: it may be the copy's.
        return 0 if was_held else self._memory.total(self._members.values())

    def _kernels_peak(self) -> int:
        """Return the most that any one process had during the job, between the reads too."""
        moved = [process for process in self._members.values() if process.moved]
        largest = sorted(moved, key=lambda p: p.rss_bytes, reverse=True)[:_PEAKS_ASKED]
        peaks = [
            peak
            for process in largest
            # A peak that stood when the job started need not be the job's.
            if (peak := self._table.peak_bytes(process.pid))
            > self._peaks_before.get(process.pid, 0)
        ]
        return max(*peaks, self._peak_of_reaped(), self._peak_of_ended_root(), 0)

    def _peak_of_ended_root(self) -> int:
        """Return the peak of a command that ended and of its children: exact above its copy."""
        ended = self._table.ended_child(self._root) if self._whole else None
        if ended is None:
            return 0
        surely_its_own = ended.peak_bytes > self._copied + MB
        # Of one that was never seen while it ran, this is at least the most that it can have had.
        return ended.peak_bytes if surely_its_own or not self._peak else 0

    def _peak_of_reaped(self) -> int:
        """Return the peak of the largest child that ended, where it is surely a child's own."""
        peak = reaped_peak_bytes() if self._reaps else 0
        if peak <= self._reaped_peak_before or self._table.own_pid is None:
            return 0
        return peak if peak > self._table.own_peak_bytes() else 0

    def close(self) -> None:
        """Close procfs."""
        self._table.close()
