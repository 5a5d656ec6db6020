"""The CPU quotas of control groups into which the job put its own processes."""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path

from mlflow_perf.core.originals import time
from mlflow_perf.readers.cgroup.groups import CpuQuota, Groups, find_cpu_quota
from mlflow_perf.readers.procfile import read_text

# A look at the group of a process takes 0.02 ms, and at a new group's quota 0.2 ms.
_LOOK_EVERY_SEC = 10.0
_MOST_KEPT = 64


class GroupQuotas:
    """Finds quotas of groups other than this process's: `cgexec`, `systemd-run --scope`.

    Args:
        proc: Where procfs is mounted.
        root: Where the mount points of `mountinfo` start.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        *,
        proc: Path | str = "/proc",
        root: Path | str = "/",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._proc, self._root, self._clock = proc, root, clock
        home = read_text(f"{proc}/self/cgroup") or ""
        # The text of `/proc/PID/cgroup` → the quota; that of our own groups is known elsewhere.
        self._quotas: dict[str, CpuQuota | None] = {home: None, "": None}
        self._groups: dict[int, tuple[float, str]] = {}

    def count_cpus(self, pids: Collection[int]) -> float | None:
        """Return the CPUs' worth of time that processes have together; None without own quotas.

        At most one process is looked up at each call, so that a call stays cheap.
        """
        now = self._clock()
        if len(self._groups) > _MOST_KEPT:
            self._groups = {pid: self._groups[pid] for pid in pids if pid in self._groups}
        for pid in pids:
            if pid not in self._groups or now - self._groups[pid][0] >= _LOOK_EVERY_SEC:
                groups = read_text(f"{self._proc}/{pid}/cgroup") or ""
                if groups not in self._quotas:
                    found = Groups(pid, proc=self._proc, root=self._root).find("cpu")
                    self._quotas[groups] = find_cpu_quota(found)
                self._groups[pid] = now, groups
                break
        quotas = [self._quotas[self._groups[pid][1]] for pid in pids if pid in self._groups]
        cores = {quota.folder: quota.cores for quota in quotas if quota is not None}
        return sum(cores.values()) if cores and None not in quotas else None
