"""The cluster of the tests is a real one."""

from __future__ import annotations

import pytest
from tests.slurm.cluster import Cluster

pytestmark = pytest.mark.e2e


def test_a_step_runs_on_both_nodes(slurm: Cluster) -> None:
    """Each of two nodes has a host name of its own."""
    done = slurm.call("srun", "-N2", "hostname")
    assert sorted(done.stdout.split()) == sorted(slurm.nodes), done.stderr
