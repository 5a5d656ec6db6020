"""What a job owns, from recorded trees of containers and schedulers."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.readers import trees
from tests.readers.trees import put, put_all

from mlflow_perf.errors import SourceUnavailableError
from mlflow_perf.model.summary import summarise
from mlflow_perf.readers.cgroup.cgroup import CgroupReader
from mlflow_perf.readers.cgroup.groups import Groups
from mlflow_perf.readers.cgroup.limits import host_facts, owned
from mlflow_perf.readers.cgroup.pressure import PressureReader
from mlflow_perf.readers.cpu.cpu_share import CpuShareReader
from mlflow_perf.readers.job import JobSources

EIGHT = frozenset(range(8))


def owned_in(proc: Path, root: Path, **options):
    """Return what the job of a recorded tree owns."""
    return owned(proc=proc, groups=Groups(proc=proc, root=root), **options)


def stat(busy: int, idle: int, cpus: int = 8) -> str:
    """Return a /proc/stat whose CPUs all have the same ticks."""
    lines = [f"cpu{n} {busy} 0 0 {idle} 0 0 0 0 0 0" for n in range(cpus)]
    return "cpu  1 2 3\n" + "\n".join(lines) + "\nintr 1\n"


@pytest.mark.parametrize(
    ("tree", "cores", "mem_mb"),
    [
        (trees.docker_v2, 1.5, 1024.0),
        (trees.docker_v1, 0.5, 512.0),
        (trees.kubernetes_v2, 2.0, 2048.0),
        (trees.slurm_v1, 8.0, 8192.0),
        (trees.bare, 8.0, 65536.0),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_the_tightest_limit_wins(tree, cores: float, mem_mb: float, tmp_path: Path) -> None:
    """Of the process's groups and all their ancestors, the smallest limit is the job's."""
    found = owned_in(tree(tmp_path), tmp_path, environ={}, cpus=EIGHT)
    assert (found.cores, found.mem_mb) == (cores, mem_mb)
    assert found.pooled == (cores < 8)
    assert (found.quota is not None) == found.pooled


@pytest.mark.parametrize(
    ("environ", "cores", "mem_mb"),
    [
        ({"SLURM_JOB_ID": "7", "SLURM_CPUS_ON_NODE": "4", "SLURM_MEM_PER_CPU": "1000"}, 4, 4000),
        ({"SLURM_JOB_ID": "7", "SLURM_CPUS_ON_NODE": "4", "SLURM_MEM_PER_NODE": "3000"}, 4, 3000),
        ({"SLURM_JOB_ID": "7", "SLURM_JOB_CPUS_PER_NODE": "2"}, 2, 65536),
        ({"SLURM_JOB_ID": "7", "SLURM_JOB_CPUS_PER_NODE": "16(x2),8"}, 8, 65536),
        ({"SLURM_JOB_ID": "7", "SLURM_CPUS_ON_NODE": "64"}, 8, 65536),
        ({"SLURM_JOB_ID": "7", "SLURM_CPUS_ON_NODE": "-3", "SLURM_MEM_PER_NODE": "0"}, 8, 65536),
        ({"SLURM_CPUS_ON_NODE": "2"}, 8, 65536),
    ],
)
def test_a_slurm_allocation_is_a_limit(environ, cores, mem_mb, tmp_path: Path) -> None:
    """Slurm's variables count inside a job, as far as they speak of this node in numbers."""
    found = owned_in(trees.bare(tmp_path), tmp_path, environ=environ, cpus=EIGHT)
    assert (found.cores, found.mem_mb) == (cores, mem_mb)


def test_the_affinity_is_a_limit_too(tmp_path: Path) -> None:
    """CPUs that the process may not run on are not its own."""
    found = owned_in(trees.docker_v2(tmp_path), tmp_path, environ={}, cpus=frozenset({3}))
    assert found.cores == 1.0
    assert not found.pooled


def read(reader) -> dict[str, float]:
    """Return one report of one reader."""
    report: dict[str, float] = {}
    reader.read(report)
    return report


def cgroup_reader(root: Path, proc: Path) -> CgroupReader:
    """Return the reader as the job's sources make it."""
    sources = JobSources(proc=proc, root=root, environ={}, cpus=EIGHT)
    reader = sources.cgroup().inner
    assert isinstance(reader, CgroupReader)
    return reader


def test_cgroup_v2_memory_throttling_and_kills(tmp_path: Path) -> None:
    """Idle page cache is not in use; throttled time counts from the start."""
    reader = cgroup_reader(tmp_path, trees.docker_v2(tmp_path))
    report = read(reader)
    assert report["cgroup_mem_mb"] == 500.0
    assert report["cgroup_mem_percent"] == pytest.approx(100 * 500 / 1024)
    assert report["oom_kills"] == 1.0
    assert report["cpu_throttled_sec"] == 0.0
    group = tmp_path / "sys/fs/cgroup"
    put_all(group, {"cpu.stat": "usage_usec 6\nnr_throttled 14\nthrottled_usec 1400000"})
    assert read(reader)["cpu_throttled_sec"] == pytest.approx(0.5)
    # Eight CPUs throttled at once for one period of 100 ms: that is 100 ms, not 800.
    put_all(group, {"cpu.stat": "usage_usec 6\nnr_throttled 15\nthrottled_usec 2200000"})
    assert read(reader)["cpu_throttled_sec"] == pytest.approx(0.6)
    # A group made anew counts from zero.
    put_all(group, {"cpu.stat": "usage_usec 6\nnr_throttled 0\nthrottled_usec 0"})
    assert read(reader)["cpu_throttled_sec"] == pytest.approx(0.6)


def test_cgroup_v1_memory_throttling_and_kills(tmp_path: Path) -> None:
    """The first version has other names and units for the same figures."""
    reader = cgroup_reader(tmp_path, trees.docker_v1(tmp_path))
    report = read(reader)
    assert report["cgroup_mem_mb"] == 128.0
    assert report["cgroup_mem_percent"] == 25.0
    assert report["oom_kills"] == 2.0
    folder = tmp_path / "sys/fs/cgroup/cpu,cpuacct"
    put_all(folder, {"cpu.stat": "nr_periods 9\nnr_throttled 13\nthrottled_time 1250000000"})
    assert read(reader)["cpu_throttled_sec"] == pytest.approx(1.0)


def test_no_group_of_its_own_is_an_unavailable_source(tmp_path: Path) -> None:
    """A machine without cgroups has no figures of them."""
    with pytest.raises(SourceUnavailableError):
        cgroup_reader(tmp_path, trees.bare(tmp_path))
    assert Groups(proc=tmp_path / "proc", root=tmp_path).find("cpu") is None


def test_a_slurm_rank_is_measured_with_the_other_ranks(tmp_path: Path) -> None:
    """The job on a node is the step's group, not the task's of one rank."""
    proc = trees.slurm_v1(tmp_path)
    group = Groups(proc=proc, root=tmp_path).find("memory")
    assert group.find_step().folder.name == "step_0"
    assert group.find_step().is_of_a_job


def test_under_a_quota_utilisation_is_of_the_quota(tmp_path: Path) -> None:
    """1.5 CPUs of quota, 0.75 used: 50%, whatever the host's other tenants do."""
    proc = trees.docker_v2(tmp_path)
    put(proc / "stat", stat(0, 0))
    now = [100.0]
    sources = JobSources(proc=proc, root=tmp_path, environ={}, cpus=EIGHT)
    limits = sources.limits.now()
    used = sources.find_cpu_time(limits)
    host = sources.cpu().inner
    assert isinstance(host, CpuShareReader)
    reader = CpuShareReader(host._owned, cores=limits.cores, used=used, clock=lambda: now[0])
    now[0] = 102.0
    put(proc / "stat", stat(0, 0).replace(" 0 0 0 0 0 0 0 0", " 50 0 0 0 50 0 0 100"))
    put_all(tmp_path / "sys/fs/cgroup", {"cpu.stat": "usage_usec 6500000"})
    report = read(reader)
    assert report["cpu_pct_per_cpu_avg"] == pytest.approx(50.0)
    assert report["host_cpu_pct_per_cpu_avg"] == 75.0
    assert report["cpu_limit_cores"] == 1.5
    # Of the quota's three CPU-seconds, what the eight CPUs had on average: a quarter, and a half.
    assert report["cpu_iowait_sec"] == pytest.approx(0.75)
    assert report["cpu_steal_sec"] == pytest.approx(1.5)
    start = dict.fromkeys(report, 0.0) | {"elapsed_sec": 0.0, "cpu_limit_cores": 1.5}
    metrics = summarise([start, {"elapsed_sec": 2.0, **report}])
    assert metrics["cpu_avg_utilization_pct"] == pytest.approx(50.0)
    assert metrics["node_cpu_hours"] == pytest.approx(3.0 / 3600)
    assert metrics["node_unused_cpu_hours"] == pytest.approx(1.5 / 3600)
    assert metrics["host_cpu_avg_utilization_pct"] == 75.0


def test_with_an_affinity_the_hosts_figures_stand_beside_the_jobs(tmp_path: Path) -> None:
    """The job's two CPUs are its 100%; the host's eight are told apart."""
    proc = trees.bare(tmp_path)
    put(proc / "stat", stat(0, 0))
    cpus = frozenset({0, 1})
    reader = JobSources(proc=proc, root=tmp_path, environ={}, cpus=cpus).cpu()
    lines = stat(0, 100).replace("cpu0 0 0 0 100", "cpu0 100 0 0 0")
    put(proc / "stat", lines)
    report = read(reader)
    assert report["cpu_pct_per_cpu_avg"] == 50.0
    assert report["cpu_limit_cores"] == 2
    assert report["host_cpu_pct_per_cpu_avg"] == 12.5
    assert report["host_cpu_cores"] == 8
    reader.close()


def psi(total_us: int) -> str:
    """Return a pressure file."""
    line = f"avg10=0.00 avg60=0.00 avg300=0.00 total={total_us}"
    return f"some {line}\nfull {line}"


def test_pressure_is_the_nodes_or_that_of_the_jobs_own_group(tmp_path: Path) -> None:
    """A container's own stalls count; without a group of its own, the node's."""
    proc = trees.docker_v2(tmp_path)
    put_all(proc / "pressure", {"cpu": psi(9_000_000), "memory": psi(1), "io": psi(2)})
    assert read(PressureReader(proc))["cpu_stall_sec"] == 9.0
    group = Groups(proc=proc, root=tmp_path).find("cpu")
    assert read(PressureReader(proc, group=group))["cpu_stall_sec"] == 9.0
    put_all(tmp_path / "sys/fs/cgroup", {"cpu.pressure": psi(500_000), "io.pressure": psi(0)})
    report = read(PressureReader(proc, group=group))
    assert report == {"cpu_stall_sec": 0.5, "io_stall_sec": 0.0}


def test_a_kernel_without_pressure_figures(tmp_path: Path) -> None:
    """Without the files, or with others' content in them, the source is not there."""
    with pytest.raises(SourceUnavailableError):
        PressureReader(tmp_path)
    put_all(tmp_path / "pressure", {"cpu": "", "memory": "nonsense"})
    with pytest.raises(SourceUnavailableError):
        PressureReader(tmp_path)


def test_host_facts_are_the_nodes() -> None:
    """This machine tells its memory and its architecture."""
    facts = host_facts()
    assert facts["mem_total_mb"] > 100
    assert facts["arch"]
