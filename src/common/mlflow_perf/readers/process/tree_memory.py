"""The memory of several processes together, with shared pages counted once.

The resident memory of forked workers includes the pages that they share with their parent, so a sum
counts them once per worker. The kernel's proportional share (PSS) is exact, but it walks all pages:
4 to 35 ms per GB of each process. So it is asked rarely, within a budget of CPU time, and of all
processes at one instant, because each fork and each end changes the shares of the others.

Between two such readings, a process counts with the memory that is surely its own: a fork with the
anonymous memory that it got since the fork, any other process with all of its anonymous memory. The
memory that several use (files, shared memory, what forks inherited) stays as it was last read.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Protocol

from mlflow_perf.core.originals import time
from mlflow_perf.readers.process.process import Process
from mlflow_perf.readers.process.shares import Shares

# Half a per cent of a core. As much as 10 s give can be saved, and spent in one reading: after it,
# no further process is asked.
_BUDGET_SHARE, _BUDGET_MOST_SEC = 0.005, 0.05
# What is mapped is looked up again after such a change; shares, when so much is in doubt.
_CHANGED, _DOUBTED = 0.01, 0.05
# Since Linux 6.2 `stat` tells a process's memory without what each CPU has not handed in yet, which
# `statm` adds: all that is a small process's own. More than this came between the two readings.
_LATE_BYTES = 1 << 20


class ShareTable(Protocol):
    """Reads the memory of processes: a `ProcessTable`."""

    def read_resident(self, pid: int) -> tuple[int, int]:
        """Return a process's resident bytes, and those of files and shared memory; 0 if ended."""
        ...

    def is_fork(self, pid: int, parent: int) -> bool:
        """Return whether a process still has the program and the memory of its parent."""
        ...

    def fault_bytes(self, process: Process) -> int:
        """Return the most memory that a process can have got from page faults."""
        ...

    def read_shares(self, pid: int) -> Shares | None:
        """Return what of a process's memory is its own; None if unknown."""
        ...


@dataclass(slots=True)
class _Part:
    """What is known of one process's memory.

    Attributes:
        started: When it started; differs if its PID is reused.
        rss_bytes: Its resident memory when the next was read.
        late_bytes: What its resident memory lacked then.
        mapped_bytes: Of both, files and shared memory.
        shared_bytes: Anonymous memory that it shares; below 0 where files are its own.
        fault_bytes: What it can have got from page faults when its shares were read.
        asked: The number of the last reading that asked about it.
        was_read: Whether the last reading of what several processes use included it.
    """

    started: int
    rss_bytes: int = -1
    late_bytes: int = 0
    mapped_bytes: int = 0
    shared_bytes: int = 0
    fault_bytes: int = 0
    asked: int = 0
    was_read: bool = False

    def count_anonymous(self, process: Process) -> int:
        """Return the memory of the process that is of no file."""
        return max(0, process.rss_bytes + self.late_bytes - self.mapped_bytes)

    def count_own(self, process: Process) -> int:
        """Return the memory that only this process has."""
        own = self.count_anonymous(process) - self.shared_bytes
        return min(process.rss_bytes, max(0, own))


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
        self._since, self._budget_sec = clock(), _BUDGET_MOST_SEC
        self._forget()

    def _forget(self) -> None:
        self._parts: dict[int, _Part] = {}
        self._readings = 0
        # As last read: what several processes use, the most that one had mapped, and by how much
        # the sum of resident memory was too high.
        self._shared_bytes = self._mapped_bytes = self._excess_bytes = 0

    def total(self, members: Collection[Process]) -> int:
        """Return the bytes of all members together, at least those of the largest.

        The size of one that ended, or executed a program, since it was read is corrected.
        """
        now = self._clock()
        gained = _BUDGET_SHARE * max(0.0, now - self._since)
        self._since, self._budget_sec = now, min(_BUDGET_MOST_SEC, self._budget_sec + gained)
        if len(members) < 2:
            self._forget()
            return sum(process.rss_bytes for process in members)
        self._follow(members)
        most = sum(process.rss_bytes for process in members)
        together = self._estimate(members)
        # A page that a process copies as it writes changes no resident memory, only its faults.
        copied = 0
        for process in members:
            part = self._parts[process.pid]
            if part.shared_bytes > 0:
                gained_bytes = self._table.fault_bytes(process) - part.fault_bytes
                copied += min(part.shared_bytes, max(0, gained_bytes))
        doubt = abs(most - together - self._excess_bytes) + copied
        is_doubtful = self._budget_sec > 0 and doubt > _DOUBTED * together
        if is_doubtful and self._read_shares(members):
            together = self._estimate(members)
            self._excess_bytes = most - together
        return min(most, max(together, *(process.rss_bytes for process in members)))

    def _follow(self, members: Collection[Process]) -> None:
        """Forget ended processes, and find out what new ones can share with their parents."""
        before, self._parts = self._parts, {}
        known = {process.pid: process for process in members}
        forks = set()
        for process in members:
            part = before.get(process.pid)
            is_new = part is None or part.started != process.started
            if part is None or is_new:
                part = _Part(process.started)
                # Asked before its size: a fork may end, or execute a program, between the two.
                if process.parent in known and self._table.is_fork(process.pid, process.parent):
                    forks.add(process.pid)
            if abs(process.rss_bytes - part.rss_bytes) > _CHANGED * part.rss_bytes:
                resident, part.mapped_bytes = self._table.read_resident(process.pid)
                if resident == 0 or (is_new and process.pid not in forks):
                    process.rss_bytes = min(process.rss_bytes, resident)
                part.rss_bytes = process.rss_bytes
                late = resident - process.rss_bytes
                part.late_bytes = late if 0 < late <= _LATE_BYTES else 0
            # It may have executed another program, and has only that one's memory then.
            part.shared_bytes = min(part.shared_bytes, part.count_anonymous(process))
            self._parts[process.pid] = part
        for process in map(known.__getitem__, forks):
            inherited = self._parts[process.parent].count_anonymous(known[process.parent])
            part = self._parts[process.pid]
            part.shared_bytes = min(inherited, part.count_anonymous(process))

    def _estimate(self, members: Collection[Process]) -> int:
        """Return what each member has by itself, and once what several use."""
        own = usable = mapped = 0
        for process in members:
            part = self._parts[process.pid]
            alone = part.count_own(process)
            own, mapped = own + alone, max(mapped, part.mapped_bytes)
            if part.was_read:
                usable += process.rss_bytes - alone
        # Where those that shared it have ended, so has what they shared.
        return own + min(self._shared_bytes, usable) + max(0, mapped - self._mapped_bytes)

    def _read_shares(self, members: Collection[Process]) -> bool:
        """Ask about the members: those not asked for longest first, then the largest.

        Returns:
            Whether the answers are of one instant.
        """
        parts, begin, spent = self._parts, self._cpu_clock(), 0.0
        self._readings += 1
        answers: list[tuple[Process, Shares]] = []
        waiting = sorted(members, key=lambda p: (parts[p.pid].asked, -p.rss_bytes))
        while waiting and spent < _BUDGET_MOST_SEC:
            process = waiting.pop(0)
            parts[process.pid].asked = self._readings
            found = self._table.read_shares(process.pid) if process.rss_bytes > 0 else None
            spent = max(0.0, self._cpu_clock() - begin)
            if found is not None:
                answers.append((process, found))
        self._budget_sec -= spent
        # Where one ended meanwhile, freed what others share, or began to use it, their shares are
        # others now.
        moved, known = 0, {process.pid for process, _ in answers}
        for process in members:
            resident, mapped = self._table.read_resident(process.pid)
            moved += max(0, process.rss_bytes - resident)
            if process.pid in known:
                if resident == 0:
                    return False
                moved += abs(mapped - parts[process.pid].mapped_bytes)
        if moved > _DOUBTED * max(process.rss_bytes for process in members):
            return False
        if not answers:
            return True
        portions = asked = files = 0
        not_asked = {process.pid for process in waiting}
        for process, found in answers:
            part = parts[process.pid]
            part.shared_bytes = found.anonymous_bytes - found.private_bytes
            part.fault_bytes = self._table.fault_bytes(process)
            # What a fork shares, it shares with its parent.
            if process.parent in not_asked and self._table.is_fork(process.pid, process.parent):
                parent = parts[process.parent]
                parent.shared_bytes = max(parent.shared_bytes, part.shared_bytes)
            portions += max(0, found.proportional_bytes - found.private_bytes)
            asked += process.rss_bytes - part.count_own(process)
            files += found.proportional_bytes if found.mapped_bytes is None else found.mapped_bytes
        # Workers are alike: those that were not asked share with as many as those that were.
        others = sum(p.rss_bytes - parts[p.pid].count_own(p) for p in waiting)
        all_per_asked = 1.0 + others / asked if asked else 1.0
        self._mapped_bytes = max(parts[process.pid].mapped_bytes for process in members)
        # Files that processes outside of the tree use, too, count for it in full.
        elsewhere = max(0, self._mapped_bytes - int(files * all_per_asked))
        self._shared_bytes = int(portions * all_per_asked) + elsewhere
        for process in members:
            parts[process.pid].was_read = True
        return True
