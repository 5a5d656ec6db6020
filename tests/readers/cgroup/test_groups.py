"""The control groups of a process, on recorded trees."""

from __future__ import annotations

from pathlib import Path

from tests.readers import trees
from tests.readers.trees import put_all

from mlflow_perf.readers.cgroup.groups import Group, Groups, find_memory_room


def test_a_slurm_rank_is_measured_with_the_other_ranks(tmp_path: Path) -> None:
    """The job on a node is the step's group, not the task's of one rank."""
    proc = trees.slurm_v1(tmp_path)
    group = Groups(proc=proc, root=tmp_path).find("memory")
    assert group is not None
    assert group.find_step().folder.name == "step_0"
    assert group.find_step().is_of_a_job


def test_the_room_for_more_memory_is_that_of_the_tightest_group(tmp_path: Path) -> None:
    """Cached files are dropped before a process is killed; without a limit there is no answer."""
    job = tmp_path / "job"
    put_all(tmp_path, {"memory.max": "1000", "memory.current": "990", "memory.stat": "file 5"})
    stat = "anon 100\nactive_file 30\ninactive_file 70\n"
    put_all(job, {"memory.max": "500", "memory.current": "450\n", "memory.stat": stat})
    assert find_memory_room(Group(2, job, tmp_path, "/job")) == 10
    put_all(tmp_path, {"memory.max": "max"})
    assert find_memory_room(Group(2, job, tmp_path, "/job")) == 150
    put_all(job, {"memory.max": "max\n"})
    assert find_memory_room(Group(2, job, tmp_path, "/job")) is None
    first = {"memory.limit_in_bytes": "500", "memory.usage_in_bytes": "450"}
    put_all(job, {**first, "memory.stat": "inactive_file 1\ntotal_inactive_file 7"})
    assert find_memory_room(Group(1, job, job, "/job")) == 57
    assert find_memory_room(None) is None
