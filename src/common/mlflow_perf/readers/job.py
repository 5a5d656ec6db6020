"""What the job owns and uses, put together from limits, control groups and processes.

Imports the readers below it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path

from mlflow_perf.errors import SourceUnavailableError
from mlflow_perf.model.columns import CGROUP_COLUMNS, CPU_COLUMNS, HOST_CPU_COLUMNS
from mlflow_perf.readers.base import Reader
from mlflow_perf.readers.cgroup.cgroup import CgroupCpuTime, CgroupReader
from mlflow_perf.readers.cgroup.groups import CpuQuota, Group, Groups
from mlflow_perf.readers.cgroup.limits import LimitsReader, Owned, owned
from mlflow_perf.readers.cgroup.pressure import PressureReader
from mlflow_perf.readers.cgroup.rebuilt import CurrentLimits, RebuiltReader
from mlflow_perf.readers.cpu.cpu import CpuReader
from mlflow_perf.readers.cpu.cpu_share import CpuShareReader, CpuTime
from mlflow_perf.readers.process.process import ProcessTable
from mlflow_perf.readers.process.tree import ProcessTreeReader

__all__ = ["JobSources"]


class JobSources:
    """Makes the readers of one job.

    Args:
        root_pid: The process that is the job, with all that descend from it; default: this one.
        proc: Where procfs is mounted.
        root: Where the mount points of `mountinfo` start.
        environ: Environment variables: the scheduler's allocation.
        cpus: Numbers of the CPUs that the job may run on; default: as the kernel says.
        clock: Monotonic seconds.
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
    ) -> None:
        self._pid, self._clock = root_pid, clock
        self._proc, self._root = proc, root
        self._environ, self._cpus = environ, cpus

    @cached_property
    def limits(self) -> CurrentLimits:
        """What the job owns."""
        return CurrentLimits(self._look_up, clock=self._clock)

    def _look_up(self) -> Owned:
        return owned(
            self._pid,
            proc=self._proc,
            groups=self._groups,
            environ=self._environ,
            cpus=self._cpus,
        )

    @cached_property
    def _groups(self) -> Groups:
        who = "self" if self._pid is None else self._pid
        return Groups(who, proc=self._proc, root=self._root)

    def _step_group(self, controller: str) -> Group | None:
        group = self._groups.find(controller)
        return None if group is None else group.of_step()

    def cpu(self) -> Reader:
        """Return the reader of the CPUs that the job owns.

        Raises:
            SourceUnavailableError: When there is no `/proc/stat`.
        """
        return RebuiltReader(self._cpu_of, self.limits, (*CPU_COLUMNS, *HOST_CPU_COLUMNS))

    def _cpu_of(self, limits: Owned) -> Reader:
        host = CpuReader(self._proc)
        if limits.cpus is None or len(limits.cpus) >= host.count:
            reader, host_too = host, None
        else:
            reader, host_too = CpuReader(self._proc, cpus=limits.cpus), host
        if limits.pooled:
            return CpuShareReader(
                reader, host_too, cores=limits.cores, used=self._used(limits), clock=self._clock
            )
        return reader if host_too is None else CpuShareReader(reader, host_too)

    def _used(self, limits: Owned) -> CpuTime:
        """Return what tells the job's CPU time: its group's account, else its processes'."""
        group = self._accounting_group(limits.quota)
        if group is not None:
            try:
                return CgroupCpuTime(group)
            except SourceUnavailableError:
                pass
        return self.tree()

    def _accounting_group(self, quota: CpuQuota | None) -> Group | None:
        group = self._step_group("cpuacct")
        if group is None or group.is_root:
            return None
        if quota is None:
            return group if group.is_of_a_job else None
        limited = self._groups.find("cpu")
        if limited is None:
            return None
        # What counts against a quota is all that runs in the group that has it. In the first
        # version, CPU time may be counted in another hierarchy, under the same name if at all.
        folder = group.top / quota.folder.relative_to(limited.top)
        if folder not in group.lineage():
            return None
        return Group(group.version, folder, group.top, group.path)

    def tree(self) -> ProcessTreeReader:
        """Return the reader of the job's processes.

        Raises:
            SourceUnavailableError: When there is no procfs.
        """
        return ProcessTreeReader(self._pid, table=ProcessTable(self._proc))

    @property
    def others(self) -> tuple[Callable[[], Reader], ...]:
        """The factories of the job's other readers, less that of its processes."""
        return (
            lambda: LimitsReader(self.limits.now),
            self._cgroup,
            lambda: PressureReader(self._proc, group=self._step_group("cpu")),
        )

    def _cgroup(self) -> Reader:
        return RebuiltReader(self._cgroup_of, self.limits, CGROUP_COLUMNS)

    def _cgroup_of(self, limits: Owned) -> Reader:
        return CgroupReader(
            cpu=self._groups.find("cpu"), memory=self._step_group("memory"), quota=limits.quota
        )
