"""What a job owns, from recorded trees of containers and schedulers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.readers import trees
from tests.readers.trees import (
    EIGHT,
)

from mlflow_perf.readers.cgroup.groups import Groups
from mlflow_perf.readers.cgroup.limits import Owned, host_facts, owned


def owned_in(proc: Path, root: Path, **options: Any) -> Owned:
    """Return what the job of a recorded tree owns."""
    return owned(proc=proc, groups=Groups(proc=proc, root=root), **options)


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
def test_the_tightest_limit_wins(
    tree: Callable[[Path], Path], cores: float, mem_mb: float, tmp_path: Path
) -> None:
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
def test_a_slurm_allocation_is_a_limit(
    environ: dict[str, str], cores: float, mem_mb: float, tmp_path: Path
) -> None:
    """Slurm's variables count inside a job, as far as they speak of this node in numbers."""
    found = owned_in(trees.bare(tmp_path), tmp_path, environ=environ, cpus=EIGHT)
    assert (found.cores, found.mem_mb) == (cores, mem_mb)


def test_the_affinity_is_a_limit_too(tmp_path: Path) -> None:
    """CPUs that the process may not run on are not its own."""
    found = owned_in(trees.docker_v2(tmp_path), tmp_path, environ={}, cpus=frozenset({3}))
    assert found.cores == 1.0
    assert not found.pooled


def test_host_facts_are_the_nodes() -> None:
    """The facts of this machine include its memory and its architecture."""
    facts = host_facts()
    assert float(facts["mem_total_mb"]) > 100
    assert facts["arch"]
