"""Recorded trees: what procfs and the cgroup file systems look like on machines that are not here.

Each function writes one under a folder; `put` changes a file in place, as the kernel does.
"""

from __future__ import annotations

from pathlib import Path

HEAD = "24 30 0:21 / /proc rw,relatime - proc proc rw\n"
V2 = "31 23 0:27 {root} /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n"
V1 = "{n} 25 0:{n} {root} /sys/fs/cgroup/{name} rw,nosuid - cgroup cgroup rw,{name}\n"


def put(path: Path, text: str) -> None:
    """Replace a file's content, keeping the inode that a reader holds open."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("r+" if path.exists() else "w") as file:
        file.truncate()
        file.write(text)


def put_all(folder: Path, files: dict[str, str]) -> None:
    """Write several files below a folder."""
    for name, text in files.items():
        put(folder / name, text + "\n")


def process(root: Path, *, cgroup: str, mountinfo: str, memory_kb: int = 64 << 20) -> Path:
    """Write what procfs tells of the process `self`; return procfs."""
    put(root / "proc/self/cgroup", cgroup)
    put(root / "proc/self/mountinfo", HEAD + mountinfo)
    put(root / "proc/meminfo", f"MemTotal: {memory_kb} kB\nMemFree: 1 kB\nMemAvailable: 9 kB\n")
    return root / "proc"


def docker_v2(root: Path) -> Path:
    """A container with a namespace of its own: its group is the top that it sees."""
    put_all(root / "sys/fs/cgroup", {
        "cgroup.events": "populated 1", "cpu.max": "150000 100000", "memory.max": "1073741824",
        "cpu.stat": "usage_usec 5000000\nnr_periods 10\nnr_throttled 4\nthrottled_usec 900000",
        "memory.current": "734003200", "memory.events": "low 0\noom 1\noom_kill 1",
        "memory.stat": "anon 1\nfile 2\ninactive_file 209715200\nactive_file 3",
    })  # fmt: skip
    return process(root, cgroup="0::/\n", mountinfo=V2.format(root="/"))


def docker_v1(root: Path) -> Path:
    """A container of the first version: the mounts start at its own groups."""
    name = "/docker/3f2a"
    mounts = "".join(
        V1.format(n=n, root=name, name=controller)
        for n, controller in enumerate(("cpu,cpuacct", "memory"), 33)
    )
    put_all(root / "sys/fs/cgroup/cpu,cpuacct", {
        "cpu.cfs_quota_us": "50000", "cpu.cfs_period_us": "100000",
        "cpu.stat": "nr_periods 9\nnr_throttled 3\nthrottled_time 250000000",
        "cpuacct.usage": "7000000000",
    })  # fmt: skip
    put_all(root / "sys/fs/cgroup/memory", {
        "memory.limit_in_bytes": "536870912", "memory.usage_in_bytes": "268435456",
        "memory.stat": "cache 1\ntotal_inactive_file 134217728",
        "memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 2",
    })  # fmt: skip
    return process(root, cgroup=f"4:memory:{name}\n3:cpu,cpuacct:{name}\n", mountinfo=mounts)


def kubernetes_v2(root: Path) -> Path:
    """A pod on a node that shows its whole hierarchy; the pod's limit is tighter than its own."""
    pod = "kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod1.slice"
    name = f"/{pod}/cri-containerd-abc.scope"
    top = root / "sys/fs/cgroup"
    put_all(top / pod, {"cpu.max": "200000 100000", "memory.max": "2147483648"})
    put_all(top / name.lstrip("/"), {
        "cpu.max": "max 100000", "memory.max": "4294967296", "memory.current": "1073741824",
        "memory.events": "oom_kill 0", "cpu.stat": "usage_usec 1",
    })  # fmt: skip
    put_all(top, {"cpu.stat": "usage_usec 9"})
    return process(root, cgroup=f"0::{name}\n", mountinfo=V2.format(root="/"))


def slurm_v1(root: Path) -> Path:
    """A rank of a Slurm job of the first version: limits at job and step, ranks in tasks."""
    name = "/slurm/uid_1000/job_77/step_0/task_3"
    top = root / "sys/fs/cgroup/memory"
    put_all(top, {"memory.limit_in_bytes": "9223372036854771712"})
    put_all(top / "slurm/uid_1000/job_77", {"memory.limit_in_bytes": "8589934592"})
    put_all(top / "slurm/uid_1000/job_77/step_0", {
        "memory.limit_in_bytes": "8589934592", "memory.usage_in_bytes": "1048576",
    })  # fmt: skip
    put_all(top / name.lstrip("/"), {"memory.limit_in_bytes": "9223372036854771712"})
    put_all(root / "sys/fs/cgroup/cpuacct" / name.lstrip("/"), {"cpuacct.usage": "1"})
    put_all(root / "sys/fs/cgroup/cpuacct" / "slurm/uid_1000/job_77/step_0",
            {"cpuacct.usage": "4000000000"})  # fmt: skip
    mounts = V1.format(n=35, root="/", name="memory") + V1.format(n=36, root="/", name="cpuacct")
    return process(root, cgroup=f"4:memory:{name}\n2:cpuacct:{name}\n0::/\n", mountinfo=mounts)


def bare(root: Path) -> Path:
    """A machine without any cgroup file system."""
    return process(root, cgroup="", mountinfo="")
