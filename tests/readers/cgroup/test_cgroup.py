"""The control group reader on recorded trees of containers."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.readers import trees
from tests.readers.trees import (
    cgroup_reader,
    put_all,
    read,
)

from mlflow_perf.errors import SourceUnavailableError
from mlflow_perf.readers.cgroup.cgroup import CgroupReader
from mlflow_perf.readers.cgroup.groups import Groups


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
    """The first version has other names and units for the same values."""
    reader = cgroup_reader(tmp_path, trees.docker_v1(tmp_path))
    report = read(reader)
    assert report["cgroup_mem_mb"] == 128.0
    assert report["cgroup_mem_percent"] == 25.0
    assert report["oom_kills"] == 2.0
    folder = tmp_path / "sys/fs/cgroup/cpu,cpuacct"
    put_all(folder, {"cpu.stat": "nr_periods 9\nnr_throttled 13\nthrottled_time 1250000000"})
    assert read(reader)["cpu_throttled_sec"] == pytest.approx(1.0)


def test_files_in_memory_are_told_from_page_cache(tmp_path: Path) -> None:
    """Both are no process's, yet tmpfs counts against the limit, from the job's start on."""
    proc = trees.docker_v2(tmp_path)
    reader = cgroup_reader(tmp_path, proc)
    group = tmp_path / "sys/fs/cgroup"
    stat = "anon {}\ninactive_file 0\nactive_file {}\nshmem {}\n"
    before = read(reader)
    assert "cgroup_tmpfs_mb" not in before, "this kernel's first answer had no such line"
    put_all(group, {"memory.stat": stat.format(0, 0, 10 << 20)})
    reader = cgroup_reader(tmp_path, proc)
    put_all(group, {"memory.current": f"{500 << 20}"})
    put_all(group, {"memory.stat": stat.format(0, 100 << 20, 310 << 20)})
    report = read(reader)
    assert report["cgroup_mem_mb"] == 500.0
    assert report["cgroup_held_mb"] == 400.0
    assert report["cgroup_tmpfs_mb"] == 300.0


def test_no_group_of_its_own_is_an_unavailable_source(tmp_path: Path) -> None:
    """A machine without control groups has no control group reader."""
    with pytest.raises(SourceUnavailableError):
        cgroup_reader(tmp_path, trees.bare(tmp_path))
    assert Groups(proc=tmp_path / "proc", root=tmp_path).find("cpu") is None


def test_slurms_kills_are_counted_in_the_group_of_the_killed_task(tmp_path: Path) -> None:
    """In the first version the step's own count stays 0; a task that has ended stays counted."""
    step = "/slurm_n1/uid_0/job_1/step_0"
    memory = tmp_path / "sys/fs/cgroup/memory"
    control = "oom_kill_disable 0\nunder_oom 0\noom_kill "
    put_all(memory / step[1:], {
        "memory.limit_in_bytes": "536870912", "memory.usage_in_bytes": "268435456",
        "memory.oom_control": f"{control}0", "task_0/memory.oom_control": f"{control}0",
        "task_1/memory.oom_control": f"{control}1",
    })  # fmt: skip
    mounts = trees.V1.format(n=33, root="/", name="memory")
    trees.process(tmp_path, cgroup=f"4:memory:{step}/task_0\n", mountinfo=mounts)
    found = Groups(proc=tmp_path / "proc", root=tmp_path).find("memory")
    assert found is not None
    reader = CgroupReader(memory=found.find_step())
    assert read(reader)["oom_kills"] == 1.0
    (memory / step[1:] / "task_1/memory.oom_control").unlink()
    assert read(reader)["oom_kills"] == 1.0
