"""Finds the node, rank and job of this process in the environment that its launcher set.

The table in `launchers` names the variables of each launcher; this module does the arithmetic from
a rank to a node.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import socket
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass

from mlflow_perf.errors import SettingError
from mlflow_perf.node.launchers import DASK_WORKER, LAUNCHERS, Launcher

_INDEX = "MLFLOW_PERF_NODE"
_COUNT = "MLFLOW_PERF_NODE_COUNT"
_PER_NODE = "MLFLOW_PERF_RANKS_PER_NODE"
_MAX_DIGITS = 18  # longer numbers are no ranks, and exceed what MLflow takes as a step
_AZURE_NODES = "AZ_BATCH_NODE_LIST"
_AZURE_NODE = "AZ_BATCHAI_NODE_IP"
# A scheduler's own job id comes before a launcher's: people look up this one.
_JOB_IDS = (
    "SLURM_JOB_ID",
    "PBS_JOBID",
    "LSB_JOBID",
    "COBALT_JOBID",
    "FLUX_JOB_ID",
    "AZUREML_RUN_ID",
)


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
        launcher: What started the process: a name in `LAUNCHERS`, or `local`.
        job_id: The scheduler's id of the job, else the launcher's.
        cpu_count: Logical CPUs of the host, including those of other jobs.
        pool: Whether the process is a worker of a pool, each of whose tasks is a job of its own.
        local_size: Number of processes of the job on this node; 1 if unknown.
        job_key: What all processes of one launch share, and no other launch has: two steps of a
            batch job differ, and so do a job and its repetition. None if unknown.
        job_step: Number of the scheduler's step.
        partition: The scheduler's partition or queue.
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
    job_key: str | None = None
    job_step: str | None = None
    partition: str | None = None

    @property
    def samples(self) -> bool:
        """Whether this process samples its node."""
        return self.local_rank == 0 or self.pool

    @property
    def shared_key(self) -> str | None:
        """The `job_key` of a job whose processes share one run; None if this one has its own."""
        return self.job_key if self.world_size > 1 and not self.pool else None

    def as_dict(self) -> dict[str, int | str]:
        """Return the `node` block of a performance document."""
        block = asdict(self)
        del block["pool"], block["local_size"], block["job_key"]
        return {key: value for key, value in block.items() if value is not None}

    def name_job(self) -> dict[str, str]:
        """Return the host, and the scheduler's job and step, which know why a process was ended."""
        facts = {"hostname": self.hostname, "job_id": self.job_id, "job_step": self.job_step}
        return {key: value for key, value in facts.items() if value}

    def tags(self) -> dict[str, str]:
        """Return the tags of a run for host, launcher, job, step, partition, number of nodes."""
        facts = {
            "hostname": self.hostname,
            "launcher": self.launcher,
            "job_id": self.job_id,
            "job_step": self.job_step,
            "partition": self.partition,
            "nodes": str(self.count),
        }
        return {f"mlflow_perf.{key}": value for key, value in facts.items() if value}


@dataclass(frozen=True, slots=True)
class _Place:
    """A place as the launchers describe it; attributes as in `Node`, `size` is `world_size`."""

    index: int = 0
    count: int = 1
    rank: int = 0
    local_rank: int = 0
    size: int = 1


def detect(environ: Mapping[str, str] = os.environ) -> Node:
    """Return the place of this process in its job.

    `MLFLOW_PERF_NODE`, `MLFLOW_PERF_NODE_COUNT` and `MLFLOW_PERF_RANKS_PER_NODE` override every
    launcher. A launcher's variable that does not hold a number counts as unset.

    Args:
        environ: Environment variables of the process.

    Returns:
        The place; index 0 of 1 if no launcher is known.

    Raises:
        SettingError: One of our three variables is not a whole number in its range.
    """
    own: dict[str, int | None] = {}
    for name, least in ((_INDEX, 0), (_COUNT, 1), (_PER_NODE, 1)):
        text = environ.get(name, "").strip()
        value = own[name] = _read_number(environ, name)
        if text and (value is None or value < least):
            raise SettingError(f"{name}={text!r} must be a whole number from {least} up.")
    if worker := sys.modules.get("distributed.worker"):
        # Dask sets no variable for its tasks. Outside a task this raises an error.
        with contextlib.suppress(AttributeError, ValueError):
            environ = {**environ, DASK_WORKER: str(worker.get_worker().name)}
    found = [row for row in LAUNCHERS if _is_active(row, environ)]
    place = _locate(found, environ)
    index, count, local_rank = place.index, place.count, place.local_rank
    local_size = _count_local(found, environ, index)
    if per_node := own[_PER_NODE]:
        index, local_rank = divmod(place.rank, per_node)
        count = -(-place.size // per_node)
        local_size = min(per_node, place.size - index * per_node)
    if (own_index := own[_INDEX]) is not None:
        index = own_index
    count = own[_COUNT] or max(count, index + 1)
    if index >= count:
        raise SettingError(f"{_INDEX}={index} needs {_COUNT} above it, but that is {count}.")
    return Node(
        index=index,
        count=count,
        rank=place.rank,
        local_rank=local_rank,
        world_size=place.size,
        hostname=socket.gethostname(),
        launcher=found[0].name if found else "local",
        job_id=_find_job_id(found, environ),
        cpu_count=count_cpus(),
        pool=bool(found) and found[0].pool and not per_node,
        local_size=max(local_size, 1),
        job_key=_find_job_key(found, environ),
        job_step=environ.get("SLURM_STEP_ID") if _is_step(found) else None,
        partition=environ.get("SLURM_JOB_PARTITION") or environ.get("PBS_QUEUE") or None,
    )


@functools.cache
def count_cpus() -> int:
    """Return the number of logical CPUs of this host."""
    # Python 3.13 takes `os.cpu_count` from PYTHON_CPU_COUNT, where that is set. The C library reads
    # a file of sysfs: 0.1 ms.
    known = os.sysconf("SC_NPROCESSORS_ONLN") if hasattr(os, "sysconf") else os.cpu_count()
    return max(1, known or 1)


def hide_launcher(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment without every launcher's rank, for a command that is its own job.

    The schedulers' job ids stay, and so do the variables that say which devices the job owns.
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


def _locate(found: list[Launcher], environ: Mapping[str, str]) -> _Place:
    """Return the place that the launchers describe.

    Args:
        found: The active launchers, the innermost first.
        environ: Environment variables of the process.
    """
    if not found:
        return _Place()
    row = found[0]
    rank = _read_number(environ, row.rank) or 0
    size = max(_read_first(environ, row.size) or 1, rank + 1)
    local_rank = _read_number(environ, row.local_rank)
    local_size = _read_number(environ, row.local_size)
    node = _read_number(environ, row.node)
    told = row.daemon(environ) if row.daemon is not None else None
    if row.pool or not row.rank:
        index, count = 0, 1
    elif told:
        index, count = told
    elif node is not None:
        nodes = _read_first(environ, row.nodes) or -(-size // (local_size or 1))
        index, count = node, max(nodes, node + 1)
    elif local_rank is None or local_size is None:
        index, count = rank, size
    else:
        index, count = _divide_ranks(environ, rank, size, local_rank, local_size)
    if row.groups and (outer := _locate_group(found[1:], environ)):
        index, count = outer.index, outer.count
        local_rank = outer.local_rank * (local_size or 1) + (local_rank or 0)
    # Azure's own list is right for every launcher.
    addresses = [a for a in re.split(r"[;,\s]+", environ.get(_AZURE_NODES, "")) if a]
    if (address := environ.get(_AZURE_NODE, "")) in addresses:
        index, count = addresses.index(address), len(addresses)
    return _Place(index, count, rank, local_rank or 0, size)


def _divide_ranks(
    environ: Mapping[str, str], rank: int, size: int, local_rank: int, local_size: int
) -> tuple[int, int]:
    """Return the node's index and count for ranks that fill nodes in blocks, or in turns."""
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


def _locate_group(rows: list[Launcher], environ: Mapping[str, str]) -> _Place | None:
    """Return the place of the group of ranks itself, if one of the rows started the groups."""
    groups = _read_number(environ, "GROUP_WORLD_SIZE")
    starters = [
        row
        for row in rows
        if row.rank not in ("", "RANK") and _read_first(environ, row.size) == groups
    ]
    return _locate(starters[:1], environ) if starters else None


def _count_local(found: list[Launcher], environ: Mapping[str, str], index: int) -> int:
    """Return the number of processes of the job on this node; 1 if unknown."""
    if not found or found[0].pool:
        return 1
    if found[0].name == "slurm":
        # Slurm lists all nodes, such as `4(x2),1`.
        text = environ.get("SLURM_STEP_TASKS_PER_NODE", "")
        parts = re.findall(r"(\d+)(?:\(x(\d+)\))?", text)
        each = [int(tasks) for tasks, times in parts for _ in range(int(times or 1))]
        return each[index] if index < len(each) else 1
    here = _read_number(environ, found[0].local_size) or 1
    if found[0].groups and _locate_group(found[1:], environ):
        return here * _count_local(found[1:2], environ, index)
    return here


def _is_active(row: Launcher, environ: Mapping[str, str]) -> bool:
    """Return whether the row's variables are set, valid, and of the innermost launcher."""
    if not all(environ.get(name) for name in row.marks):
        return False
    rank = _read_number(environ, row.rank)
    if row.rank in row.marks and rank is None:
        return False
    return all(_read_number(environ, name) in (None, rank) for name in row.agrees)


def _find_job_key(found: list[Launcher], environ: Mapping[str, str]) -> str | None:
    """Return a key that identifies this launch of this job; None if there is no id."""
    ids = [environ.get(name, "") for name in _JOB_IDS]
    ids.append(environ.get("SLURM_STEP_ID", "") if _is_step(found) else "")
    # One batch job may call mpiexec several times. Ray has no job yet when it starts its workers.
    ids += [environ.get(row.job, "") for row in found[:1] if row.job not in _JOB_IDS]
    known = [text for text in ids if text.strip("f")]
    if not known:
        return _find_job_id(found, environ)
    repeated = environ.get("SLURM_RESTART_COUNT", "0")
    return "/".join([found[0].name if found else "local", *known, f"try {repeated}"])


def _is_step(found: list[Launcher]) -> bool:
    return bool(found) and found[0].name == "slurm" and bool(found[0].rank)


def _find_job_id(found: list[Launcher], environ: Mapping[str, str]) -> str | None:
    array, task = (environ.get(f"SLURM_ARRAY_{name}", "") for name in ("JOB_ID", "TASK_ID"))
    if array and task:
        return f"{array}_{task}"  # what squeue and sacct show
    for name in (*_JOB_IDS, *(row.job for row in found)):
        # Ray starts its workers before it knows their job; "ffffffff" is not an id.
        if name and environ.get(name, "").strip("f"):
            return environ[name]
    index = environ.get("JOB_COMPLETION_INDEX")
    pod = environ.get("HOSTNAME", "")
    # The pod of an indexed job has the host name <job>-<index>.
    return pod.removesuffix(f"-{index}") if index and pod.endswith(f"-{index}") else None


def _read_first(environ: Mapping[str, str], names: tuple[str, ...]) -> int | None:
    numbers = (_read_number(environ, name) for name in names)
    return next((number for number in numbers if number is not None), None)


def _read_number(environ: Mapping[str, str], name: str) -> int | None:
    text = environ.get(name, "").strip() if name else ""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= _MAX_DIGITS else None
