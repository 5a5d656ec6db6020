"""The job's processes through psutil: the path where there is no procfs. Imports the column table.

The only module that imports psutil for the job's own figures. It knows of ended children what it
last saw of them: one that lives between two reads alone is missed where the platform does not add
it to its parent.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import psutil as _psutil

from mlflow_perf.errors import SourceUnavailableError
from mlflow_perf.model.columns import JOB_COLUMNS
from mlflow_perf.records import MB, Column

__all__ = ["PsutilProcessTreeReader"]


class _Known:
    """A process of the tree: kept, as psutil tells a number given again by it, at its newest."""

    def __init__(self, process: Any) -> None:
        self.process = process
        self.has_ended = False
        self.own_sec = self.children_sec = 0.0
        self.read_bytes = self.write_bytes = self.rss_bytes = self.peak_bytes = 0


class PsutilProcessTreeReader:
    """CPU time, memory and disk IO of a process and its descendants, since this reader was made.

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
        try:
            self._root = psutil.Process(root_pid or os.getpid())
        except psutil.Error as error:
            raise SourceUnavailableError(f"Process {root_pid} cannot be read.") from error
        # A command that this process started is the job from its first instruction on.
        whole = root_pid is not None and self._root.ppid() == os.getpid()
        self._known: dict[Any, _Known] = {}
        self._ended = _Known(None)
        self._peak = 0
        self._follow()
        self._base = (0.0, 0, 0) if whole else self._sum()
        self._total = (0.0, 0, 0)
        self._was_read = not whole
        self._at, self._cpu_at = clock(), 0.0
        self._peaks_before = {} if whole else {p: k.peak_bytes for p, k in self._known.items()}

    def _follow(self) -> None:
        try:
            processes = [self._root, *self._root.children(recursive=True)]
        except self._psutil.Error:
            processes = []
        present = {*processes, *self._known}
        for process in present:
            known = self._known.setdefault(process, _Known(process))
            if not self._refresh(known):
                self._end(self._known.pop(process))

    def _refresh(self, known: _Known) -> bool:
        process = known.process
        try:
            with process.oneshot():
                if process.status() == self._psutil.STATUS_ZOMBIE:
                    known.rss_bytes, known.has_ended = 0, True
                    return bool(process.is_running())
                times, memory = process.cpu_times(), process.memory_info()
        except self._psutil.NoSuchProcess:
            return False
        except (self._psutil.Error, OSError):  # forbidden: what was seen of it stands
            return True
        known.own_sec = times.user + times.system
        known.children_sec = getattr(times, "children_user", 0.0) + getattr(
            times, "children_system", 0.0
        )
        known.rss_bytes = memory.rss
        # Windows keeps a peak.
        known.peak_bytes = max(known.peak_bytes, getattr(memory, "peak_wset", memory.rss))
        self._refresh_io(known)
        return True

    def _refresh_io(self, known: _Known) -> None:
        try:
            io = known.process.io_counters()
        except (AttributeError, self._psutil.Error, OSError):  # macOS has none
            return
        known.read_bytes, known.write_bytes = io.read_bytes, io.write_bytes

    def _end(self, known: _Known) -> None:
        """Keep what an ended process used; its CPU time is its parent's where that counts it."""
        self._ended.read_bytes += known.read_bytes
        self._ended.write_bytes += known.write_bytes
        self._ended.own_sec += known.own_sec + known.children_sec

    def _sum(self) -> tuple[float, int, int]:
        everyone = [*self._known.values(), self._ended]
        # Where the platform adds ended children to their parent, they are in that, not here.
        ended = max(self._ended.own_sec, sum(known.children_sec for known in everyone))
        cpu = ended + sum(known.own_sec for known in self._known.values())
        return (
            cpu, sum(known.read_bytes for known in everyone),
            sum(known.write_bytes for known in everyone),
        )  # fmt: skip

    def read(self, report: dict[str, float]) -> None:
        """Put what the tree used since this reader was made, and its memory, into the report."""
        self._follow()
        now, base, before = self._sum(), self._base, self._total
        self._total = (
            max(before[0], now[0] - base[0]),
            max(before[1], now[1] - base[1]),
            max(before[2], now[2] - base[2]),
        )
        # The sampler takes the first reading for zero: what a command used by then comes next.
        cpu_sec, read_bytes, write_bytes = self._total if self._was_read else (0.0, 0, 0)
        self._was_read = True
        report["job_cpu_sec"] = cpu_sec
        report["job_io_read_mb"] = read_bytes / MB
        report["job_io_write_mb"] = write_bytes / MB
        self._read_cores(report, cpu_sec)
        report["job_processes"] = float(sum(not p.has_ended for p in self._known.values()))
        self._read_memory(report)

    def _read_cores(self, report: dict[str, float], cpu_sec: float) -> None:
        now = self._clock()
        if now > self._at:
            cores = max(0.0, cpu_sec - self._cpu_at) / (now - self._at)
            report["job_cpu_cores"] = min(float(os.cpu_count() or 1), cores)
        self._at, self._cpu_at = now, cpu_sec

    def _read_memory(self, report: dict[str, float]) -> None:
        together = sum(known.rss_bytes for known in self._known.values())
        report["job_mem_mb"] = together / MB
        for process, known in self._known.items():
            if known.peak_bytes > self._peaks_before.get(process, 0):
                self._peak = max(self._peak, known.peak_bytes)
        if self._peak:
            report["job_mem_peak_mb"] = self._peak / MB

    def close(self) -> None:
        """Do nothing: psutil keeps no descriptor."""
