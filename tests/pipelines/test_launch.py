"""The processes of a step with several ranks, and the place that each finds itself in."""

from __future__ import annotations

import pytest

from mlflow_perf.node import detect
from mlflow_perf.pipelines.launch import Rank, ranks_of


def _ranks(distribution: str | None, instances: int, processes: int, **environ: str) -> list[Rank]:
    return ranks_of(
        "true",
        instances=instances,
        processes=processes,
        distribution=distribution,
        environ={"PATH": "/nonexistent", **environ},
    )


@pytest.mark.parametrize("kind", ["mpi", "pytorch"])
@pytest.mark.parametrize(("instances", "processes"), [(1, 3), (2, 1), (2, 2), (3, 2)])
def test_each_rank_finds_its_node(kind: str, instances: int, processes: int) -> None:
    """Every instance is one node with one sampler, without an MPI on the machine too."""
    places = [detect(r.environment) for r in _ranks(kind, instances, processes)]
    assert [p.rank for p in places] == list(range(instances * processes))
    assert [p.index for p in places] == [r // processes for r in range(instances * processes)]
    assert {p.count for p in places} == {instances}
    assert [p.index for p in places if p.samples] == list(range(instances))


def test_one_command_is_one_process() -> None:
    """A step without a distribution is started as it is."""
    assert _ranks(None, 1, 1) == [Rank(("bash", "-c", "true"), {}, "std_log.txt")]


def test_parsls_own_launcher_goes_first() -> None:
    """Where Parsl's MPI mode gave nodes, its prefix starts the ranks on them."""
    (rank,) = _ranks("mpi", 2, 2, PARSL_MPI_PREFIX="mpiexec -n 4 -ppn 2 -hosts a,b")
    assert rank.command[:8] == ("mpiexec", "-n", "4", "-ppn", "2", "-hosts", "a,b", "bash")
