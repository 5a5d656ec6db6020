"""One process as procfs shows it."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from mlflow_perf.core.originals import os, time
from mlflow_perf.core.own_cost import MOVED_NOTHING, own_cpu_sec, own_moved
from mlflow_perf.core.threads import KERNEL_NAME
from mlflow_perf.readers.process.forks import FORKED, read_layout, uses_memory_of
from mlflow_perf.readers.process.reaped import (
    EndedChild,
    find_ended_child,
    is_childless,
    read_own_faults,
    read_own_peak,
    read_reaped_and_share,
    read_reaped_sec,
)
from mlflow_perf.readers.process.shares import Shares
from mlflow_perf.readers.process.usage import Usage
from mlflow_perf.readers.procfile import ProcFile, ProcFolder, open_first, read_text

CpuClock = Callable[[int], float]
"""Returns the CPU time that a process used itself, in seconds, by its PID."""

_IO = re.compile(
    rb"rchar: (\d+)\nwchar: (\d+)\nsyscr: (\d+)\nsyscw: (\d+)\n"
    rb"read_bytes: (\d+)\nwrite_bytes: (\d+)"
)
_PEAK = re.compile(rb"\nVmHWM:\s*(\d+) kB")
# A job may open at least 1,024 files; ours count against that limit.
_FILES_KEPT = 48
# Clock and `stat` are the same account; on some kernels `stat` is a little inexact.
_MARGIN_SEC, _MARGIN = 0.1, 0.02


def cpu_clock_sec(pid: int) -> float:
    """Return the CPU time of a process, ended threads included, to the nanosecond.

    Raises:
        OSError: When there is no such process.
    """
    # The kernel's encoding of a process's clock (clock_getcpuclockid); `stat` has only 10 ms steps.
    return time.clock_gettime((~pid << 3) | 2)


@dataclass(slots=True)
class Process:
    """A process at its newest reading.

    Attributes:
        pid: Its PID.
        started: When it started, in the kernel's ticks; differs if its PID is reused.
        parent: PID of its parent.
        usage: What it and its reaped children used.
        children_sec: CPU time of its reaped children, a part of `usage`.
        rss_bytes: Its resident memory.
        clock_sec: Its own CPU time; it has no new values while this does not change.
        children_before_sec: `children_sec` at the reading before.
        moved: Whether it used CPU time since the reading before.
        threads: How many threads it has.
        faults: How many pages it got without a disk since its start, of this process's own unknown.
        may_borrow: Whether it may have no memory but its parent's: it has executed no program yet.
    """

    pid: int
    started: int
    parent: int
    usage: Usage = field(default_factory=Usage)
    children_sec: float = 0.0
    rss_bytes: int = 0
    clock_sec: float = -1.0
    children_before_sec: float = 0.0
    moved: bool = True
    threads: int = 1
    faults: int = 0
    may_borrow: bool = True


class ProcessTable:
    """Reads processes from procfs.

    Args:
        proc: Where procfs is mounted.
        ticks_per_sec: The kernel's clock ticks in a second.
        page_bytes: Size of a page.
        cpu_clock: A finer clock of a process's CPU time than `stat`; None for none.

    Raises:
        SourceUnavailableError: When there is no procfs.
    """

    def __init__(
        self,
        proc: Path | str = "/proc",
        *,
        ticks_per_sec: int | None = None,
        page_bytes: int | None = None,
        cpu_clock: CpuClock | None = cpu_clock_sec,
    ) -> None:
        self._folder = ProcFolder(proc)
        self._tick = 1.0 / (ticks_per_sec or os.sysconf("SC_CLK_TCK"))
        self._page = page_bytes or os.sysconf("SC_PAGE_SIZE")
        self._newest = open_first(f"{proc}/loadavg")
        # The files of the first members stay open: opening costs as much as reading.
        self._files: dict[bytes, ProcFile] = {}
        self._own_pid: int | None = None
        self._clock: CpuClock | None = None
        # What a clock may gain between two readings without a look at `stat`.
        self._plausible_sec = 1.0 + (os.cpu_count() or 1)
        self._cost_sec = 0.0
        try:
            self._own_pid = int(Path(proc, "self").readlink().name)
            # In a mount of another PID namespace, its PIDs are not those of the clocks.
            if cpu_clock is not None and self._own_pid == os.getpid():
                cpu_clock(self._own_pid)
                self._clock = cpu_clock if self._is_true(cpu_clock, self._own_pid) else None
        except (OSError, ValueError, OverflowError):
            pass
        # Asking for the account costs a tenth of reading `status`. But a process that was forked
        # inherits its parent's peak there: then `status` alone has its own.
        self._has_own_account = False
        if self._own_pid is not None and self._own_pid == os.getpid():
            inherited = read_own_peak()
            self._has_own_account = inherited <= self.peak_bytes(self._own_pid)

    @property
    def own_pid(self) -> int | None:
        """This process's PID in this procfs; None where it is not in it."""
        return self._own_pid

    @property
    def tick_sec(self) -> float:
        """The resolution of the times in `stat`."""
        return self._tick

    def pids(self) -> set[int]:
        """Return the PIDs of all processes."""
        return self._folder.pids()

    def is_childless(self, pid: int) -> bool:
        """Return whether a process surely has no child; false where that is unknown."""
        return pid == self._own_pid == os.getpid() and is_childless()

    def newest(self) -> bytes | None:
        """Return a value that changes with each new process or thread; None where unknown."""
        return None if self._newest is None else self._newest.read().rpartition(b" ")[2]

    def find(self, pid: int) -> Process | None:
        """Return a process that was not known before; None when it has ended."""
        fields = self._read_stat(pid)
        return None if fields is None else Process(pid, int(fields[19]), int(fields[1]))

    def was_given(self, pid: int, variable: str) -> bool:
        """Return whether a process began with a variable, `NAME=value`, in its environment."""
        return variable.encode() in (self._folder.read(b"%d/environ" % pid) or b"").split(b"\0")

    def _read(self, name: bytes) -> bytes | None:
        file = self._files.get(name)
        if file is None:
            return self._folder.read(name)
        try:
            return file.read()
        except OSError:  # it has ended; another process may have its PID by now
            self._files.pop(name).close()
            return self._folder.read(name)

    def _read_stat(self, pid: int) -> list[bytes] | None:
        data = self._read(b"%d/stat" % pid)
        # The name, in brackets, may hold blanks and brackets; field 0 is the one after it.
        fields = [] if data is None else data[data.rfind(b")") + 2 :].split(None, 22)
        return fields if len(fields) > 21 else None

    def _is_true(self, clock: CpuClock, pid: int) -> bool:
        """Return whether a clock, which libfaketime may shift, agrees with the kernel's `stat`."""
        before, now, after = self._read_stat(pid), clock(pid), self._read_stat(pid)
        if before is None or after is None:  # it has ended
            return True
        first, last = self._own_sec(before), self._own_sec(after)
        margin = _MARGIN_SEC + _MARGIN * last
        return first - margin <= now <= last + margin

    def _own_sec(self, fields: list[bytes]) -> float:
        return (int(fields[11]) + int(fields[12])) * self._tick

    def _find_cost_sec(self, used: float) -> float:
        """Return our own part of what this process used; its clock may be shifted too."""
        cost = own_cpu_sec()
        if self._cost_sec <= cost <= used:
            self._cost_sec = cost
        return self._cost_sec

    def _name_files(self, pid: int) -> list[bytes]:
        names = [b"stat", b"io", b"status"]
        if pid == self._own_pid:
            names = [b"statm", b"io", b"task/%d/schedstat" % pid]
            if not self._has_own_account:
                names.append(b"status")
        return [b"%d/%s" % (pid, name) for name in names]

    def keep(self, pid: int) -> None:
        """Keep a process's files open, if there is room."""
        for name in self._name_files(pid):
            if len(self._files) < _FILES_KEPT:
                file = open_first(f"{self._folder.path}/{name.decode()}")
                if file is not None:
                    self._files[name] = file

    def drop(self, pid: int) -> None:
        """Close the files of a process that ended."""
        for name in self._name_files(pid):
            if name in self._files:
                self._files.pop(name).close()

    def refresh(self, process: Process) -> bool:
        """Bring a process up to date and return whether it still exists."""
        pid, usage = process.pid, process.usage
        try:
            clock = None if self._clock is None else self._clock(pid)
            if (
                self._clock is not None
                and clock is not None
                and not 0.0 <= clock - process.clock_sec <= self._plausible_sec
                and not self._is_true(self._clock, pid)
            ):
                self._clock = clock = None
        except OSError:
            clock = None
        process.children_before_sec = process.children_sec
        # Only a process that runs can use CPU, move bytes, get memory or wait for a child.
        process.moved = clock is None or clock != process.clock_sec
        if not process.moved:
            return True
        ended = None
        if clock is not None and pid == self._own_pid:
            # `stat` of this process costs as much as everything that is asked here.
            own = clock - self._find_cost_sec(clock)
            pages = (self._read(b"%d/statm" % pid) or b"").split(None, 2)
            if len(pages) > 1:
                process.rss_bytes = int(pages[1]) * self._page
            process.children_sec, share = read_reaped_and_share()
            system = share * (own + process.children_sec)
        else:
            fields = self._read_stat(pid)
            if fields is None or int(fields[19]) != process.started:
                return False
            own = self._own_sec(fields) if clock is None else clock
            if pid == self._own_pid == os.getpid():
                own -= self._find_cost_sec(own)
            process.parent, process.threads = int(fields[1]), int(fields[17])
            process.faults = int(fields[7])
            process.may_borrow = process.may_borrow and bool(int(fields[6]) & FORKED)
            process.rss_bytes = max(0, int(fields[21])) * self._page
            process.children_sec = self._find_children_sec(pid, fields)
            system = (int(fields[12]) + int(fields[14])) * self._tick
            ended = self.find_ended_child(pid) if fields[0] == b"Z" else None
        process.clock_sec = -1.0 if clock is None else clock
        used = own + process.children_sec if ended is None else ended.cpu_sec
        system = min(used, system if ended is None else ended.system_sec)
        ours = own_moved() if pid == self._own_pid == os.getpid() else MOVED_NOTHING
        found = _IO.search(self._read(b"%d/io" % pid) or b"")
        if found:
            got, put, reads, writes, read, written = map(
                operator.sub, map(int, found.groups()), ours
            )
            process.usage = Usage(used, system, read, written, reads, writes, got + put)
        else:
            process.usage = replace(usage, cpu_sec=used, system_sec=system)
        return True

    def _find_children_sec(self, pid: int, fields: list[bytes]) -> float:
        if pid == self._own_pid == os.getpid():
            return read_reaped_sec()
        return (int(fields[13]) + int(fields[14])) * self._tick

    def thread_ids(self, pid: int) -> set[int]:
        """Return the ids of a process's threads; empty when it has ended."""
        return self._folder.list_numbers(b"%d/task" % pid)

    def is_own_thread(self, pid: int, thread: int) -> bool:
        """Return whether a thread of any process is one of ours, by its name."""
        name = self._folder.read(b"%d/task/%d/comm" % (pid, thread))
        return name is not None and name.rstrip() == KERNEL_NAME

    def read_schedule(self, pid: int, thread: int) -> tuple[int, int] | None:
        """Return how long a thread ran and how long it waited for a CPU, in ns; None if unknown."""
        words = (self._read(b"%d/task/%d/schedstat" % (pid, thread)) or b"").split()
        return (int(words[0]), int(words[1])) if len(words) > 1 else None

    def is_runnable(self, pid: int, thread: int) -> bool:
        """Return whether a thread of a process runs or waits for a CPU."""
        return self._read_state(pid, thread) == b"R"

    def is_blocked(self, pid: int, thread: int) -> bool:
        """Return whether a thread of a process waits for a disk, or is blocked otherwise."""
        return self._read_state(pid, thread) == b"D"

    def _read_state(self, pid: int, thread: int) -> bytes:
        if thread == pid:  # the file of the process, which is open, has the state of this one
            data = self._read(b"%d/stat" % pid) or b""
        else:
            data = self._folder.read(b"%d/task/%d/stat" % (pid, thread)) or b""
        state = data.rfind(b")") + 2
        return data[state : state + 1]

    def find_cpus(self, thread: int) -> frozenset[int]:
        """Return the numbers of the CPUs on which a thread may run; none where that is unknown."""
        if self._own_pid is None or self._own_pid != os.getpid():
            return frozenset()
        try:
            return frozenset(os.sched_getaffinity(thread))
        except (AttributeError, OSError):
            return frozenset()

    def children_sec(self, pid: int) -> float | None:
        """Return the CPU time of a process's reaped children as it is now."""
        fields = self._read_stat(pid)
        return None if fields is None else self._find_children_sec(pid, fields)

    def find_ended_child(self, pid: int) -> EndedChild | None:
        """Return the account of an ended child of this process that has not been waited for."""
        return find_ended_child(pid) if self._own_pid == os.getpid() else None

    def is_copy(self, pid: int) -> bool:
        """Return whether a process is a fork of this process that still runs the same program."""
        own = self._own_pid
        if own is None or own != os.getpid():
            return False
        layout = read_layout(self._folder, pid)
        return len(layout) == 10 and layout == read_layout(self._folder, own)

    def is_fork(self, pid: int, parent: int) -> bool:
        """Return whether a process still runs the program of its parent, with its memory."""
        layout = read_layout(self._folder, pid)
        # The kernel hides the addresses of other people's processes: their arguments are at 0.
        known = len(layout) == 10 and layout[6] != b"0"
        return known and layout == read_layout(self._folder, parent)

    def uses_memory_of(self, pid: int, parent: int) -> bool:
        """Return whether a process has no memory but its parent's (`vfork`)."""
        return uses_memory_of(self._folder, pid, parent)

    def peak_bytes(self, pid: int) -> int:
        """Return the kernel's record of a process's peak memory; 0 if unknown."""
        if pid == self._own_pid and self._has_own_account:
            return read_own_peak()
        found = _PEAK.search(self._read(b"%d/status" % pid) or b"")
        return int(found[1]) * 1024 if found else 0

    def own_peak_bytes(self) -> int:
        """Return the peak memory of this process; 0 where it is not in this procfs."""
        return 0 if self._own_pid is None else self.peak_bytes(self._own_pid)

    def read_resident(self, pid: int) -> tuple[int, int]:
        """Return a process's resident bytes, and those of files and shared memory; 0 if ended."""
        pages = (self._read(b"%d/statm" % pid) or b"").split(None, 3)
        if len(pages) < 3:
            return 0, 0
        return int(pages[1]) * self._page, int(pages[2]) * self._page

    def fault_bytes(self, process: Process) -> int:
        """Return the most memory that a process can have got from page faults since its start."""
        is_own = process.pid == self._own_pid == os.getpid()
        return (read_own_faults() if is_own else process.faults) * self._page

    def read_shares(self, pid: int) -> Shares | None:
        """Return what of a process's memory is its own, and its share of the rest; None if unknown.

        The kernel walks the whole process for this, so the GIL is released meanwhile.
        """
        return Shares.parse(read_text(f"{self._folder.path}/{pid}/smaps_rollup") or "")

    def close(self) -> None:
        """Close procfs."""
        self._folder.close()
        for file in (self._newest, *self._files.values()):
            if file is not None:
                file.close()
        self._files.clear()
