"""Which node, rank and job this process is, from the environment that its launcher left.

Imports `errors` and `launchers`, whose table names the variables of each launcher; everything here
is the arithmetic from a rank to a node.
"""

from __future__ import annotations

import os
import re
import socket
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass

from mlflow_perf.errors import SettingError
from mlflow_perf.node.launchers import DASK_WORKER, LAUNCHERS, Launcher

__all__ = ["LAUNCHERS", "Launcher", "Node", "detect", "without_launcher"]

_INDEX = "MLFLOW_PERF_NODE"
_COUNT = "MLFLOW_PERF_NODE_COUNT"
_PER_NODE = "MLFLOW_PERF_RANKS_PER_NODE"
_DIGITS = 19  # more of them are no rank, and beyond what MLflow takes for a step
_AZURE_NODES = "AZ_BATCH_NODE_LIST"
_AZURE_NODE = "AZ_BATCHAI_NODE_IP"


@dataclass(frozen=True, slots=True)
class Node:
    """The place of a process in its job.

    Attributes:
        index: Number of the node within the job, from 0; the `step` of its metrics.
        count: Number of nodes in the job.
        rank: Number of the process within the job, from 0.
        local_rank: Number of the process on its node, from 0.
        world_size: Number of processes in the job.
        hostname: Name of the host.
        launcher: Who started the process: a name of `LAUNCHERS`, or `local`.
        job_id: The scheduler's name of the job, else the launcher's.
        cpu_count: Logical CPUs of the host, whoever owns them.
        pool: Whether the process is a worker of a pool, each of whose tasks is a job of its own.
        local_size: Number of processes of the job on this node; 1 where nobody tells.
    """

    index: int
    count: int
    rank: int
    local_rank: int
    world_size: int
    hostname: str
    launcher: str
    job_id: str | None = None
    cpu_count: int = 1
    pool: bool = False
    local_size: int = 1

    @property
    def samples(self) -> bool:
        """Whether this process is the one that samples on its node."""
        return self.local_rank == 0 or self.pool

    def as_dict(self) -> dict[str, int | str]:
        """Return the `node` block of a performance document."""
        block = asdict(self)
        del block["pool"], block["local_size"]
        return {key: value for key, value in block.items() if value is not None}

    def tags(self) -> dict[str, str]:
        """Return what a run's tags say of the place: host, launcher, job and number of nodes."""
        facts = {
            "hostname": self.hostname,
            "launcher": self.launcher,
            "job_id": self.job_id,
            "nodes": str(self.count),
        }
        return {f"mlflow_perf.{key}": value for key, value in facts.items() if value}


# The schedulers' own names of a job come before a launcher's: they are what a person looks up.
_JOB_IDS = (
    "SLURM_JOB_ID",
    "PBS_JOBID",
    "LSB_JOBID",
    "COBALT_JOBID",
    "FLUX_JOB_ID",
    "AZUREML_RUN_ID",
)


def detect(environ: Mapping[str, str] = os.environ) -> Node:
    """Return the place of this process in its job.

    `MLFLOW_PERF_NODE`, `MLFLOW_PERF_NODE_COUNT` and `MLFLOW_PERF_RANKS_PER_NODE` go before what any
    launcher says. What a launcher says and is no number is as if it were not there.

    Args:
        environ: Environment variables of the process.

    Returns:
        The place; index 0 of 1 where no launcher is known.

    Raises:
        SettingError: One of our three variables is no whole number in its range.
    """
    environ = {**environ, **_dask_worker()}
    own = _own_settings(environ)
    told = own[_INDEX]
    found = [row for row in LAUNCHERS if _holds(row, environ)]
    index, count, rank, local_rank, size = _place(found, environ)
    local_size = _local_size(found, environ, index)
    if per_node := own[_PER_NODE]:
        index, local_rank = divmod(rank, per_node)
        count = -(-size // per_node)
        local_size = min(per_node, size - index * per_node)
    index = index if told is None else told
    count = own[_COUNT] or max(count, index + 1)
    if index >= count:
        raise SettingError(f"{_INDEX}={index} needs {_COUNT} above it, but that is {count}.")
    return Node(
        index=index,
        count=count,
        rank=rank,
        local_rank=local_rank,
        world_size=size,
        hostname=socket.gethostname(),
        launcher=found[0].name if found else "local",
        job_id=_job_id(found, environ),
        cpu_count=os.cpu_count() or 1,
        pool=bool(found) and found[0].pool and not per_node,
        local_size=max(local_size, 1),
    )


def without_launcher(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment less every launcher's rank, for a command that is a job of its own.

    The schedulers' names of the job stay; so does what says which devices the job owns.
    """
    drop = {_INDEX, _COUNT, _PER_NODE, _AZURE_NODES, _AZURE_NODE}
    for row in LAUNCHERS:
        drop |= {row.rank, row.local_rank, row.local_size, row.node, *row.size, *row.nodes}
        drop |= {*row.marks} - set(_JOB_IDS)
    return {
        name: value
        for name, value in environ.items()
        if name not in drop and not name.startswith(("OMPI_", "PMIX_", "PMI_", "HYDI_"))
    }


def _place(found: list[Launcher], environ: Mapping[str, str]) -> tuple[int, int, int, int, int]:
    """Return index, count, rank, local rank and size, from the innermost launcher outwards."""
    if not found:
        return 0, 1, 0, 0, 1
    row = found[0]
    rank = _number(environ, row.rank) or 0
    size = max(_first(environ, row.size) or 1, rank + 1)
    local_rank = _number(environ, row.local_rank)
    index, count = _node_of(row, environ, rank, size)
    if row.groups and (outer := _outer_groups(found[1:], environ)):
        index, count, _, group_on_node, _ = outer
        each = _number(environ, row.local_size) or 1
        local_rank = group_on_node * each + (local_rank or 0)
    if listed := _azure_node(environ):
        index, count = listed
    return index, count, rank, local_rank or 0, size


def _node_of(row: Launcher, environ: Mapping[str, str], rank: int, size: int) -> tuple[int, int]:
    """Return the node's index and count as the launcher tells them, or from the ranks."""
    if row.pool or not row.rank:
        return 0, 1
    if row.daemon is not None and (told := row.daemon(environ)):
        return told
    local_rank = _number(environ, row.local_rank)
    local_size = _number(environ, row.local_size)
    each = local_size or 1
    index = _number(environ, row.node)
    if index is not None:
        return index, max(_first(environ, row.nodes) or -(-size // each), index + 1)
    if local_rank is None or local_size is None:
        return rank, size
    return _divide(environ, rank, size, local=(local_rank, local_size))


def _divide(
    environ: Mapping[str, str], rank: int, size: int, *, local: tuple[int, int]
) -> tuple[int, int]:
    """Return the node's index and count for ranks laid out in blocks, or in turns if it says so."""
    local_rank, local_size = local
    count = -(-size // max(local_size, 1))
    if environ.get("OMPI_MCA_rmaps_base_mapping_policy", "").startswith("node"):
        return rank % count, count
    first = rank - local_rank
    if size % local_size == 0 and first % local_size and rank // count == local_rank:
        return rank % count, count
    if size % local_size or first % local_size:
        # Nodes of unequal size: the number of the node's first rank is at least unique.
        return first, max(count, first + 1)
    return first // local_size, count


def _outer_groups(
    rows: list[Launcher], environ: Mapping[str, str]
) -> tuple[int, int, int, int, int] | None:
    """Return the place of the group itself, if one of the rows started the groups."""
    groups = _number(environ, "GROUP_WORLD_SIZE")
    starters = [r for r in rows if r.rank not in ("", "RANK") and _first(environ, r.size) == groups]
    return _place(starters[:1], environ) if starters else None


def _local_size(found: list[Launcher], environ: Mapping[str, str], index: int) -> int:
    """Return the number of processes of the job on this node; 1 where nobody tells."""
    if not found or found[0].pool:
        return 1
    if found[0].name == "slurm":
        return _slurm_tasks(environ.get("SLURM_STEP_TASKS_PER_NODE", ""), index)
    here = _number(environ, found[0].local_size) or 1
    if found[0].groups and _outer_groups(found[1:], environ):
        return here * _local_size(found[1:2], environ, index)
    return here


def _slurm_tasks(text: str, index: int) -> int:
    """Return the number of a node from Slurm's list of all, such as `4(x2),1`."""
    found = re.findall(r"(\d+)(?:\(x(\d+)\))?", text)
    each = [int(tasks) for tasks, times in found for _ in range(int(times or 1))]
    return each[index] if index < len(each) else 1


def _azure_node(environ: Mapping[str, str]) -> tuple[int, int] | None:
    """Return this node's place in Azure's own list, which holds whatever the launcher."""
    addresses = [a for a in re.split(r"[;,\s]+", environ.get(_AZURE_NODES, "")) if a]
    own = environ.get(_AZURE_NODE, "")
    return (addresses.index(own), len(addresses)) if own in addresses else None


def _holds(row: Launcher, environ: Mapping[str, str]) -> bool:
    """Whether the row's variables are set, are numbers, and belong to the innermost launcher."""
    if not all(environ.get(name) for name in row.marks):
        return False
    rank = _number(environ, row.rank)
    if row.rank in row.marks and rank is None:
        return False
    others = [_number(environ, name) for name in row.agrees]
    return all(other in (None, rank) for other in others)


def _job_id(found: list[Launcher], environ: Mapping[str, str]) -> str | None:
    for name in (*_JOB_IDS, *(row.job for row in found)):
        # Ray starts its workers before it knows their job: "ffffffff" is no name.
        if name and environ.get(name, "").strip("f"):
            return environ[name]
    index = environ.get("JOB_COMPLETION_INDEX")
    pod = environ.get("HOSTNAME", "")
    # An indexed job's pod has the host name <job>-<index>.
    return pod.removesuffix(f"-{index}") if index and pod.endswith(f"-{index}") else None


def _dask_worker() -> dict[str, str]:
    """Return the name of the Dask worker that runs this task, as if Dask had set a variable."""
    module = sys.modules.get("distributed.worker")
    try:
        return {} if module is None else {DASK_WORKER: str(module.get_worker().name)}
    except (AttributeError, ValueError):
        return {}


def _own_settings(environ: Mapping[str, str]) -> dict[str, int | None]:
    settings: dict[str, int | None] = {}
    for name, least in ((_INDEX, 0), (_COUNT, 1), (_PER_NODE, 1)):
        text = environ.get(name, "").strip()
        value = _number(environ, name)
        if text and (value is None or value < least):
            raise SettingError(f"{name}={text!r} must be a whole number from {least} up.")
        settings[name] = value
    return settings


def _first(environ: Mapping[str, str], names: tuple[str, ...]) -> int | None:
    numbers = (_number(environ, name) for name in names)
    return next((number for number in numbers if number is not None), None)


def _number(environ: Mapping[str, str], name: str) -> int | None:
    text = environ.get(name, "").strip() if name else ""
    return int(text) if text.isascii() and text.isdigit() and len(text) < _DIGITS else None
