"""The readers of the job itself, put together from limits, control groups and processes."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path

from mlflow_perf.errors import SourceUnavailableError
from mlflow_perf.model.columns import CGROUP_COLUMNS, CPU_COLUMNS, HOST_CPU_COLUMNS
from mlflow_perf.node.exit_cause import has_own_procfs
from mlflow_perf.readers.base import Reader
from mlflow_perf.readers.cgroup.cgroup import CgroupCpuTime, CgroupReader
from mlflow_perf.readers.cgroup.group_quotas import GroupQuotas
from mlflow_perf.readers.cgroup.groups import Group, Groups
from mlflow_perf.readers.cgroup.limits import LimitsReader, Owned, owned
from mlflow_perf.readers.cgroup.pressure import PressureReader
from mlflow_perf.readers.cgroup.rebuilt import CurrentLimits, RebuiltReader
from mlflow_perf.readers.cpu.cpu import CpuReader
from mlflow_perf.readers.cpu.cpu_share import CpuShareReader, CpuTime
from mlflow_perf.readers.process.process import ProcessTable
from mlflow_perf.readers.process.tree import ProcessTreeReader


class JobSources:
    """Makes the readers of one job.

    Args:
        root_pid: The job's first process; the job is that process and its descendants. Default:
            this process.
        proc: Where procfs is mounted.
        root: Where the mount points of `mountinfo` start.
        environ: Environment variables, for the scheduler's allocation.
        cpus: Numbers of the CPUs that the job may run on; default: the process's affinity.
        clock: Monotonic seconds.
        ranks: Returns further first processes of the job, as for `ProcessTreeReader`.
        mark: The variable that the job's processes were given, likewise.
    """

    def __init__(
        self,
        root_pid: int | None = None,
        *,
        proc: Path | str = "/proc",
        root: Path | str = "/",
        environ: Mapping[str, str] = os.environ,
        cpus: frozenset[int] | None = None,
        clock: Callable[[], float] = time.monotonic,
        ranks: Callable[[], Mapping[int, float | None]] = dict,
        mark: str = "",
    ) -> None:
        self._pid, self._clock = root_pid, clock
        self._proc, self._root = proc, root
        self._environ, self._cpus = environ, cpus
        self._ranks, self._mark = ranks, mark
        self._processes: ProcessTreeReader | None = None

    @cached_property
    def limits(self) -> CurrentLimits:
        """The job's limits, looked up again now and then."""
        groups, environ = self._groups, self._environ
        return CurrentLimits(
            lambda: owned(
                self._pid, proc=self._proc, groups=groups, environ=environ, cpus=self._cpus
            ),
            clock=self._clock,
        )

    @cached_property
    def _groups(self) -> Groups:
        who = self._pid if self._pid and has_own_procfs(self._proc) else "self"
        return Groups(who, proc=self._proc, root=self._root)

    def _find_step_group(self, controller: str) -> Group | None:
        group = self._groups.find(controller)
        return None if group is None else group.find_step()

    def cpu(self) -> Reader:
        """Return the reader of the CPUs that the job owns.

        Raises:
            SourceUnavailableError: When there is no `/proc/stat`.
        """

        def make(limits: Owned) -> Reader:
            host = CpuReader(self._proc)
            mine, host_too = host, None
            if limits.cpus is not None and len(limits.cpus) < host.count:
                mine, host_too = CpuReader(self._proc, cpus=limits.cpus), host
            if limits.pooled:
                cpu_time = self.find_cpu_time(limits)
                return CpuShareReader(
                    mine, host_too, cores=limits.cores, used=cpu_time, clock=self._clock
                )
            return mine if host_too is None else CpuShareReader(mine, host_too)

        return RebuiltReader(make, self.limits, (*CPU_COLUMNS, *HOST_CPU_COLUMNS))

    def find_cpu_time(self, limits: Owned) -> CpuTime:
        """Return the counter of the job's CPU time: its control group's, else its processes'.

        Args:
            limits: The job's limits. Under a quota, all that runs in the quota's group counts.
        """
        group = self._find_step_group("cpuacct")
        if group is None or group.is_root:
            return self.tree()
        quota = limits.quota
        if quota is not None:
            # In the first version, CPU time may be counted in another hierarchy, where the quota's
            # group has the same name, if it exists.
            limited = self._groups.find("cpu")
            folder = None if limited is None else group.top / quota.folder.relative_to(limited.top)
            if folder is None or folder not in group.lineage():
                return self.tree()
            group = Group(group.version, folder, group.top, group.path)
        elif not group.is_of_a_job:
            return self.tree()
        try:
            return CgroupCpuTime(group)
        except SourceUnavailableError:
            return self.tree()

    def tree(self) -> ProcessTreeReader:
        """Return the reader of the job's processes.

        Raises:
            SourceUnavailableError: When there is no procfs.
        """
        return ProcessTreeReader(
            self._pid,
            table=ProcessTable(self._proc),
            ranks=self._ranks,
            mark=self._mark,
            cpus=self.limits.now().cpus,
            count_quota=GroupQuotas(proc=self._proc, root=self._root, clock=self._clock).count_cpus,
        )

    def processes(self) -> ProcessTreeReader:
        """Return a reader as `tree` does, and let `owns` answer from its newest reading.

        Raises:
            SourceUnavailableError: When there is no procfs.
        """
        self._processes = self.tree()
        return self._processes

    def owns(self, pid: int) -> bool | None:
        """Return whether a living process is one of the job's; None where nobody reads them."""
        return None if self._processes is None else self._processes.owns(pid)

    def limits_reader(self) -> LimitsReader:
        """Return the reader of the memory that the job may use.

        Raises:
            SourceUnavailableError: When the memory of the node and of the job is unknown.
        """
        return LimitsReader(self.limits.now)

    def cgroup(self) -> RebuiltReader:
        """Return the reader of the job's control group.

        Raises:
            SourceUnavailableError: When the job has none of its own.
        """

        def make(limits: Owned) -> CgroupReader:
            memory = self._find_step_group("memory")
            return CgroupReader(cpu=self._groups.find("cpu"), memory=memory, quota=limits.quota)

        return RebuiltReader(make, self.limits, CGROUP_COLUMNS)

    def pressure(self) -> PressureReader:
        """Return the reader of the job's stalls.

        Raises:
            SourceUnavailableError: When the kernel keeps no pressure stall information.
        """
        return PressureReader(self._proc, group=self._find_step_group("cpu"))

    @property
    def others(self) -> tuple[Callable[[], Reader], ...]:
        """The factories of the readers besides those of the CPUs and of the processes."""
        return (self.limits_reader, self.cgroup, self.pressure)
