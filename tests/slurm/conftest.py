"""A real Slurm for the tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.slurm.cluster import Cluster, why_not_here


@pytest.fixture(scope="session")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Return a running Slurm of two nodes."""
    if reason := why_not_here():
        pytest.skip(reason)
    cluster = Cluster(tmp_path_factory.mktemp("slurm"))
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()
