"""The counters of the job's control group: throttling, memory against the limit, OOM kills."""

from __future__ import annotations

import re
from collections.abc import Sequence

from mlflow_perf.errors import SourceUnavailableError
from mlflow_perf.model.columns import CGROUP_COLUMNS
from mlflow_perf.readers.cgroup.groups import CpuQuota, Group, find_memory_limit
from mlflow_perf.readers.procfile import ProcFile, open_first, read_text
from mlflow_perf.records import MB, Column

_USAGE = re.compile(rb"usage_usec (\d+)")
_PERIODS_THROTTLED = re.compile(rb"nr_throttled (\d+)")
_THROTTLED = {2: re.compile(rb"throttled_usec (\d+)"), 1: re.compile(rb"throttled_time (\d+)")}
_THROTTLED_UNIT_SEC = {2: 1e-6, 1: 1e-9}
_INACTIVE = {
    2: re.compile(rb"\ninactive_file (\d+)"),
    1: re.compile(rb"\ntotal_inactive_file (\d+)"),
}
_ACTIVE = {2: re.compile(rb"\nactive_file (\d+)"), 1: re.compile(rb"\ntotal_active_file (\d+)")}
_TMPFS = {2: re.compile(rb"\nshmem (\d+)"), 1: re.compile(rb"\ntotal_shmem (\d+)")}
_OOM_KILLS = re.compile(rb"(?:^|\n)oom_kill (\d+)")


def _find(pattern: re.Pattern[bytes], data: bytes) -> int | None:
    found = pattern.search(data)
    return int(found[1]) if found else None


def _read_number(file: ProcFile | None, pattern: re.Pattern[bytes]) -> int | None:
    return None if file is None else _find(pattern, file.read())


class CgroupCpuTime:
    """The CPU time of everything that runs, or ran, in a control group.

    Args:
        group: The group of the controller that counts CPU time.

    Raises:
        SourceUnavailableError: When the group counts none.
    """

    def __init__(self, group: Group) -> None:
        name = "cpu.stat" if group.version == 2 else "cpuacct.usage"
        self._file = ProcFile(group.folder / name)
        self._version = group.version
        if self.seconds() is None:
            raise SourceUnavailableError(f"{self._file.path} shows no CPU time.")

    def seconds(self) -> float | None:
        """Return the CPU time in seconds."""
        if self._version == 2:
            used_us = _read_number(self._file, _USAGE)
            return None if used_us is None else used_us / 1e6
        text = self._file.read().strip()
        return int(text) / 1e9 if text.isdigit() else None

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class _Throttling:
    """The time during which a quota held the group back, never more than the time that passed."""

    def __init__(self, quota: CpuQuota, version: int) -> None:
        self._file = open_first(quota.folder / "cpu.stat")
        self._period_sec, self._version = quota.period_sec, version
        self._before = self._read_seconds()
        self._seconds = 0.0

    def _read_seconds(self) -> tuple[float, float] | None:
        """Return the throttled periods and the throttled time, both in seconds."""
        data = b"" if self._file is None else self._file.read()
        periods = _PERIODS_THROTTLED.search(data)
        time = _THROTTLED[self._version].search(data)
        if periods is None or time is None:
            return None
        return int(periods[1]) * self._period_sec, int(time[1]) * _THROTTLED_UNIT_SEC[self._version]

    def read(self, report: dict[str, float]) -> None:
        now, before = self._read_seconds(), self._before
        if now is None or before is None:
            return
        # The kernel sums the throttled time over the CPUs, so it may count one second several
        # times; the periods in which some CPU was throttled bound it.
        self._seconds += max(0.0, min(now[0] - before[0], now[1] - before[1]))
        self._before = now
        report["cpu_throttled_sec"] = self._seconds

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


class _Memory:
    """The memory of the group that has the limit, else of the job's own group."""

    def __init__(self, group: Group) -> None:
        limit = find_memory_limit(group)
        folder = group.folder if limit is None else limit.folder
        self._limit = None if limit is None else limit.limit_bytes
        self._inactive, self._active = _INACTIVE[group.version], _ACTIVE[group.version]
        self._tmpfs = _TMPFS[group.version]
        self._usage = open_first(folder / "memory.current", folder / "memory.usage_in_bytes")
        self._stat = open_first(folder / "memory.stat")
        self._events = open_first(folder / "memory.events", folder / "memory.oom_control")
        # The first version counts a kill in the group of the killed process only: Slurm's task.
        self._tasks = group.folder if group.version == 1 and "slurm" in group.path else None
        self._kills_of_task: dict[str, int] = {}
        self._tmpfs_before = _read_number(self._stat, self._tmpfs)

    def read(self, report: dict[str, float]) -> None:
        if self._usage is not None:
            stat = b"" if self._stat is None else self._stat.read()
            used = int(self._usage.read()) - (_find(self._inactive, stat) or 0)
            report["cgroup_mem_mb"] = max(0, used) / MB
            if self._limit:
                report["cgroup_mem_percent"] = min(100.0, 100.0 * max(0, used) / self._limit)
                held, tmpfs = used - (_find(self._active, stat) or 0), _find(self._tmpfs, stat)
                report["cgroup_held_mb"] = max(0, held) / MB
                if tmpfs is not None and self._tmpfs_before is not None:
                    report["cgroup_tmpfs_mb"] = max(0, tmpfs - self._tmpfs_before) / MB
        kills = _read_number(self._events, _OOM_KILLS)
        if self._tasks is not None:
            for file in self._tasks.glob("task_*/memory.oom_control"):
                found = _OOM_KILLS.search((read_text(file) or "").encode())
                if found is not None:
                    self._kills_of_task[file.parent.name] = int(found[1])
        if kills is not None or self._kills_of_task:
            report["oom_kills"] = float((kills or 0) + sum(self._kills_of_task.values()))

    def close(self) -> None:
        for file in (self._usage, self._stat, self._events):
            if file is not None:
                file.close()


class CgroupReader:
    """Throttling, memory and OOM kills of the job's control group.

    Memory is the part that the kernel cannot reclaim at once: page cache that was not used lately
    does not count, as in Kubernetes.

    Args:
        cpu: The group of the CPU controller, for its version.
        memory: The group of the memory controller.
        quota: The quota that limits the job; None without one.

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
        self._parts: list[_Memory | _Throttling] = []
        if memory is not None and (memory.is_of_a_job or find_memory_limit(memory) is not None):
            self._parts.append(_Memory(memory))
        if cpu is not None and quota is not None:
            self._parts.append(_Throttling(quota, cpu.version))
        if not self._parts:
            raise SourceUnavailableError("The job has no control group of its own.")

    def read(self, report: dict[str, float]) -> None:
        """Put the group's values into the report."""
        for part in self._parts:
            part.read(report)

    def close(self) -> None:
        """Close the group's files."""
        for part in self._parts:
            part.close()
