"""Plan the ranks of a step: the command line and the environment of each.

Ranks are real processes on this machine, where each group of `processes` stands for one node, or on
the nodes that Parsl's MPI mode allocates.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

from mlflow_perf.core.json_io import write_text
from mlflow_perf.pipelines.graph import Step

# In the step's folder a `secrets.py` is the step's: with `-m`, Python would take it for its own.
_ENTRY = "import sys; sys.path = [p for p in sys.path if p]; from mlflow_perf.__main__ import main"
WRAPPER = (sys.executable, "-c", f"{_ENTRY}; main()", "run", "--hold")
"""What measures a command that comes after more options and `--`."""

# Parsl's MPI mode puts the launcher for the nodes of the task into this variable.
_PARSL_PREFIX = "PARSL_MPI_PREFIX"
_PER_NODE = "MLFLOW_PERF_RANKS_PER_NODE"
_HOST_OPTIONS = ("-hosts", "--nodelist", "-node-list")
_RANK = "${PMI_RANK:-${OMPI_COMM_WORLD_RANK:-${SLURM_PROCID:-${ALPS_APP_PE:-0}}}}"
# What gives each rank its place, from the variables of the nodes' launcher.
_PLACES = {
    "pytorch": f'export RANK="{_RANK}"\n'
    "export LOCAL_RANK=$((RANK % LOCAL_WORLD_SIZE)) NODE_RANK=$((RANK / LOCAL_WORLD_SIZE))\n",
    "tensorflow": f'place="TF_CONFIG_{_RANK}"; export TF_CONFIG="${{!place}}"\n',
}


@dataclass(frozen=True, slots=True)
class Rank:
    """One process to start: a rank, or the launcher of several.

    Attributes:
        command: Program and arguments.
        environment: Variables to add to the step's.
        log: Name of its log file.
        heeds_stop: Whether it ends by itself when the step's note says so, as the tasks of `srun`
            do: that one would kill them at once.
    """

    command: tuple[str, ...]
    environment: dict[str, str]
    log: str
    heeds_stop: bool = False

    def follow(self, file: Path) -> Rank:
        """Return it with the option of its wrapper to tell of the command in a file.

        Args:
            file: The file.
        """
        return self._tell_wrapper("--end-file", str(file))

    def heed_stop(self) -> Rank:
        """Return it with the option of its wrapper to end when the step's note says so."""
        return replace(self._tell_wrapper("--heed-stop"), heeds_stop=True)

    def _tell_wrapper(self, *options: str) -> Rank:
        # The words of a launcher may come first.
        end = self.command.index(WRAPPER[2]) + len(WRAPPER[2:])
        return replace(self, command=(*self.command[:end], *options, *self.command[end:]))


def plan_ranks(
    step: Step, environ: Mapping[str, str], *, wrapper: tuple[str, ...] = ()
) -> list[Rank]:
    """Return the processes to start for a step.

    Args:
        step: The step, with its command filled in.
        environ: Environment of the step; its PATH is searched for a launcher.
        wrapper: What starts the command of each rank, and measures it.
    """
    shell = (*wrapper, "bash", "-c", step.command)
    world, processes = step.ranks, step.processes
    per_node = {_PER_NODE: str(processes)}
    prefix = tuple(environ.get(_PARSL_PREFIX, "").split())
    named = (prefix[i + 1] for i, word in enumerate(prefix[:-1]) if word in _HOST_OPTIONS)
    hosts = next(named, "").replace(",", " ").split()
    if prefix and (world > 1 or hosts not in ([], [socket.gethostname()])):
        if step.distribution in _PLACES:
            places = _make_places(step, hosts or ["127.0.0.1"])
            per_node |= places[0] if step.distribution == "pytorch" else {
                f"TF_CONFIG_{rank}": place["TF_CONFIG"] for rank, place in enumerate(places)
            }  # fmt: skip
            command = _PLACES[step.distribution] + step.command
            shell = (*wrapper, "bash", "-c", command)
        rank = Rank((*prefix, *shell), per_node, "std_log.txt")
        return [rank.heed_stop() if wrapper and Path(prefix[0]).name == "srun" else rank]
    if step.distribution in _PLACES:
        places = _make_places(step, ["127.0.0.1"])
        return [Rank(shell, place, f"rank-{rank}.txt") for rank, place in enumerate(places)]
    if world == 1 or step.distribution is None:
        return [Rank(shell, {}, "std_log.txt")]
    launcher = _find_mpiexec(environ.get("PATH", os.defpath))
    if launcher:
        return [Rank((*launcher, "-n", str(world), *shell), per_node, "std_log.txt")]
    # Without an MPI on this machine, each rank gets the variables that Open MPI would set.
    name = "OMPI_COMM_WORLD_"
    size = {f"{name}SIZE": str(world), f"{name}LOCAL_SIZE": str(world)}
    return [
        Rank(
            shell,
            per_node | size | {f"{name}RANK": str(rank), f"{name}LOCAL_RANK": str(rank)},
            f"rank-{rank}.txt",
        )
        for rank in range(world)
    ]


def make_search_path(environ: Mapping[str, str], *python: Path) -> str:
    """Return a PATH on which `python` is a step's interpreter, and the runner's launchers follow.

    Args:
        environ: Environment of the step.
        *python: Folders of the step's interpreter; none for the runner's own.
    """
    folders = [*python, Path(sys.executable).parent]
    return os.pathsep.join([*map(str, folders), environ.get("PATH", os.defpath)])


def name_python(python: Path, folder: Path) -> list[Path]:
    """Return folders for a PATH on which `python` and `python3` are an interpreter.

    Args:
        python: The interpreter, such as `/usr/bin/python3.12`, beside which no `python` may be.
        folder: Gets a script of each name that the interpreter's own folder lacks.
    """
    scripts = []
    for name in ("python", "python3"):
        beside = python.parent / name
        if not (beside.exists() and beside.samefile(python)):
            folder.mkdir(parents=True, exist_ok=True)
            # A link would not find the packages of a virtual environment.
            text = f'#!/bin/sh\nexec {shlex.quote(str(python))} "$@"\n'
            scripts.append(write_text(folder / name, text))
            scripts[-1].chmod(0o755)
    return [folder, python.parent] if scripts else [python.parent]


def _make_places(step: Step, hosts: Sequence[str]) -> list[dict[str, str]]:
    """Return the variables by which the ranks of PyTorch or TensorFlow find each other."""
    with ExitStack() as stack:
        listeners = [stack.enter_context(socket.socket()) for _ in range(step.ranks)]
        for listener in listeners:
            listener.bind(("127.0.0.1", 0))
        ports = [listener.getsockname()[1] for listener in listeners]
    if step.distribution == "tensorflow":
        addresses = [f"{hosts[i % len(hosts)]}:{port}" for i, port in enumerate(ports)]
        workers = step.ranks - step.servers
        cluster = {"worker": addresses[:workers], "ps": addresses[workers:]}
        tasks = [(kind, i) for kind, found in cluster.items() for i in range(len(found))]
        known = {kind: found for kind, found in cluster.items() if found}
        return [
            {
                "TF_CONFIG": json.dumps({"cluster": known, "task": {"type": kind, "index": index}}),
                "MLFLOW_PERF_NODE": str(rank),
                "MLFLOW_PERF_NODE_COUNT": str(step.ranks),
            }
            for rank, (kind, index) in enumerate(tasks)
        ]
    shared = {
        "WORLD_SIZE": str(step.ranks),
        "LOCAL_WORLD_SIZE": str(step.processes),
        "NNODES": str(step.instances),
        "MASTER_ADDR": hosts[0],
        "MASTER_PORT": str(ports[0]),
    }
    places = [divmod(rank, step.processes) for rank in range(step.ranks)]
    return [
        shared | {"RANK": str(rank), "LOCAL_RANK": str(local), "NODE_RANK": str(node)}
        for rank, (node, local) in enumerate(places)
    ]


@lru_cache(maxsize=8)
def _find_mpiexec(path: str) -> tuple[str, ...]:
    """Return the launcher on the path with the options that one machine needs; empty if none."""
    found = shutil.which("mpiexec", path=path)
    if found is None:
        return ()
    try:
        version = subprocess.run(
            [found, "--version"], capture_output=True, text=True, timeout=20, check=False
        ).stdout
    except (OSError, subprocess.TimeoutExpired):
        return ()
    if "Open MPI" not in version and "OpenRTE" not in version:
        return (found,)
    # Open MPI counts cores as slots, and refuses to run as root in a container.
    as_root = ("--allow-run-as-root",) if hasattr(os, "geteuid") and os.geteuid() == 0 else ()
    return (found, "--oversubscribe", *as_root)
