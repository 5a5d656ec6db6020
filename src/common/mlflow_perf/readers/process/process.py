"""One process as procfs shows it. Imports ended and procfile."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from mlflow_perf.errors import SourceUnavailableError
from mlflow_perf.readers.process.reaped import EndedChild, ended_child, reaped_sec
from mlflow_perf.readers.procfile import ProcFile, ProcFolder, is_childless, read_text

__all__ = ["CpuClock", "Process", "ProcessTable", "Usage", "cpu_clock_sec"]

CpuClock = Callable[[int], float]
"""From a process's number to the CPU time that it used itself, in seconds."""

_READ_BYTES = re.compile(rb"\nread_bytes: (\d+)\nwrite_bytes: (\d+)")
_PROPORTIONAL = re.compile(r"\nPss:\s*(\d+) kB")
_PEAK = re.compile(rb"\nVmHWM:\s*(\d+) kB")
# A job has 1,024 descriptors at the least; these are of its own limit.
_FILES_KEPT = 48


def cpu_clock_sec(pid: int) -> float:
    """Return the CPU time of a process, threads that ended included, to the nanosecond.

    Raises:
        OSError: When there is no such process.
    """
    # The kernel's encoding of a process's clock (clock_getcpuclockid); `stat` has only 10 ms steps.
    return time.clock_gettime((~pid << 3) | 2)


@dataclass(slots=True)
class Usage:
    """What a process used, its children that ended and were waited for included.

    Attributes:
        cpu_sec: CPU time.
        read_bytes: Fetched from disks.
        write_bytes: Sent to disks.
    """

    cpu_sec: float = 0.0
    read_bytes: int = 0
    write_bytes: int = 0

    def add(self, other: Usage) -> None:
        """Add another one's figures to this."""
        self.cpu_sec += other.cpu_sec
        self.read_bytes += other.read_bytes
        self.write_bytes += other.write_bytes


@dataclass(slots=True)
class Process:
    """A process at its newest reading.

    Attributes:
        pid: Its number.
        started: When it started, in the kernel's ticks: tells it from a later one of that number.
        parent: Number of its parent, at the newest reading.
        usage: What it and its ended children used.
        children_sec: CPU time of its ended children, a part of `usage`.
        rss_bytes: Its resident memory.
        clock_sec: Its own CPU time; what did not move since has nothing new to tell.
        children_before_sec: `children_sec` at the reading before.
        moved: Whether it did anything since the reading before.
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


class ProcessTable:
    """Reads processes from procfs.

    Args:
        proc: Where procfs is mounted.
        ticks_per_sec: The kernel's clock ticks in a second.
        page_bytes: Size of a page.
        cpu_clock: Finer clock of a process's CPU time than `stat`; None for none.

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
        self._clock = cpu_clock
        self._newest = _kept(f"{proc}/loadavg")
        # A member's files are kept open as long as they are few: opening costs as much as reading.
        self._files: dict[bytes, ProcFile] = {}
        self._own_pid = _own_pid(proc)
        # In a mount of another PID namespace, the numbers here are not those of the clocks.
        if self._own_pid != os.getpid() or not self._clock_works():
            self._clock = None

    def _clock_works(self) -> bool:
        try:
            return self._clock is not None and self._clock(os.getpid()) >= 0
        except (OSError, OverflowError):
            return False

    @property
    def own_pid(self) -> int | None:
        """This process's number in this procfs; None where it is not in it."""
        return self._own_pid

    @property
    def tick_sec(self) -> float:
        """The resolution of the times in `stat`."""
        return self._tick

    def pids(self) -> set[int]:
        """Return the numbers of all processes."""
        return self._folder.pids()

    def is_childless(self, pid: int) -> bool:
        """Return whether a process surely has no child; false where that cannot be told."""
        return pid == self._own_pid == os.getpid() and is_childless()

    def newest(self) -> bytes | None:
        """Return what changes whenever a process or thread is created; None where nothing does."""
        return None if self._newest is None else self._newest.read().rpartition(b" ")[2]

    def find(self, pid: int) -> Process | None:
        """Return a process that was not known before; None when it has ended."""
        fields = self._stat(pid)
        return None if fields is None else Process(pid, int(fields[19]), int(fields[1]))

    def _read(self, name: bytes) -> bytes | None:
        file = self._files.get(name)
        if file is None:
            return self._folder.read(name)
        try:
            return file.read()
        except OSError:  # it has ended; the number may be another's by now
            self._files.pop(name).close()
            return self._folder.read(name)

    def keep(self, pid: int) -> None:
        """Keep a process's files open, if there is room."""
        for name in _names(pid, own=pid == self._own_pid):
            file = _kept(f"{self._folder.path}/{name.decode()}")
            if file is not None and len(self._files) < _FILES_KEPT:
                self._files[name] = file
            elif file is not None:
                file.close()

    def drop(self, pid: int) -> None:
        """Close the files of a process that ended."""
        for name in _names(pid, own=pid == self._own_pid):
            if name in self._files:
                self._files.pop(name).close()

    def _stat(self, pid: int) -> list[bytes] | None:
        data = self._read(b"%d/stat" % pid)
        # The name, in brackets, may hold blanks and brackets; field 0 is the one after it.
        fields = [] if data is None else data[data.rfind(b")") + 2 :].split(None, 22)
        return fields if len(fields) > 21 else None

    def refresh(self, process: Process) -> bool:
        """Bring a process up to date and return whether it still exists."""
        clock = self._clock_of(process.pid)
        process.children_before_sec = process.children_sec
        # Only what runs can use CPU, move bytes, get memory or wait for a child.
        process.moved = clock is None or clock != process.clock_sec
        if not process.moved:
            return True
        if clock is not None and process.pid == self._own_pid:
            return self._refresh_own(process, clock)
        fields = self._stat(process.pid)
        if fields is None or int(fields[19]) != process.started:
            return False
        process.parent = int(fields[1])
        process.rss_bytes = max(0, int(fields[21])) * self._page
        process.children_sec = self._children_sec(process.pid, fields)
        own = (int(fields[11]) + int(fields[12])) * self._tick if clock is None else clock
        process.clock_sec = -1.0 if clock is None else clock
        read, written = self._io(process.pid) or (
            process.usage.read_bytes, process.usage.write_bytes
        )  # fmt: skip
        ended = self.ended_child(process.pid) if fields[0] == b"Z" else None
        used = own + process.children_sec if ended is None else ended.cpu_sec
        process.usage = Usage(used, read, written)
        return True

    def _refresh_own(self, process: Process, clock: float) -> bool:
        """Bring this very process up to date: `stat` costs as much as all that is asked here."""
        pages = (self._read(b"%d/statm" % process.pid) or b"").split(None, 2)
        if len(pages) > 1:
            process.rss_bytes = int(pages[1]) * self._page
        process.children_sec, process.clock_sec = reaped_sec(), clock
        read, written = self._io(process.pid) or (0, 0)
        process.usage = Usage(clock + process.children_sec, read, written)
        return True

    def _clock_of(self, pid: int) -> float | None:
        try:
            return None if self._clock is None else self._clock(pid)
        except OSError:
            return None

    def _children_sec(self, pid: int, fields: list[bytes]) -> float:
        if pid == self._own_pid == os.getpid():
            return reaped_sec()
        return (int(fields[13]) + int(fields[14])) * self._tick

    def children_sec(self, pid: int) -> float | None:
        """Return the CPU time of a process's ended children as it is now."""
        fields = self._stat(pid)
        return None if fields is None else self._children_sec(pid, fields)

    def _io(self, pid: int) -> tuple[int, int] | None:
        found = _READ_BYTES.search(self._read(b"%d/io" % pid) or b"")
        return (int(found[1]), int(found[2])) if found else None

    def ended_child(self, pid: int) -> EndedChild | None:
        """Return the account of an ended child of this process that nobody waited for yet."""
        return ended_child(pid) if self._own_pid == os.getpid() else None

    def is_copy(self, pid: int) -> bool:
        """Return whether a process is a fork of this one that became no other program yet."""
        if self._own_pid != os.getpid():
            return False
        own, other = self._layout(self._own_pid), self._layout(pid)
        return own is not None and own == other

    def _layout(self, pid: int) -> list[bytes] | None:
        data = self._folder.read(b"%d/stat" % pid)
        fields = [] if data is None else data[data.rfind(b")") + 2 :].split()
        # Where its program, stack, arguments and environment lie: a fork's are its parent's.
        return [*fields[23:26], *fields[42:49]] if len(fields) > 48 else None

    def peak_bytes(self, pid: int) -> int:
        """Return the most memory that a process ever had, as the kernel keeps it; 0 if unknown."""
        found = _PEAK.search(self._read(b"%d/status" % pid) or b"")
        return int(found[1]) * 1024 if found else 0

    def own_peak_bytes(self) -> int:
        """Return the most memory that this process ever had; 0 where it is not in this procfs."""
        return 0 if self._own_pid is None else self.peak_bytes(self._own_pid)

    def proportional_bytes(self, pid: int) -> int | None:
        """Return a process's memory, what it shares divided by how many share it; None if unknown.

        The kernel walks the whole process for this, so other threads may run meanwhile.
        """
        found = _PROPORTIONAL.search(read_text(f"{self._folder.path}/{pid}/smaps_rollup") or "")
        return int(found[1]) * 1024 if found else None

    def close(self) -> None:
        """Close procfs."""
        self._folder.close()
        for file in (self._newest, *self._files.values()):
            if file is not None:
                file.close()
        self._files.clear()


def _names(pid: int, *, own: bool) -> tuple[bytes, ...]:
    first = b"%d/statm" if own else b"%d/stat"
    return first % pid, b"%d/io" % pid, b"%d/status" % pid


def _kept(path: str) -> ProcFile | None:
    try:
        return ProcFile(path)
    except SourceUnavailableError:
        return None


def _own_pid(proc: Path | str) -> int | None:
    try:
        return int(Path(proc, "self").readlink().name)
    except (OSError, ValueError):
        return None
