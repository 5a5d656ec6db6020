"""What the job's control group counts: throttling, memory against the limit, OOM kills.

Imports cgroups, procfile and the column table.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from mlflow_perf.errors import SourceUnavailableError
from mlflow_perf.model.columns import CGROUP_COLUMNS
from mlflow_perf.readers.cgroup.groups import CpuQuota, Group, memory_limit
from mlflow_perf.readers.procfile import ProcFile
from mlflow_perf.records import MB, Column

__all__ = ["CgroupCpuTime", "CgroupReader"]

_NS = 1e-9


def _open(folder: Path, *names: str) -> ProcFile | None:
    for name in names:
        try:
            return ProcFile(folder / name)
        except SourceUnavailableError:
            continue
    return None


def _counter(file: ProcFile | None, pattern: re.Pattern[bytes]) -> int | None:
    found = None if file is None else pattern.search(file.read())
    return int(found[1]) if found else None


_USAGE = re.compile(rb"usage_usec (\d+)")


class CgroupCpuTime:
    """The CPU time of all that runs, or ran, in a control group.

    Args:
        group: The group, of the controller that counts CPU time.

    Raises:
        SourceUnavailableError: When the group counts none.
    """

    def __init__(self, group: Group) -> None:
        name = "cpu.stat" if group.version == 2 else "cpuacct.usage"
        self._file = ProcFile(group.folder / name)
        self._second = group.version == 2
        if self.seconds() is None:
            raise SourceUnavailableError(f"{self._file.path} tells no CPU time.")

    def seconds(self) -> float | None:
        """Return the CPU time in seconds."""
        if self._second:
            used_us = _counter(self._file, _USAGE)
            return None if used_us is None else used_us / 1e6
        text = self._file.read().strip()
        return int(text) * _NS if text.isdigit() else None

    def close(self) -> None:
        """Close the file."""
        self._file.close()


_PERIODS_THROTTLED = re.compile(rb"nr_throttled (\d+)")
_THROTTLED = {2: re.compile(rb"throttled_usec (\d+)"), 1: re.compile(rb"throttled_time (\d+)")}
_THROTTLED_UNIT_SEC = {2: 1e-6, 1: _NS}


class _Throttling:
    """Time in which a quota held the group back, never more than really passed."""

    def __init__(self, quota: CpuQuota, version: int) -> None:
        self._file = _open(quota.folder, "cpu.stat")
        self._period_sec = quota.period_sec
        self._pattern, self._unit_sec = _THROTTLED[version], _THROTTLED_UNIT_SEC[version]
        self._before = self._counters()
        self._seconds = 0.0

    def _counters(self) -> tuple[float, float] | None:
        data = b"" if self._file is None else self._file.read()
        periods, time = _PERIODS_THROTTLED.search(data), self._pattern.search(data)
        if periods is None or time is None:
            return None
        return int(periods[1]) * self._period_sec, int(time[1]) * self._unit_sec

    def seconds(self) -> float | None:
        """Return the time since this was made; None where the kernel does not tell."""
        now, before = self._counters(), self._before
        if now is None or before is None:
            return None
        # The kernel sums the time over the CPUs, and so may count a second several times; a
        # period in which some CPU was throttled counts at most whole.
        self._seconds += max(0.0, min(now[0] - before[0], now[1] - before[1]))
        self._before = now
        return self._seconds

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


_OOM_KILLS = re.compile(rb"(?:^|\n)oom_kill (\d+)")
_INACTIVE = {
    2: re.compile(rb"\ninactive_file (\d+)"),
    1: re.compile(rb"\ntotal_inactive_file (\d+)"),
}


class _Memory:
    """Memory of the group that has the limit, else of the job's own group."""

    def __init__(self, group: Group) -> None:
        limit = memory_limit(group)
        folder = group.folder if limit is None else limit[1]
        self._limit = None if limit is None else limit[0]
        self._inactive = _INACTIVE[group.version]
        self._usage = _open(folder, "memory.current", "memory.usage_in_bytes")
        self._stat = _open(folder, "memory.stat")
        self._events = _open(folder, "memory.events", "memory.oom_control")

    def read(self, report: dict[str, float]) -> None:
        if self._usage is not None:
            used = int(self._usage.read()) - (_counter(self._stat, self._inactive) or 0)
            report["cgroup_mem_mb"] = max(0, used) / MB
            if self._limit:
                report["cgroup_mem_percent"] = min(100.0, 100.0 * max(0, used) / self._limit)
        kills = _counter(self._events, _OOM_KILLS)
        if kills is not None:
            report["oom_kills"] = float(kills)

    def close(self) -> None:
        for file in (self._usage, self._stat, self._events):
            if file is not None:
                file.close()


class CgroupReader:
    """Throttling, memory and OOM kills of the job's control group.

    Memory is what the kernel could not take back at once: page cache that nobody used lately does
    not count, as in Kubernetes.

    Args:
        cpu: The group of the CPU controller, for its version.
        memory: The group of the memory controller.
        quota: The quota that holds for the job; None without one.

    Raises:
        SourceUnavailableError: When the job has neither a quota nor a memory group of its own.
    """

    name = "cgroup"
    columns: Sequence[Column] = CGROUP_COLUMNS

    def __init__(
        self,
        *,
        cpu: Group | None = None,
        memory: Group | None = None,
        quota: CpuQuota | None = None,
    ) -> None:
        self._throttling = self._memory = None
        if cpu is not None and quota is not None:
            self._throttling = _Throttling(quota, cpu.version)
        if memory is not None and (memory.is_of_a_job or memory_limit(memory) is not None):
            self._memory = _Memory(memory)
        if self._throttling is None and self._memory is None:
            raise SourceUnavailableError("The job has no control group of its own.")

    def read(self, report: dict[str, float]) -> None:
        """Put the group's figures into the report."""
        if self._memory is not None:
            self._memory.read(report)
        if self._throttling is not None:
            seconds = self._throttling.seconds()
            if seconds is not None:
                report["cpu_throttled_sec"] = seconds

    def close(self) -> None:
        """Close the group's files."""
        for part in (self._memory, self._throttling):
            if part is not None:
                part.close()
