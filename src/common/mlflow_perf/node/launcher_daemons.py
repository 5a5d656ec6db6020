"""The number of a node as the daemon that a launcher runs there has it. Imports nothing of ours.

From a rank alone the node follows only where nodes are of equal size and filled one after the
other. The launchers' own daemons are numbered node by node, whatever the layout of the ranks.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Mapping
from pathlib import Path

__all__ = ["hydra", "open_mpi"]

_PROXY = "hydra_pmi_proxy"
_MAX_ANCESTORS = 16
_DAEMON = re.compile(r"^\d+\.(\d+);")


def open_mpi(environ: Mapping[str, str]) -> tuple[int, int] | None:
    """Return index and count of the node as Open MPI 4 leaves them in the environment.

    The daemon of `mpirun` itself is number 0; where that host runs no rank, the nodes begin at 1.

    Args:
        environ: Environment variables of a rank.
    """
    daemon = _DAEMON.match(environ.get("OMPI_MCA_orte_local_daemon_uri", ""))
    nodes = environ.get("OMPI_MCA_orte_num_nodes", "")
    daemons = environ.get("OMPI_MCA_ess_base_num_procs", "")
    if daemon is None or not nodes.isdigit() or not daemons.isdigit():
        return None
    index = int(daemon[1]) - (1 if int(daemons) == int(nodes) + 1 else 0)
    return (index, int(nodes)) if 0 <= index < int(nodes) else None


def hydra(environ: Mapping[str, str], *, proc: Path = Path("/proc")) -> tuple[int, int] | None:
    """Return index and count of the node from the command line of MPICH's proxy, our ancestor.

    The proxy does not know how many there are: where they are not equal, the count is the smallest
    that there can be.

    Args:
        environ: Environment variables of this process; those of another one tell nothing.
        proc: Where the kernel shows processes.
    """
    if environ.get("PMI_RANK") != os.environ.get("PMI_RANK"):
        return None
    # A process that ends meanwhile, a kernel that shows none: then the rank has to do.
    with contextlib.suppress(OSError, LookupError, ValueError):
        words = _proxy(proc, os.getpid())
        number = int(words[words.index("--proxy-id") + 1])
        # Under Slurm all proxies have one command line, and Slurm numbers them.
        number = int(environ["SLURM_NODEID"]) if number < 0 else number
        return number, _least_nodes(environ, number)
    return None


def _proxy(proc: Path, pid: int) -> list[str]:
    """Return the command line of the nearest ancestor that is a proxy.

    Raises:
        ValueError: There is none.
    """
    for _ in range(_MAX_ANCESTORS):
        pid = _parent(proc, pid)
        words = (proc / str(pid) / "cmdline").read_bytes().decode("utf-8", "replace").split("\0")
        if Path(words[0]).name == _PROXY:
            return words
        if pid <= 1:
            break
    raise ValueError(f"no {_PROXY} above this process")


def _parent(proc: Path, pid: int) -> int:
    # The command's name stands in brackets and may hold anything, brackets too.
    fields = (proc / str(pid) / "stat").read_text(errors="replace").rpartition(")")[2].split()
    return int(fields[1])


def _least_nodes(environ: Mapping[str, str], number: int) -> int:
    """Return how many nodes there are if they are equal, else how many there are at least."""
    rank, size = int(environ["PMI_RANK"]), int(environ["PMI_SIZE"])
    here = int(environ["MPI_LOCALNRANKS"])
    first = rank - int(environ["MPI_LOCALRANKID"])
    equal, rest = divmod(size, here)
    if rest == 0 and number < equal and number in (first // here, rank % equal):
        return equal
    return number + 1 if first + here >= size else number + 2
