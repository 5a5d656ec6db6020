"""Which control groups a process is in, and the limits that they set. Imports only procfile.

Both versions of cgroups, alone or side by side, inside a container or not. A limit of any ancestor
holds for all below it, so each question goes up to the top that is visible, and the tightest wins.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from mlflow_perf.readers.procfile import read_text

__all__ = ["CpuQuota", "Group", "Groups", "cpu_quota", "memory_limit"]

_ESCAPE = re.compile(r"\\([0-7]{3})")
# Containers, jobs of a scheduler and one-off units: all that runs inside is the job.
_OF_A_JOB = re.compile(
    r"docker|kubepods|containerd|crio|libpod|lxc|garden|slurm|/job_\d|pbs|condor|lsf|"
    r"azureml|sagemaker|run-[^/]*\.(scope|service)$"
)
# A task's group inside its step's: the other ranks on the node are in the others.
_SLURM_TASK = re.compile(r"^(task_|user$|slurm$)")
# What the first version shows for "no limit": the largest number of whole pages.
_UNLIMITED_BYTES = 1 << 60


@dataclass(frozen=True)
class Group:
    """A control group as its files show it.

    Attributes:
        version: 1 or 2.
        folder: The group's folder.
        top: The mount point of its hierarchy: no ancestor above it is visible.
        path: The group's name, as the kernel gives it.
    """

    version: int
    folder: Path
    top: Path
    path: str

    def lineage(self) -> Iterator[Path]:
        """Yield the group's folder, then its ancestors' up to the top."""
        folder = self.folder
        yield folder
        while folder != self.top:
            folder = folder.parent
            yield folder

    @property
    def is_root(self) -> bool:
        """Whether this is the machine's own root group, which holds everything that runs."""
        if self.folder != self.top:
            return False
        # A container may see its own group as the top: only the root has the one, lacks the other.
        if self.version == 1:
            return (self.folder / "release_agent").exists()
        return not (self.folder / "cgroup.events").exists()

    @property
    def is_of_a_job(self) -> bool:
        """Whether all that runs in this group is one job: a container's, a scheduler's."""
        if self.is_root:
            return False
        return self.folder == self.top or bool(_OF_A_JOB.search(self.path))

    def of_step(self) -> Group:
        """Return the group of a scheduler's whole step, where this is that of one of its tasks."""
        folder, path = self.folder, self.path
        while "slurm" in self.path and folder != self.top and _SLURM_TASK.match(folder.name):
            folder, path = folder.parent, path.rpartition("/")[0]
        return Group(self.version, folder, self.top, path)


@dataclass(frozen=True)
class _Mount:
    version: int
    root: str
    point: str
    controllers: frozenset[str]


def _mounts(mountinfo: str) -> Iterator[_Mount]:
    for line in mountinfo.splitlines():
        before, _, after = line.partition(" - ")
        fields, kind = before.split(), after.split()
        if len(fields) < 5 or not kind or kind[0] not in ("cgroup", "cgroup2"):
            continue
        root, point = (_ESCAPE.sub(lambda m: chr(int(m[1], 8)), f) for f in fields[3:5])
        options = frozenset(kind[-1].split(","))
        yield _Mount(2 if kind[0] == "cgroup2" else 1, root, point, options)


def _paths(cgroup: str) -> tuple[dict[str, str], str | None]:
    """Return the group of each controller of the first version, and that of the second."""
    first: dict[str, str] = {}
    second = None
    for line in cgroup.splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0" and not controllers:
            second = path
        else:
            first.update(dict.fromkeys(controllers.split(","), path))
    return first, second


class Groups:
    """The control groups of one process, read once.

    Args:
        pid: The process.
        proc: Where procfs is mounted.
        root: Where the mount points of `mountinfo` start.
    """

    def __init__(
        self,
        pid: int | str = "self",
        *,
        proc: Path | str = "/proc",
        root: Path | str = "/",
    ) -> None:
        folder = f"{proc}/{pid}"
        self._first, self._second = _paths(read_text(f"{folder}/cgroup") or "")
        self._mounts = list(_mounts(read_text(f"{folder}/mountinfo") or ""))
        self._root = Path(root)

    def find(self, controller: str) -> Group | None:
        """Return the process's group for one controller.

        Args:
            controller: `cpu`, `cpuacct`, `memory`; the second version has them all in one group.

        Returns:
            The group; None where there is none, or its files are not mounted.
        """
        for mount in self._mounts:
            named = controller in mount.controllers and controller in self._first
            if mount.version == 1 and named:
                return _group(mount, self._first[controller], self._root)
        for mount in self._mounts:
            if mount.version == 2 and self._second is not None:
                return _group(mount, self._second, self._root)
        return None


def _group(mount: _Mount, path: str, root: Path) -> Group | None:
    top = root / mount.point.lstrip("/")
    if not top.is_dir():
        return None
    below = path
    # Inside a container the mount shows the container's group as its root.
    if mount.root != "/" and (path + "/").startswith(mount.root.rstrip("/") + "/"):
        below = path[len(mount.root) :]
    parts = [part for part in below.split("/") if part]
    folder = top.joinpath(*parts)
    if ".." in parts or not folder.is_dir():
        folder = top
    return Group(mount.version, folder, top, path)


@dataclass(frozen=True)
class CpuQuota:
    """How much CPU time a group may use.

    Attributes:
        cores: CPUs' worth of time.
        period_sec: The kernel's accounting period.
        folder: The group that has the quota.
    """

    cores: float
    period_sec: float
    folder: Path


def _quota_of(folder: Path, version: int) -> CpuQuota | None:
    if version == 2:
        words = (read_text(folder / "cpu.max") or "").split()
    else:
        names = ("cpu.cfs_quota_us", "cpu.cfs_period_us")
        words = [read_text(folder / name) or "" for name in names]
    try:
        quota_us, period_us = (int(word) for word in words)
    except ValueError:  # "max", or no such file
        return None
    if quota_us <= 0 or period_us <= 0:
        return None
    return CpuQuota(quota_us / period_us, period_us / 1e6, folder)


def cpu_quota(group: Group | None) -> CpuQuota | None:
    """Return the tightest CPU quota of a group and its ancestors; None without one."""
    folders = () if group is None else group.lineage()
    version = 2 if group is None else group.version
    quotas = [quota for folder in folders if (quota := _quota_of(folder, version)) is not None]
    return min(quotas, key=lambda quota: quota.cores, default=None)


def memory_limit(group: Group | None) -> tuple[int, Path] | None:
    """Return the tightest memory limit of a group and its ancestors, in bytes, and whose it is."""
    if group is None:
        return None
    name = "memory.max" if group.version == 2 else "memory.limit_in_bytes"
    limits = []
    for folder in group.lineage():
        text = read_text(folder / name) or ""
        if text.isdigit() and 0 < int(text) < _UNLIMITED_BYTES:
            limits.append((int(text), folder))
    return min(limits, key=lambda limit: limit[0], default=None)
