"""The time in which the threads of several processes ran, and waited for a busy CPU.

The kernel counts both for each thread (`schedstat`). A thread that waits as long as it runs has
half of a CPU: there are twice as many runnable threads as CPUs for them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from mlflow_perf.core.originals import time
from mlflow_perf.core.own_cost import brought_thread_ids, working_thread_ids
from mlflow_perf.readers.process.blocked import BlockedLooks
from mlflow_perf.readers.process.process import Process

# A tenth of a per cent of a core, and at the start enough for some hundreds of threads.
_BUDGET_SHARE, _BUDGET_MOST_SEC = 0.001, 0.001
# A thread that waited less did not lack a CPU.
_WAITED_NS, _WAITED_SHARE = 10_000_000, 0.1
# Below this part of the CPU time, what no reading saw may be our own.
_UNSEEN_SHARE = 0.1


class ScheduleTable(Protocol):
    """Reads the threads of processes: a `ProcessTable`."""

    @property
    def own_pid(self) -> int | None:
        """This process's PID; None where it is not in the table."""
        ...

    def thread_ids(self, pid: int) -> set[int]:
        """Return the ids of a process's threads."""
        ...

    def is_own_thread(self, pid: int, thread: int) -> bool:
        """Return whether a thread is one of ours."""
        ...

    def read_schedule(self, pid: int, thread: int) -> tuple[int, int] | None:
        """Return how long a thread ran and how long it waited for a CPU, in ns."""
        ...

    def is_runnable(self, pid: int, thread: int) -> bool:
        """Return whether a thread runs or waits for a CPU."""
        ...

    def is_blocked(self, pid: int, thread: int) -> bool:
        """Return whether the kernel blocks a thread."""
        ...

    def find_cpus(self, thread: int) -> frozenset[int]:
        """Return the numbers of the CPUs on which a thread may run; none where unknown."""
        ...


@dataclass(slots=True)
class _Looked:
    """The threads of one process when they were last read."""

    started: int
    clock_sec: float = -2.0
    threads: dict[int, tuple[int, int]] = field(default_factory=dict)
    own: set[int] = field(default_factory=set)  # those of ours
    young: set[int] = field(default_factory=set)  # first seen then; one of ours names itself soon
    cpus: frozenset[int] = frozenset()  # on which those that had work may run
    lacks_cpu: bool = False


@dataclass(slots=True)
class _Seen:
    """What the readings saw: the times of `TreeThreads`, and the waits of known threads alone."""

    ran_sec: float = 0.0
    waited_sec: float = 0.0
    beside_sec: float = 0.0
    apart_sec: float = 0.0


@dataclass(slots=True)
class _ShortThreads:
    """What threads had done when they were first seen, most of which may end before the next look.

    As many as a look finds live for about the time between two looks, and those that it finds
    runnable run or wait for that time. From within the job's process a look finds too few of them
    runnable, because it takes Python's lock; then what they had waited for what they had run tells
    more. That is too much for threads that have only begun, so that the waits are at most the time
    in which they lived and did not run.
    """

    ran_sec: float = 0.0
    waited_sec: float = 0.0
    lived_sec: float = 0.0
    runnable_sec: float = 0.0
    found: int = 0
    found_runnable: int = 0

    def add(self, ran_ns: int, waited_ns: int, *, is_runnable: bool) -> None:
        """Add a thread that is seen for the first time."""
        self.ran_sec += ran_ns / 1e9
        self.waited_sec += waited_ns / 1e9
        self.found += 1
        self.found_runnable += is_runnable

    def end_round(self, span_sec: float) -> None:
        """Note that a look at all processes is over, so long after the one before."""
        self.lived_sec += self.found * span_sec
        self.runnable_sec += self.found_runnable * span_sec
        self.found = self.found_runnable = 0

    def estimate_waits(self, unseen_sec: float) -> float:
        """Return the seconds in which they waited, where so much of their CPU time was not seen."""
        ran_sec = self.ran_sec + unseen_sec
        by_ratio = ran_sec * self.waited_sec / self.ran_sec if self.ran_sec else 0.0
        return max(0.0, min(max(by_ratio, self.runnable_sec - ran_sec), self.lived_sec - ran_sec))


class TreeThreads:
    """Sums the running and the waiting time of a tree's threads, without our own.

    What a thread does between its last reading and its end is estimated where that is much.

    Args:
        table: Where threads are read.
        members: The processes at the start; what their threads did before does not count.
        clock: Monotonic seconds.
        cpu_clock: CPU seconds of this thread.

    Attributes:
        ran_sec: Time in which the threads ran, summed.
        waited_sec: Time in which they waited for a CPU, summed.
        beside_sec: Of `ran_sec`, that of all but the busiest thread of each process between two
            readings.
        apart_sec: Of `ran_sec`, that of all but the busiest process between two readings.
        blocked: The looks for threads that wait for a disk.
    """

    def __init__(
        self,
        table: ScheduleTable,
        members: Collection[Process] = (),
        *,
        clock: Callable[[], float] = time.monotonic,
        cpu_clock: Callable[[], float] = time.thread_time,
    ) -> None:
        self._table, self._clock, self._cpu_clock = table, clock, cpu_clock
        self.blocked = BlockedLooks(table.is_blocked)
        self._looked: dict[int, _Looked] = {}
        self._seen, self._short = _Seen(), _ShortThreads()
        for process in members:
            self._look(process)
        self._seen, self._short = _Seen(), _ShortThreads()
        self.ran_sec = self.waited_sec = self.beside_sec = self.apart_sec = 0.0
        for looked in self._looked.values():
            looked.cpus, looked.lacks_cpu = frozenset(), False
        self._since, self._budget_sec = clock(), _BUDGET_MOST_SEC
        self._round_began, self._unseen_sec = self._since, 0.0

    def count(self, members: Collection[Process]) -> int:
        """Return how many threads the members have, without our own."""
        total = 0
        for process in members:
            looked = self._looked.get(process.pid)
            if looked is None:
                total += process.threads
            elif process.pid == self._table.own_pid:  # known only from that look
                total += max(1, len(looked.threads))
            else:
                total += max(1, process.threads - len(looked.own))
        return total

    def update(self, members: Collection[Process], cpu_sec: float = 0.0) -> None:
        """Read the threads of the members that used CPU since they were last read.

        Reading all threads of a large tree costs more than a sample may. Within a budget of CPU
        time, those that were read longest ago come first; the kernel's counters lose nothing.

        Args:
            members: The processes of the tree.
            cpu_sec: CPU time of the tree since the start, with that of ended threads.
        """
        now = self._clock()
        gained = _BUDGET_SHARE * max(0.0, now - self._since)
        self._budget_sec, self._since = min(_BUDGET_MOST_SEC, self._budget_sec + gained), now
        if self._budget_sec <= 0:
            return
        known = {process.pid: process for process in members}
        for pid in self._looked.keys() - known.keys():
            del self._looked[pid]
        waiting = [pid for pid in known if pid not in self._looked]
        begin, ran_before, most_sec = self._cpu_clock(), self._seen.ran_sec, 0.0
        for pid in [*waiting, *self._looked]:
            if self._cpu_clock() - begin >= self._budget_sec:
                break
            looked = self._looked.get(pid)
            if looked is None or looked.clock_sec != known[pid].clock_sec or looked.clock_sec < 0:
                most_sec = max(most_sec, self._look(known[pid]))
            else:
                looked.cpus, looked.lacks_cpu = frozenset(), False
        else:
            self._short.end_round(now - self._round_began)
            self._round_began = now
            self._unseen_sec = max(0.0, cpu_sec - self._seen.ran_sec)
        self._seen.apart_sec += self._seen.ran_sec - ran_before - most_sec
        self._budget_sec -= self._cpu_clock() - begin
        self._add_up(cpu_sec)

    def _add_up(self, cpu_sec: float) -> None:
        """Set the sums, which never fall: of what was seen, and an estimate of the rest."""
        seen, short, unseen_sec = self._seen, self._short, self._unseen_sec
        if unseen_sec <= max(short.ran_sec, _UNSEEN_SHARE * cpu_sec):
            unseen_sec, waited_sec = 0.0, short.waited_sec
        else:
            waited_sec = short.estimate_waits(unseen_sec)
        part = 1.0 + unseen_sec / seen.ran_sec if seen.ran_sec else 1.0
        self.ran_sec = max(self.ran_sec, seen.ran_sec + unseen_sec)
        self.waited_sec = max(self.waited_sec, seen.waited_sec + waited_sec)
        self.beside_sec = max(self.beside_sec, seen.beside_sec * part)
        self.apart_sec = max(self.apart_sec, seen.apart_sec * part)

    def look_for_blocked(self, report: Mapping[str, float], now: float) -> None:
        """Look whether the kernel blocks one of the threads that were read.

        Args:
            report: What the job used so far.
            now: Monotonic seconds.
        """
        known = ((pid, thread) for pid, one in self._looked.items() for thread in one.threads)
        if self.blocked.is_time(report, now, within=self._table.own_pid in self._looked):
            self.blocked.look([*known])

    def list_waiting(self) -> set[int]:
        """Return the PIDs of the processes that waited for a CPU lately."""
        return {pid for pid, looked in self._looked.items() if looked.lacks_cpu}

    def find_cpus(self) -> frozenset[int]:
        """Return all CPUs on which threads may run that waited or computed lately."""
        return frozenset().union(*(looked.cpus for looked in self._looked.values()))

    def _look(self, process: Process) -> float:
        """Read the threads of one process, add their activity since then, and return what ran."""
        pid = process.pid
        before = self._looked.pop(pid, None)
        if before is None or before.started != process.started:
            before = _Looked(process.started)
        # Now the newest, and so the last to be read again.
        now = self._looked[pid] = _Looked(process.started, process.clock_sec)
        is_own = pid == self._table.own_pid
        threads = {pid}
        if is_own or process.threads > 1:
            threads = self._table.thread_ids(pid)
        # A thread of the job works for us while it starts or ends a block, and reads this. Left out
        # then, it would count from its birth, with all imports, when it is read the next time.
        if is_own:
            threads -= working_thread_ids() - before.threads.keys() - {pid}
            threads -= brought_thread_ids()
        all_ns = most_ns = 0
        for thread in threads:
            is_known = thread == pid or thread in before.threads.keys() - before.young
            if thread in before.own or not (is_known or not self._table.is_own_thread(pid, thread)):
                now.own.add(thread)
                continue
            found = self._table.read_schedule(pid, thread)
            if found is None:
                continue
            now.threads[thread] = found
            if thread not in before.threads:
                now.young.add(thread)
            ran, waited = before.threads.get(thread, (0, 0))
            if found[0] >= ran and found[1] >= waited:  # else another thread has its id by now
                all_ns, most_ns = all_ns + found[0] - ran, max(most_ns, found[0] - ran)
                if thread in before.threads:
                    self._seen.waited_sec += (found[1] - waited) / 1e9
                else:
                    is_runnable = self._table.is_runnable(pid, thread)
                    self._short.add(*found, is_runnable=is_runnable)
                busy_ns = found[0] - ran + found[1] - waited
                if busy_ns >= _WAITED_NS:
                    now.cpus |= self._table.find_cpus(thread)
                now.lacks_cpu |= found[1] - waited >= max(_WAITED_NS, _WAITED_SHARE * busy_ns)
        self._seen.ran_sec += all_ns / 1e9
        self._seen.beside_sec += (all_ns - most_ns) / 1e9
        return all_ns / 1e9
