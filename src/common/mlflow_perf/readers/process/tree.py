"""The usage of the job's own processes: a process and its descendants, ended ones included.

The kernel adds an ended child's usage to the parent that waited for it, so the sum over the living
processes includes all of them as long as each parent waits. A process that leaves the tree without
that (its parent died first, or ignores its children) keeps its last values here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence

from mlflow_perf.core.originals import os, time
from mlflow_perf.core.own_cost import (
    brought_bytes,
    caused_switches,
    count_forks,
    forked_bytes,
)
from mlflow_perf.errors import SourceUnavailableError
from mlflow_perf.model.columns import JOB_COLUMNS
from mlflow_perf.node.place import count_cpus
from mlflow_perf.readers.process.process import Process, ProcessTable
from mlflow_perf.readers.process.reaped import (
    read_reaped_peak,
    read_reaped_sec,
    read_switches,
)
from mlflow_perf.readers.process.tree_memory import TreeMemory
from mlflow_perf.readers.process.tree_threads import TreeThreads
from mlflow_perf.readers.process.usage import Usage
from mlflow_perf.records import MB, Column

# In a shorter span, the 10 ms steps of a child's CPU time would make false peaks. An interval of
# 0.1 s is longer, even where one sample comes late and the next does not.
_LEAST_SPAN_SEC = 0.08
# A PID that was reused between two reads is noticed at the latest after this many reads.
_RELIST_EVERY = 64
# A job that counts its descriptors after a short child must not find that child's files among them.
_SHORT_SEC = 2.0
# Number of processes, the largest first, whose own peak is asked of the kernel at each read.
_PEAKS_ASKED = 3
_PEAK_MARGIN = 1.02


class ProcessTreeReader:
    """CPU time, memory and disk I/O of a process and its descendants, since this reader was made.

    Args:
        root_pid: The process; default: this one. A child of this one counts from its own start.
        table: Where processes are read.
        cores: Most CPUs that the tree can keep busy.
        clock: Monotonic seconds.
        ranks: Returns further first processes of the job, which other processes started: the PID,
            and the CPU time with children once it has ended, else None. They count from their own
            start.
        cpus: Numbers of the CPUs that the job owns; None where its processes are not asked for
            narrower limits of their own.
        count_quota: Returns the quota, in CPUs, that processes of the job gave themselves.
        mark: A variable, `NAME=value`, that is in the environment of the job's processes alone. By
            it, one whose parent had ended before it was seen is known.

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
        ranks: Callable[[], Mapping[int, float | None]] = dict,
        cpus: frozenset[int] | None = None,
        count_quota: Callable[[Collection[int]], float | None] = lambda _: None,
        mark: str = "",
    ) -> None:
        self._table = table or ProcessTable()
        own = self._table.own_pid
        self._root = root_pid or own or os.getpid()
        self._most_cores = cores or float(count_cpus())
        self._clock = clock
        self._members: dict[int, Process] = {}
        self._strangers: set[int] = set()
        self._newest: bytes | None = None
        self._reads, self._left = 0, Usage()  # left: of ended processes that nobody waited for
        self._ranks = ranks
        self._cpus, self._count_quota, self._mark = cpus, count_quota, mark
        self._bound: frozenset[int] = frozenset()
        self._rank_sec: dict[int, float] = {}  # the part of ended ranks in what is left
        self._memory = TreeMemory(self._table)
        root = self._table.find(self._root)
        # In a procfs of another PID namespace, the number is that of a stranger.
        if root is None or (root_pid is not None and own not in (None, os.getpid())):
            raise SourceUnavailableError(f"Process {self._root} cannot be read.")
        self._members[root.pid] = root
        self._met_sec = {root.pid: -math.inf}  # when each was seen first, until its files are kept
        self._adopters = self._list_adopters(root.parent)
        # If the tree hangs on this process, its account shows what ended below it.
        self._reaps = own == os.getpid() and own in (root.pid, root.parent)
        self._reaped_sec = read_reaped_sec() if self._reaps else 0.0
        self._reaped_peak_before = read_reaped_peak() if self._reaps else 0
        self._forks_before = count_forks()
        # A command that this process started is the job from its first instruction on. Until it
        # executes its program, its memory is a copy of this process's.
        self._is_command = self._reaps and self._root != own
        self._follow()
        self._is_copy = self._is_command and self._table.is_copy(self._root)
        # The most that the copy can have: the kernel copies no pages of mapped files, and the copy
        # gets those as it touches them.
        self._copied = 0
        if self._is_copy:
            self._copied = max(self._table.peak_bytes(self._root), self._table.own_peak_bytes())
        self._base = Usage() if self._is_command else self._sum()
        self._total = Usage()
        self._was_read = not self._is_command
        self._peak = 0
        known = {} if self._is_command else self._members
        self._peaks_before = {pid: self._table.peak_bytes(pid) for pid in known}
        self._threads = TreeThreads(self._table, known.values())
        self._voluntary = 0
        self._switches_before = (0, 0) if self._is_command else self._read_switches()
        self._since: float | None = None
        self._cpu_since = 0.0
        self._cores: float | None = None

    def _follow(self) -> None:
        """Find new members, then bring all up to date: parents first, so that none counts twice."""
        ranks = self._ranks()
        # Further first processes of the job that have begun since the reading before.
        for pid in [pid for pid, cpu_sec in ranks.items() if cpu_sec is None]:
            if pid not in self._members and pid not in self._rank_sec:
                process = self._table.find(pid)
                if process is not None:
                    self._members[pid] = process
                    # Its children may have been taken for strangers.
                    self._newest = None
                    self._strangers.clear()
        self._find_new()
        gone = [process for process in self._members.values() if not self._table.refresh(process)]
        for process in gone:
            del self._members[process.pid]
            self._table.drop(process.pid)
            self._met_sec.pop(process.pid, None)
        if gone:
            self._settle(gone, ranks)
        for pid, cpu_sec in ranks.items():
            if cpu_sec is not None and pid not in self._members:
                self._left.cpu_sec += cpu_sec - self._rank_sec.get(pid, 0.0)
                self._rank_sec[pid] = cpu_sec

    def _find_new(self) -> None:
        """Add the processes that descend from a member, or did and were given the mark."""
        if not self._mark and len(self._members) == 1 and self._table.is_childless(self._root):
            return
        newest = self._table.newest()
        self._reads += 1
        relist = self._reads % _RELIST_EVERY == 0
        if newest is not None and newest == self._newest and not relist:
            return
        self._newest = newest
        pids = self._table.pids()
        known = set() if relist else self._strangers & pids
        found = (self._table.find(pid) for pid in sorted(pids - known - self._members.keys()))
        waiting = [process for process in found if process is not None]
        while True:
            others = []
            for process in waiting:
                if process.parent in self._members or self._is_orphan(process):
                    self._members[process.pid] = process
                else:
                    others.append(process)
            if len(others) == len(waiting):
                break
            waiting = others
        self._strangers = known | {process.pid for process in waiting}

    def _list_adopters(self, above: int) -> set[int]:
        """Return who may get orphans: the first process, or one above the job that asked for it."""
        found = {1}
        while above > 1 and above not in found:
            found.add(above)
            above = 0 if (one := self._table.find(above)) is None else one.parent
        return found

    def _is_orphan(self, process: Process) -> bool:
        """Return whether a process is one of the job whose parent has ended before it was seen."""
        is_left = bool(self._mark) and process.parent in self._adopters
        return is_left and self._table.was_given(process.pid, self._mark)

    def _settle(self, gone: list[Process], ranks: Mapping[int, float | None]) -> None:
        """Keep the usage of ended processes that no member took over."""
        parents = {process.pid: process.parent for process in gone}
        heirs: dict[int | None, list[Process]] = {}
        for process in gone:
            top = process.pid
            heir: int | None = process.parent
            while heir in parents:
                top, heir = heir, parents[heir]
            if top in ranks:
                self._left.add(process.usage)
                # Its account, which follows, has the CPU time to the last moment.
                self._rank_sec[top] = self._rank_sec.get(top, 0.0) + process.usage.cpu_sec
                continue
            heirs.setdefault(heir if heir in self._members else None, []).append(process)
        for heir, ended in heirs.items():
            used = Usage()
            for process in ended:
                used.add(process.usage)
            if heir is not None:
                # Read again: the heir may have waited after it was read and before its child was.
                now = self._table.children_sec(heir)
                gained = 0.0 if now is None else now - self._members[heir].children_before_sec
                lost = used.cpu_sec - gained
                if lost <= 4 * len(ended) * self._table.tick_sec or gained >= used.cpu_sec / 2:
                    continue
            elif self._is_command:
                before, self._reaped_sec = self._reaped_sec, read_reaped_sec()
                used.cpu_sec = max(used.cpu_sec, self._reaped_sec - before)
            self._left.add(used)

    def _sum(self) -> Usage:
        total = Usage()
        total.add(self._left)
        for process in self._members.values():
            total.add(process.usage)
        return total

    def _update(self) -> Usage:
        self._follow()
        # A child that is between its parent's account and its own is missing for one read.
        self._total.raise_to(self._sum(), since=self._base)
        return self._total

    def owns(self, pid: int) -> bool:
        """Return whether a process was one of the tree's at the newest reading; any thread asks."""
        return pid in self._members

    def seconds(self) -> float:
        """Return the CPU time that the tree used since this reader was made."""
        return self._update().cpu_sec

    def read(self, report: dict[str, float]) -> None:
        """Put the tree's usage since this reader was made, and its memory, into the report."""
        # The sampler counts from the first reading: for a command, that is its own start.
        total = self._update() if self._was_read else Usage()
        self._was_read = True
        report.update(total.as_report())
        self._threads.update(self._members.values(), total.cpu_sec)
        report["job_ran_sec"] = self._threads.ran_sec
        report["job_run_delay_sec"] = self._threads.waited_sec
        report["job_ran_beside_sec"] = self._threads.beside_sec
        report["job_ran_apart_sec"] = self._threads.apart_sec
        self._read_own_limits(report)
        if self._members:
            report["job_threads"] = float(self._threads.count(self._members.values()))
        switches = self._read_switches()
        if switches is not None and self._switches_before is not None:
            gained = [b - a for a, b in zip(self._switches_before, switches, strict=True)]
            report["job_voluntary_switches"], report["job_involuntary_switches"] = gained
        now = self._clock()
        for pid in self._members:
            if now - self._met_sec.setdefault(pid, now) > _SHORT_SEC:
                self._met_sec[pid] = math.inf
                self._table.keep(pid)
        if self._since is None:  # the first read begins the first interval
            self._since, self._cpu_since = now, total.cpu_sec
        span = now - self._since
        if span >= _LEAST_SPAN_SEC or (self._cores is None and span > 0):
            self._cores = min(self._most_cores, (total.cpu_sec - self._cpu_since) / span)
            self._since, self._cpu_since = now, total.cpu_sec
        if self._cores is not None:
            report["job_cpu_cores"] = self._cores
            self._threads.look_for_blocked(report, now)
        report["job_looks"] = float(self._threads.blocked.looks)
        report["job_blocked_looks"] = float(self._threads.blocked.blocked)
        report["job_processes"] = float(len(self._members))
        together = self._measure_memory()
        if together:
            report["job_mem_mb"] = together / MB
        if self._peak:
            report["job_mem_peak_mb"] = self._peak / MB

    def _read_own_limits(self, report: dict[str, float]) -> None:
        """Note the limits that the job gave to its own processes, where one lacks a CPU.

        A thread that waits on one CPU is no limit of a job whose other threads have the others, nor
        is it one of a job whose launcher has bound each rank to CPUs of its own.
        """
        waiting = self._threads.list_waiting()
        if not waiting or self._cpus is None:
            return
        allowed = self._cpus & (self._threads.find_cpus() | self._find_bound_cpus())
        # All of them, too: the mean tells for how much of the time there were fewer.
        if allowed:
            report["job_affinity_cpus"] = float(len(allowed))
        quota = self._count_quota(waiting)
        if quota is not None and quota < len(self._cpus):
            report["job_quota_cores"] = quota

    def _find_bound_cpus(self) -> frozenset[int]:
        """Return the CPUs to which the launcher has bound the ranks; all until others are known."""
        if self._ranks is not dict:
            others = self._ranks()
            firsts = map(self._table.find_cpus, (self._root, *others))
            self._bound = self._bound.union(*firsts)  # those of ended ranks too
            return self._bound if others else self._cpus or frozenset()
        return frozenset()

    def _read_switches(self) -> tuple[int, int] | None:
        """Return the switches of this process and its ended children, or of an ended command."""
        if not self._reaps:
            return None
        if not self._is_command:
            switches = read_switches(own=True)
            # What we caused is an estimate: the counter must not run backwards.
            self._voluntary = max(self._voluntary, switches[0] - caused_switches())
            return self._voluntary, switches[1]
        # The kernel shows them without a look at each thread only when the command has ended.
        ended = self._table.find_ended_child(self._root)
        return None if ended is None else ended.switches

    def sample_peak(self) -> None:
        """Note the memory between two reads, where a sum over processes or a command may peak."""
        if self._is_command or not self._table.is_childless(self._root):
            self._update()
            self._peak = max(self._peak, self._measure_memory())

    def _measure_memory(self) -> int:
        """Return the bytes of all members together, and note the kernel's peaks."""
        was_copy = self._is_copy
        self._is_copy = was_copy and self._table.is_copy(self._root)
        if self._is_copy or not self._members:
            return 0
        members = [process for process in self._members.values() if self._has_memory(process)]
        self._note_peaks(members)
        # Its size was read before it was seen to run its program: it may be the copy's.
        if was_copy:
            return 0
        ours = brought_bytes() if self._table.own_pid in self._members else 0
        return max(0, self._memory.total(members) - ours)

    def _has_memory(self, process: Process) -> bool:
        """Return whether a process has memory of its own.

        Most programs are started by `vfork`: for a moment the child has its parent's memory.
        """
        if process.may_borrow and process.parent in self._members:
            process.may_borrow = self._table.uses_memory_of(process.pid, process.parent)
            return not process.may_borrow
        return True

    def _note_peaks(self, members: Sequence[Process]) -> None:
        """Note the most that any one process had during the job, between the reads too."""
        table = self._table
        moved = [process for process in members if process.moved]
        for process in sorted(moved, key=lambda p: p.rss_bytes, reverse=True)[:_PEAKS_ASKED]:
            peak = table.peak_bytes(process.pid)
            # A peak from before the job's start need not be the job's.
            if peak > self._peaks_before.get(process.pid, 0) and peak > self._peak:
                # A fork of this process began with all that this process had.
                if process.pid == table.own_pid:
                    peak -= brought_bytes()
                elif table.is_copy(process.pid):
                    peak -= forked_bytes()
                else:  # asked again: it may have been a copy when it was asked
                    peak = table.peak_bytes(process.pid)
                self._peak = max(self._peak, peak)
        reaped = read_reaped_peak() if self._reaps else 0
        # A reaped child's peak is surely its own where it exceeds this process's, whose peak it had
        # before it executed its program. The kernel rounds both.
        if reaped > self._reaped_peak_before and reaped > _PEAK_MARGIN * table.own_peak_bytes():
            # A fork of this process began with all that this process had.
            if count_forks() > self._forks_before:
                reaped -= forked_bytes()
            self._peak = max(self._peak, reaped)
        ended = table.find_ended_child(self._root) if self._is_command else None
        # The peak of an ended command is surely its own above its copy. Below that, it is known
        # only from when the command was seen running its program.
        if ended is not None and ended.peak_bytes > self._copied + MB:
            self._peak = max(self._peak, ended.peak_bytes)

    def close(self) -> None:
        """Close procfs."""
        self._table.close()
