"""Recorded trees: the procfs and control groups of machines that are not here.

Each function writes one under a folder; `put` changes a file in place, as the kernel does.
"""

from __future__ import annotations

from pathlib import Path

from mlflow_perf.readers import Reader
from mlflow_perf.readers.cgroup.cgroup import CgroupReader
from mlflow_perf.readers.job import JobSources

HEAD = "24 30 0:21 / /proc rw,relatime - proc proc rw\n"
V2 = "31 23 0:27 {root} /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n"
EIGHT = frozenset(range(8))
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
    """Write the procfs files of the process `self`; return procfs."""
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


def read(reader: Reader) -> dict[str, float]:
    """Return one report of one reader."""
    report: dict[str, float] = {}
    reader.read(report)
    return report


def cpu_stat(*cpus: tuple[int, ...]) -> str:
    """Return a /proc/stat with a line for each CPU: user, idle, iowait and, if any, steal ticks."""
    lines = []
    for number, ticks in enumerate(cpus):
        user, idle, iowait, steal = (*ticks, 0)[:4]
        lines.append(f"cpu{number} {user} 0 0 {idle} {iowait} 0 0 {steal} 0 0")
    return "cpu  1 2 3 4 5 6 7 8 9 10\n" + "\n".join(lines) + "\nintr 1 2 3\nctxt 4\n"


def alike_cpus(busy: int, idle: int, cpus: int = 8) -> str:
    """Return a /proc/stat in which all CPUs have the same ticks."""
    return cpu_stat(*[(busy, idle, 0)] * cpus)


def netdev(**counters: tuple[int, int]) -> str:
    """Return a /proc/net/dev: interface → bytes sent and received."""
    lines = [f"{n:>6}: {r} 1 0 0 0 0 0 0 {s} 1 0 0 0 0 0 0" for n, (s, r) in counters.items()]
    return "Inter-| Receive\n face |bytes\n" + "\n".join(lines) + "\n"


def record(
    proc: Path,
    pid: int,
    parent: int,
    *,
    cpu: int = 0,
    children: int = 0,
    rss: int = 0,
    io: tuple[int, int] = (0, 0),
    calls: tuple[int, int] = (0, 0),
    called: tuple[int, int] = (0, 0),
    kernel: tuple[int, int] = (0, 0),
    threads: dict[int, tuple[int, int]] | None = None,
    started: int = 1,
) -> None:
    """Write a process: CPU ticks of its own and its ended children, pages, bytes and calls of IO.

    `kernel`: the parts of these ticks in the kernel; `called`: the bytes that the calls moved.

    `threads`: id → nanoseconds that the thread ran and waited for a CPU.
    """
    threads = threads or {pid: (0, 0)}
    for thread, (ran, waited) in threads.items():
        put(proc / f"{pid}/task/{thread}/schedstat", f"{ran} {waited} 1\n")
    fields: list[str | int] = [
        "S",
        parent,
        1,
        1,
        0,
        -1,
        0,
        0,
        0,
        0,
        0,
        cpu - kernel[0],
        kernel[0],
        children - kernel[1],
        kernel[1],
        20,
        0,
        len(threads),
        0,
    ]
    fields += [started, 1 << 30, rss, 0]
    put(proc / str(pid) / "stat", f"{pid} (a b) c) {' '.join(map(str, fields))}\n")
    put(proc / str(pid) / "statm", f"{rss} {rss} 0 1 0 {rss} 0\n")
    counts = f"rchar: {called[0]}\nwchar: {called[1]}\nsyscr: {calls[0]}\nsyscw: {calls[1]}\n"
    put(proc / str(pid) / "io", f"{counts}read_bytes: {io[0]}\nwrite_bytes: {io[1]}\n")


def cgroup_reader(root: Path, proc: Path) -> CgroupReader:
    """Return the reader as the job's sources make it."""
    sources = JobSources(proc=proc, root=root, environ={}, cpus=EIGHT)
    reader = sources.cgroup().inner
    assert isinstance(reader, CgroupReader)
    return reader
