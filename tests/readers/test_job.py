"""The readers of the job, as limits, control groups and processes make them."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.readers import trees
from tests.readers.trees import (
    EIGHT,
    alike_cpus,
    put,
    put_all,
    read,
)

from mlflow_perf.errors import SourceUnavailableError
from mlflow_perf.model.summary import summarise
from mlflow_perf.readers.cgroup.rebuilt import RebuiltReader
from mlflow_perf.readers.cpu.cpu_share import CpuShareReader
from mlflow_perf.readers.job import JobSources


def test_a_machine_that_shows_nothing(tmp_path: Path) -> None:
    """Without procfs, sysfs and cgroups no source of the job's is there, and none fails."""
    job = JobSources(proc=tmp_path, root=tmp_path, environ={}, cpus=frozenset({0}))
    for make in (job.cpu, job.tree, *job.others):
        with pytest.raises(SourceUnavailableError):
            make()


def test_whose_a_process_is_follows_from_the_reader_of_the_tree(tmp_path: Path) -> None:
    """Descendants of the root are the job's; without a reader of them nobody knows."""
    for pid, parent in {1: 0, 10: 1, 11: 10, 99: 1}.items():
        trees.record(tmp_path, pid, parent)
    job = JobSources(10, proc=tmp_path, root=tmp_path, environ={}, cpus=frozenset({0}))
    assert job.owns(11) is None
    reader = job.processes()
    assert (job.owns(11), job.owns(99)) == (True, False)
    reader.close()


def test_under_a_quota_utilisation_is_of_the_quota(tmp_path: Path) -> None:
    """1.5 CPUs of quota, 0.75 used: 50%, whatever the host's other tenants do."""
    proc = trees.docker_v2(tmp_path)
    put(proc / "stat", alike_cpus(0, 0))
    now = [100.0]
    sources = JobSources(proc=proc, root=tmp_path, environ={}, cpus=EIGHT)
    limits = sources.limits.now()
    used = sources.find_cpu_time(limits)
    rebuilt = sources.cpu()
    assert isinstance(rebuilt, RebuiltReader)
    host = rebuilt.inner
    assert isinstance(host, CpuShareReader)
    reader = CpuShareReader(host._owned, cores=limits.cores, used=used, clock=lambda: now[0])
    read(reader)
    now[0] = 102.0
    put(proc / "stat", alike_cpus(0, 0).replace(" 0 0 0 0 0 0 0 0", " 50 0 0 0 50 0 0 100"))
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
    """Utilisation is that of the job's two CPUs; the host's eight have columns of their own."""
    proc = trees.bare(tmp_path)
    put(proc / "stat", alike_cpus(0, 0))
    cpus = frozenset({0, 1})
    reader = JobSources(proc=proc, root=tmp_path, environ={}, cpus=cpus).cpu()
    read(reader)
    lines = alike_cpus(0, 100).replace("cpu0 0 0 0 100", "cpu0 100 0 0 0")
    put(proc / "stat", lines)
    report = read(reader)
    assert report["cpu_pct_per_cpu_avg"] == 50.0
    assert report["cpu_limit_cores"] == 2
    assert report["host_cpu_pct_per_cpu_avg"] == 12.5
    assert report["host_cpu_cores"] == 8
    reader.close()
