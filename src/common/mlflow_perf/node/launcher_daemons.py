"""The index of a node, read from the launcher's own daemon on that node.

A rank alone gives the node only where nodes are of equal size and filled one after the other. The
launchers number their daemons node by node, whatever the layout of the ranks.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Mapping
from pathlib import Path

_PROXY = "hydra_pmi_proxy"
_MAX_ANCESTORS = 16
_DAEMON = re.compile(r"^\d+\.(\d+);")


def open_mpi(environ: Mapping[str, str]) -> tuple[int, int] | None:
    """Return index and count of the node from Open MPI 4's variables; None if they are not set.

    The daemon of `mpirun` itself is number 0. If that host runs no rank, the nodes begin at 1.

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

    The proxy does not know the number of nodes. If their sizes differ, the count is the smallest
    possible one.

    Args:
        environ: Environment variables of this process; None is returned for those of another one.
        proc: Where procfs is mounted.
    """
    if environ.get("PMI_RANK") != os.environ.get("PMI_RANK"):
        return None
    # If a process ends meanwhile, or the kernel shows none, the rank has to do.
    with contextlib.suppress(OSError, LookupError, ValueError):
        words = _find_proxy(proc)
        index = int(words[words.index("--proxy-id") + 1])
        # Under Slurm all proxies have the same command line, and Slurm numbers them.
        index = int(environ["SLURM_NODEID"]) if index < 0 else index
        rank, size = int(environ["PMI_RANK"]), int(environ["PMI_SIZE"])
        here = int(environ["MPI_LOCALNRANKS"])
        first = rank - int(environ["MPI_LOCALRANKID"])
        equal, rest = divmod(size, here)
        if rest == 0 and index < equal and index in (first // here, rank % equal):
            return index, equal
        return index, index + 1 if first + here >= size else index + 2
    return None


def _find_proxy(proc: Path) -> list[str]:
    """Return the command line of the nearest ancestor that is a proxy.

    Raises:
        ValueError: There is none.
    """
    pid = os.getpid()
    for _ in range(_MAX_ANCESTORS):
        # The command's name is in brackets and may contain anything, brackets too.
        stat = (proc / str(pid) / "stat").read_text(errors="replace")
        pid = int(stat.rpartition(")")[2].split()[1])
        words = (proc / str(pid) / "cmdline").read_bytes().decode("utf-8", "replace").split("\0")
        if Path(words[0]).name == _PROXY:
            return words
        if pid <= 1:
            break
    raise ValueError(f"no {_PROXY} above this process")
