"""The job's processes through psutil, for platforms without procfs.

An ended child keeps its last values. A child that lived between two reads is missing where the
platform does not add it to its parent.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import psutil as _psutil

from mlflow_perf.errors import SourceUnavailableError
from mlflow_perf.model.columns import JOB_COLUMNS
from mlflow_perf.node.exit_cause import has_own_procfs
from mlflow_perf.readers.process.usage import Usage
from mlflow_perf.records import MB, Column


class _Member:
    """A process of the tree at its newest reading."""

    def __init__(self) -> None:
        self.has_ended = False
        self.usage = Usage()
        self.children_sec = 0.0
        self.rss_bytes = self.peak_bytes = 0


class PsutilProcessTreeReader:
    """CPU time, memory and disk I/O of a process and its descendants, since this reader was made.

    Args:
        root_pid: The process; default: this one.
        psutil: The module, or a recorded stand-in for it.
        clock: Monotonic seconds.

    Raises:
        SourceUnavailableError: When the process cannot be read.
    """

    name = "processes"
    columns: Sequence[Column] = JOB_COLUMNS

    def __init__(
        self,
        root_pid: int | None = None,
        psutil: ModuleType | Any = _psutil,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._psutil, self._clock = psutil, clock
        if psutil is _psutil and not has_own_procfs():
            raise SourceUnavailableError("procfs is that of another PID namespace.")
        root = root_pid or os.getpid()
        try:
            self._root = psutil.Process(root)
            self._root.cpu_times()  # a sandbox may forbid it (Landlock)
        except (psutil.Error, OSError) as error:
            raise SourceUnavailableError(f"Process {root} cannot be read.") from error
        # A command that this process started is the job from its first instruction on.
        # Before that, its memory is a copy of this process's.
        is_command = root_pid is not None and self._root.ppid() == os.getpid()
        # psutil's processes are equal only if PID and start time are.
        self._members: dict[Any, _Member] = {}
        self._ended = Usage()
        self._peak = 0
        self._follow()
        self._base = Usage() if is_command else self._sum()
        self._total = Usage()
        self._was_read = not is_command
        self._at, self._cpu_at = clock(), 0.0
        self._peaks_before = {process: one.peak_bytes for process, one in self._members.items()}

    def _follow(self) -> None:
        """Find new members, update all, and keep the usage of ended members."""
        try:
            processes = [self._root, *self._root.children(recursive=True)]
        except self._psutil.Error:
            processes = []
        for process in {*processes, *self._members}:
            member = self._members.setdefault(process, _Member())
            if not self._refresh(process, member):
                self._ended.add(member.usage)
                self._ended.cpu_sec += member.children_sec
                del self._members[process]

    def _refresh(self, process: Any, member: _Member) -> bool:
        """Bring a member up to date and return whether its process still exists."""
        try:
            with process.oneshot():
                if process.status() == self._psutil.STATUS_ZOMBIE:
                    member.rss_bytes, member.has_ended = 0, True
                    with contextlib.suppress(self._psutil.Error, OSError):  # Linux still knows
                        times = process.cpu_times()
                        member.usage.cpu_sec = max(member.usage.cpu_sec, times.user + times.system)
                    return bool(process.is_running())
                times, memory = process.cpu_times(), process.memory_info()
        except self._psutil.NoSuchProcess:
            return False
        except (self._psutil.Error, OSError):  # forbidden: it keeps its last values
            return True
        member.usage.cpu_sec = times.user + times.system
        children = (getattr(times, f"children_{kind}", 0.0) for kind in ("user", "system"))
        member.children_sec = sum(children)
        member.rss_bytes = memory.rss
        # Windows keeps a peak.
        member.peak_bytes = max(member.peak_bytes, getattr(memory, "peak_wset", memory.rss))
        try:
            io = process.io_counters()
            member.usage.read_bytes, member.usage.write_bytes = io.read_bytes, io.write_bytes
        except (AttributeError, self._psutil.Error, OSError):  # macOS has none
            pass
        return True

    def _sum(self) -> Usage:
        total = Usage()
        total.add(self._ended)
        # Where the platform adds ended children to their parent, that sum includes them already.
        children_sec = sum(member.children_sec for member in self._members.values())
        total.cpu_sec = max(total.cpu_sec, children_sec)
        for member in self._members.values():
            total.add(member.usage)
        return total

    def read(self, report: dict[str, float]) -> None:
        """Put the tree's usage since this reader was made, and its memory, into the report."""
        self._follow()
        self._total.raise_to(self._sum(), since=self._base)
        # The sampler counts from the first reading: for a command, that is its own start.
        shown = self._total if self._was_read else Usage()
        is_copy, self._was_read = not self._was_read, True
        report["job_cpu_sec"] = shown.cpu_sec
        report["job_io_read_mb"] = shown.read_bytes / MB
        report["job_io_write_mb"] = shown.write_bytes / MB
        at = self._clock()
        if at > self._at:
            cores = max(0.0, shown.cpu_sec - self._cpu_at) / (at - self._at)
            report["job_cpu_cores"] = min(float(os.cpu_count() or 1), cores)
        self._at, self._cpu_at = at, shown.cpu_sec
        members = self._members.values()
        report["job_processes"] = float(sum(not member.has_ended for member in members))
        if not is_copy and any(not member.has_ended for member in members):
            report["job_mem_mb"] = sum(member.rss_bytes for member in members) / MB
        for process, member in self._members.items():
            if member.peak_bytes > self._peaks_before.get(process, 0):
                self._peak = max(self._peak, member.peak_bytes)
        if self._peak:
            report["job_mem_peak_mb"] = self._peak / MB

    def close(self) -> None:
        """Do nothing: psutil keeps no descriptor."""
