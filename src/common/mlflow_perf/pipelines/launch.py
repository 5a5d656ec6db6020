"""How the ranks of a step are started: the command lines and the environment of each.

Imports nothing of ours. Ranks are real processes on this machine (each group of `processes` stands
for one node), or on the nodes that Parsl's MPI mode gives.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

__all__ = ["Rank", "ranks_of", "search_path"]

# Parsl's MPI mode leaves the launcher of the nodes that it gave to the task here.
_PARSL_PREFIX = "PARSL_MPI_PREFIX"
_PER_NODE = "MLFLOW_PERF_RANKS_PER_NODE"
_HOST_OPTIONS = ("-hosts", "--nodelist", "-node-list")
# Each rank's place for torch.distributed, from what the launcher of the nodes left in it.
_AS_TORCH = """\
export RANK="${PMI_RANK:-${OMPI_COMM_WORLD_RANK:-${SLURM_PROCID:-${ALPS_APP_PE:-0}}}}"
export LOCAL_RANK=$((RANK % LOCAL_WORLD_SIZE)) NODE_RANK=$((RANK / LOCAL_WORLD_SIZE))
"""


@dataclass(frozen=True, slots=True)
class Rank:
    """One process to start: a rank, or the launcher of several.

    Attributes:
        command: Program and arguments.
        environment: Variables to add to the step's.
        log: Name of its log file.
    """

    command: tuple[str, ...]
    environment: dict[str, str]
    log: str


def ranks_of(
    command: str,
    *,
    instances: int,
    processes: int,
    distribution: str | None,
    environ: Mapping[str, str],
) -> list[Rank]:
    """Return the processes to start for a step.

    Args:
        command: Shell command, filled in.
        instances: Number of nodes.
        processes: Ranks per node.
        distribution: `mpi`, `pytorch` or None.
        environ: Environment of the step; its PATH is searched for a launcher.
    """
    shell = ("bash", "-c", command)
    world = instances * processes
    prefix = tuple(environ.get(_PARSL_PREFIX, "").split())
    if prefix and (world > 1 or _hosts(prefix) not in ([], [socket.gethostname()])):
        return [_on_nodes(prefix, command, instances, processes, torch=distribution == "pytorch")]
    if distribution == "pytorch":
        return _torch_ranks(shell, instances, processes)
    if world == 1 or distribution is None:
        return [Rank(shell, {}, "std_log.txt")]
    per_node = {_PER_NODE: str(processes)}
    launcher = _mpiexec(environ.get("PATH", os.defpath))
    if launcher:
        return [Rank((*launcher, "-n", str(world), *shell), per_node, "std_log.txt")]
    return [
        Rank(shell, per_node | _open_mpi(rank, world), f"rank-{rank}.txt") for rank in range(world)
    ]


def search_path(environ: Mapping[str, str]) -> str:
    """Return a PATH on which `python` is this interpreter and its launchers come first."""
    return os.pathsep.join([str(Path(sys.executable).parent), environ.get("PATH", os.defpath)])


def _on_nodes(
    prefix: tuple[str, ...], command: str, instances: int, processes: int, *, torch: bool
) -> Rank:
    """Return the launcher that starts the ranks on the nodes which Parsl gave."""
    environment = {_PER_NODE: str(processes)}
    if torch:
        environment |= _torch_world(instances, processes, (*_hosts(prefix), "127.0.0.1")[0])
        command = _AS_TORCH + command
    return Rank((*prefix, "bash", "-c", command), environment, "std_log.txt")


def _hosts(prefix: Sequence[str]) -> list[str]:
    """Return the nodes that a launcher is to use, as Parsl writes it."""
    named = (prefix[i + 1] for i, word in enumerate(prefix[:-1]) if word in _HOST_OPTIONS)
    return next(named, "").replace(",", " ").split()


def _torch_world(instances: int, processes: int, master: str) -> dict[str, str]:
    """Return what torchrun and Azure ML set alike in all ranks for torch.distributed."""
    return {
        "MASTER_ADDR": master,
        "MASTER_PORT": str(_free_port()),
        "WORLD_SIZE": str(instances * processes),
        "LOCAL_WORLD_SIZE": str(processes),
        "NNODES": str(instances),
    }


def _torch_ranks(shell: tuple[str, ...], instances: int, processes: int) -> list[Rank]:
    """Return the ranks of `pytorch` on this machine, each with its place."""
    shared = _torch_world(instances, processes, "127.0.0.1")
    return [
        Rank(
            shell,
            {
                **shared,
                "RANK": str(rank),
                "LOCAL_RANK": str(rank % processes),
                "NODE_RANK": str(rank // processes),
            },
            f"rank-{rank}.txt",
        )
        for rank in range(instances * processes)
    ]


def _open_mpi(rank: int, world: int) -> dict[str, str]:
    """Return what Open MPI would set for a rank of one host."""
    name = "OMPI_COMM_WORLD_"
    return {
        f"{name}RANK": str(rank),
        f"{name}SIZE": str(world),
        f"{name}LOCAL_RANK": str(rank),
        f"{name}LOCAL_SIZE": str(world),
    }


@lru_cache(maxsize=8)
def _mpiexec(path: str) -> tuple[str, ...]:
    """Return the launcher on the path and the options that one machine needs; empty if none."""
    found = shutil.which("mpiexec", path=path)
    if found is None:
        return ()
    try:
        told = subprocess.run(
            [found, "--version"], capture_output=True, text=True, timeout=20, check=False
        ).stdout
    except (OSError, subprocess.TimeoutExpired):
        return ()
    if "Open MPI" not in told and "OpenRTE" not in told:
        return (found,)
    # Open MPI counts cores as slots, and refuses to run as root in a container.
    as_root = ("--allow-run-as-root",) if hasattr(os, "geteuid") and os.geteuid() == 0 else ()
    return (found, "--oversubscribe", *as_root)


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])
