"""The control groups of a process, and the limits that they set.

Both versions of control groups are read, alone or side by side, inside a container or not. A limit
of a group holds for all groups below it, so each search goes up to the topmost visible group and
returns the tightest limit.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from mlflow_perf.readers.procfile import read_text

_ESCAPE = re.compile(r"\\([0-7]{3})")
_STAT = re.compile(r"^(\w+) (\d+)$", re.MULTILINE)
# Containers, jobs of a scheduler and one-off units: everything that runs inside is the job.
_JOB_GROUP = re.compile(
    r"docker|kubepods|containerd|crio|libpod|lxc|garden|slurm|/job_\d|pbs|condor|lsf|"
    r"azureml|sagemaker|run-[^/]*\.(scope|service)$"
)
# Slurm gives each task (rank) a group of its own inside the step's group.
_SLURM_TASK = re.compile(r"^(task_|user$|slurm$)")
# The first version shows "no limit" as the largest number of whole pages.
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
        # A container may see its own group as the top. Only the root group has `release_agent`
        # (first version) and lacks `cgroup.events` (second version).
        if self.version == 1:
            return (self.folder / "release_agent").exists()
        return not (self.folder / "cgroup.events").exists()

    @property
    def is_of_a_job(self) -> bool:
        """Whether everything that runs in this group is one job: a container's or a scheduler's."""
        if self.is_root:
            return False
        return self.folder == self.top or bool(_JOB_GROUP.search(self.path))

    def find_step(self) -> Group:
        """Return the group of the whole scheduler step if this is a task's group, else this one."""
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
        self._root = Path(root)
        self._found: dict[str, Group | None] = {}
        # The group of each controller of the first version, and the group of the second version.
        self._first: dict[str, str] = {}
        self._second: str | None = None
        for line in (read_text(f"{proc}/{pid}/cgroup") or "").splitlines():
            number, _, rest = line.partition(":")
            controllers, _, path = rest.partition(":")
            if number == "0" and not controllers:
                self._second = path
            else:
                self._first.update(dict.fromkeys(controllers.split(","), path))
        self._mounts: list[_Mount] = []
        for line in (read_text(f"{proc}/{pid}/mountinfo") or "").splitlines():
            before, _, after = line.partition(" - ")
            fields, kind = before.split(), after.split()
            if len(fields) < 5 or not kind or kind[0] not in ("cgroup", "cgroup2"):
                continue
            top, point = (_ESCAPE.sub(lambda m: chr(int(m[1], 8)), f) for f in fields[3:5])
            version = 2 if kind[0] == "cgroup2" else 1
            self._mounts.append(_Mount(version, top, point, frozenset(kind[-1].split(","))))

    def find(self, controller: str) -> Group | None:
        """Return the process's group for one controller.

        Args:
            controller: `cpu`, `cpuacct`, `memory`; the second version has them all in one group.

        Returns:
            The group; None where there is none, or its files are not mounted.
        """
        if controller not in self._found:
            self._found[controller] = self._find(controller)
        return self._found[controller]

    def _find(self, controller: str) -> Group | None:
        # The first version's mounts come first: a controller that is mounted there is not in the
        # second version's hierarchy.
        for mount in sorted(self._mounts, key=lambda mount: mount.version):
            path = self._second
            if mount.version == 1:
                path = self._first.get(controller) if controller in mount.controllers else None
            if path is None:
                continue
            top = self._root / mount.point.lstrip("/")
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
        return None


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


def find_cpu_quota(group: Group | None) -> CpuQuota | None:
    """Return the tightest CPU quota of a group and its ancestors; None without one."""
    if group is None:
        return None
    quotas = []
    for folder in group.lineage():
        if group.version == 2:
            words = (read_text(f"{folder}/cpu.max") or "").split()
        else:
            names = ("cpu.cfs_quota_us", "cpu.cfs_period_us")
            words = [read_text(f"{folder}/{name}") or "" for name in names]
        try:
            quota_us, period_us = (int(word) for word in words)
        except ValueError:  # "max", or no such file
            continue
        if quota_us > 0 and period_us > 0:
            quotas.append(CpuQuota(quota_us / period_us, period_us / 1e6, folder))
    return min(quotas, key=lambda quota: quota.cores, default=None)


@dataclass(frozen=True)
class MemoryLimit:
    """How much memory a group may use.

    Attributes:
        limit_bytes: The limit.
        folder: The group that has the limit.
    """

    limit_bytes: int
    folder: Path


def find_memory_limit(group: Group | None) -> MemoryLimit | None:
    """Return the tightest memory limit of a group and its ancestors; None without one."""
    return min(_read_memory_limits(group), key=lambda limit: limit.limit_bytes, default=None)


def _read_memory_limits(group: Group | None) -> Iterator[MemoryLimit]:
    """Yield the memory limits of a group and its ancestors, those that have one."""
    if group is None:
        return
    name = "memory.max" if group.version == 2 else "memory.limit_in_bytes"
    for folder in group.lineage():
        text = read_text(f"{folder}/{name}") or ""
        if text.isdigit() and 0 < int(text) < _UNLIMITED_BYTES:
            yield MemoryLimit(int(text), folder)


def find_memory_room(group: Group | None) -> int | None:
    """Return the bytes that a group may still take before it has to swap, or loses a process.

    Cached files do not count as taken: the kernel drops them first.

    Returns:
        The least of the group and its ancestors; None without a limit.
    """
    first = group is not None and group.version == 1
    name, total = ("usage_in_bytes", "total_") if first else ("current", "")
    rooms = []
    for limit in _read_memory_limits(group):
        taken = read_text(f"{limit.folder}/memory.{name}") or ""
        if taken.isdigit():
            stat = dict(_STAT.findall(read_text(f"{limit.folder}/memory.stat") or ""))
            cached = sum(int(stat.get(f"{total}{kind}_file", 0)) for kind in ("active", "inactive"))
            rooms.append(max(0, limit.limit_bytes - int(taken) + cached))
    return min(rooms, default=None)
