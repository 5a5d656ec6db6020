"""The control groups of a process, on recorded trees."""

from __future__ import annotations

from pathlib import Path

from tests.readers import trees

from mlflow_perf.readers.cgroup.groups import Groups


def test_a_slurm_rank_is_measured_with_the_other_ranks(tmp_path: Path) -> None:
    """The job on a node is the step's group, not the task's of one rank."""
    proc = trees.slurm_v1(tmp_path)
    group = Groups(proc=proc, root=tmp_path).find("memory")
    assert group is not None
    assert group.find_step().folder.name == "step_0"
    assert group.find_step().is_of_a_job
