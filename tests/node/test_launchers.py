"""The table of launchers: each row is complete, and inner launchers come before outer ones."""

from __future__ import annotations

import pytest

from mlflow_perf.node.launchers import LAUNCHERS, Launcher


@pytest.mark.parametrize("row", LAUNCHERS, ids=lambda row: f"{row.name}:{row.marks[0]}")
def test_a_row_is_complete(row: Launcher) -> None:
    """A row has a mark, and a rank comes with a way to tell nodes apart or is the node itself."""
    assert row.marks
    assert all(row.marks)
    assert bool(row.local_size) <= bool(row.local_rank), "a local size needs a local rank"
    assert not (row.pool and row.rank), "the workers of a pool have no rank in a job"
    assert bool(row.daemon) <= bool(row.rank)


def test_a_scheduler_comes_after_the_launchers_that_run_inside_its_jobs() -> None:
    """The first row that applies is the innermost launcher."""
    names = [row.name for row in LAUNCHERS]
    for inner in ("torchrun", "openmpi", "mpich", "mvapich", "ray", "dask", "parsl"):
        assert names.index(inner) < names.index("slurm")
    assert names[-1] == "slurm", "a batch script without a step"
