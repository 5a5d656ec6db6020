"""Slurm's accounting as `sacct --parsable2` or `--parsable` prints it.

https://slurm.schedmd.com/sacct.html
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate

from mlflow_perf.core.format import format_count
from mlflow_perf.histories.table import Row, Table
from mlflow_perf.histories.tasks import Task, Workflow
from mlflow_perf.tracking.fleet_sums import USER_TAG

_STATUS = {
    "COMPLETED": "FINISHED",
    "CANCELLED": "KILLED",
    "PREEMPTED": "KILLED",
    "REQUEUED": "KILLED",
    "REVOKED": "KILLED",
    "FAILED": "FAILED",
    "TIMEOUT": "FAILED",
    "DEADLINE": "FAILED",
    "NODE_FAIL": "FAILED",
    "BOOT_FAIL": "FAILED",
    "OUT_OF_MEMORY": "FAILED",
    "OUT_OF_ME+": "FAILED",
}
_OUT_OF_MEMORY = ("OUT_OF_ME",)
_PER_CORE = re.compile(r"c$", re.IGNORECASE)
_ALLOCATED = re.compile(r"\bmem=(\d+(?:\.\d+)?)([KMGTP]?)\b")
_GPUS = re.compile(r"\bgres/gpu=(\d+)\b")
_GPUS_OF_TYPE = re.compile(r"\bgres/gpu:[^=,]+=(\d+)\b")
_HOSTS = re.compile(r"([^,\[\]]+)(?:\[([\d,-]+)\])?")
_MOST_HOSTS = 100_000
_MOST_THREADS = 8.0  # of a core: a cluster may count cores as its CPUs
_TASK_TAGS = {
    "Cluster": "cluster",
    "Partition": "partition",
    "NodeList": "hostname",
    "JobID": "job_id",
}


def is_accounting(table: Table) -> bool:
    """Return whether the heading line is that of sacct."""
    names = set(table.header)
    return {"JobID", "State"} <= names and bool({"Elapsed", "ElapsedRaw"} & names)


def read_accounting(tables: Sequence[Table]) -> list[Workflow]:
    """Return a workflow per file; each attempt of a job is a task, with the peaks of its steps.

    Raises:
        SettingError: A line cannot be read; the message names file and line.
    """
    found = []
    for table in tables:
        attempts = _gather_attempts(table.rows(partial(_rejoin, table=table)))
        doubts: list[str] = []
        tasks = [task for rows in attempts if (task := _read_job(rows, doubts)) is not None]
        name, left_out = table.path.name.partition(".")[0], len(attempts) - len(tasks)
        found.append(Workflow("sacct", name, tuple(tasks), left_out, tuple(doubts)))
    return found


def _gather_attempts(rows: Iterable[Row]) -> list[list[Row]]:
    """Return the lines of each attempt of each job: its own, and then those of its steps.

    A job that was queued again has the same number in all its attempts, and one attempt's lines
    follow the other's. Where a line stands there twice, the last one counts.
    """
    attempts: dict[tuple[str, ...], dict[str, Row]] = {}
    current: dict[tuple[str, str], tuple[str, ...]] = {}
    for row in rows:
        name = row.text("JobID")
        job, _, step = name.partition(".")
        number = row.text("Cluster"), job
        if not step or number not in current:
            current[number] = (*number, _name_attempt(row))
        attempts.setdefault(current[number], {})[name] = row
    return [[*steps.values()] for steps in attempts.values()]


def _name_attempt(job: Row) -> str:
    """Return what tells an attempt of a job from another one; without times, all of its line."""
    return job.text("Start") or "/".join(job.cells.values())


def _rejoin(cells: list[str], table: Table) -> list[str]:
    """Return the cells of a line whose job name holds the separator: sacct does not quote it."""
    if "JobName" not in table.header:
        return cells
    at, extra = table.header.index("JobName"), len(cells) - len(table.header)
    name = table.delimiter.join(cells[at : at + extra + 1])
    joined = [*cells[:at], name, *cells[at + extra + 1 :]]
    return joined if joined[table.header.index("State")][:1].isupper() else cells


def _read_job(rows: Sequence[Row], doubts: list[str]) -> Task | None:
    """Return a job from its own line and those of its steps; None if it still runs or never ran.

    Args:
        rows: These lines.
        doubts: Gets what is left out because it cannot be.
    """
    job = next((row for row in rows if "." not in row.text("JobID")), rows[0])
    states = [row.text("State").split(" ")[0] for row in rows]
    status = _STATUS.get(job.text("State").split(" ")[0])
    ran = job.seconds("ElapsedRaw", "Elapsed")
    if status is None or ran is None or (ran == 0 and not job.text("Start")):
        return None  # it still runs, or was cancelled before it began
    name = job.text("JobName") or "job"
    nodes = max(1, int(job.number("NNodes", "AllocNodes") or 1))
    cpus = job.number("AllocCPUS", "NCPUS", "ReqCPUS")
    cpu_sec = job.seconds("TotalCPU", "UserCPU")
    # Elapsed times are whole seconds.
    if cpus and cpu_sec and cpu_sec > _MOST_THREADS * cpus * (ran + 1.0):
        most = f"more than {format_count(cpus, 'CPU')} can use in {ran:,.0f} s"
        doubts.append(f"{job.quote('TotalCPU', 'UserCPU')}, {most}")
        cpu_sec = None
    tags = {f"mlflow_perf.{tag}": job.text(name) for name, tag in _TASK_TAGS.items()}
    tags[USER_TAG] = job.text("User")
    steps = [step for row in rows if (step := _read_step(row, nodes)) is not None]
    return Task(
        key="/".join(
            (
                "sacct",
                job.text("Cluster"),
                job.text("JobIDRaw", "JobID"),
                job.text("Submit"),
                _name_attempt(job),
            )
        ),
        component=name,
        name=f"{name} ({job.text('JobID')})",
        status=status,
        duration_sec=ran,
        started=job.time("Start", "Submit"),
        submitted=job.time("Submit"),
        nodes=nodes,
        tasks_per_node=max(_count_tasks(row, nodes) for row in rows),
        cpus=cpus,
        gpus=_read_gpus(job.text("AllocTRES")),
        cpu_sec=cpu_sec or None,  # 0 where accounting did not gather any
        memory_limit_mb=_read_limit(job, nodes, cpus),
        peak_mb=_find_peak(steps) or None,
        disk_read_mb=_sum_tasks(rows, "MaxDiskRead", nodes),
        disk_write_mb=_sum_tasks(rows, "MaxDiskWrite", nodes),
        out_of_memory=any(state.startswith(_OUT_OF_MEMORY) for state in states),
        tags={name: text for name, text in tags.items() if text},
    )


def _sum_tasks(rows: Sequence[Row], name: str, nodes: int) -> float | None:
    """Return MB per node of all steps, from the largest task of each; None if nobody gathered any.

    Args:
        rows: The lines of a job and of its steps.
        name: The column.
        nodes: How many nodes the job had.
    """
    of_steps = [
        largest_mb * max(1.0, row.number("NTasks") or 1.0) / nodes
        for row in rows
        if (largest_mb := row.size_mb(name, unit="M")) is not None
    ]
    return sum(of_steps) if of_steps else None


@dataclass(frozen=True)
class _StepMemory:
    """The memory of one step of a job.

    Attributes:
        peak_mb: Its peak on each of its nodes.
        began: Unix time, in seconds; None if unknown.
        ended: Unix time, in seconds.
        hosts: Its nodes.
    """

    peak_mb: float
    began: float | None
    ended: float
    hosts: frozenset[str]


def _read_step(row: Row, nodes: int) -> _StepMemory | None:
    """Return the memory of a step; None if accounting did not gather it.

    Args:
        row: Its line.
        nodes: How many nodes the job had.
    """
    largest_mb = row.size_mb("MaxRSS")
    if largest_mb is None:
        return None
    # It is that of the largest task alone: times the tasks per node.
    per_node = _count_tasks(row, nodes)
    began, took = row.time("Start"), row.seconds("ElapsedRaw", "Elapsed") or 0.0
    hosts = frozenset(_list_hosts(row.text("NodeList")))
    return _StepMemory(largest_mb * per_node, began, (began or 0.0) + took, hosts)


def _count_tasks(row: Row, nodes: int) -> int:
    """Return how many tasks a step had on each of its nodes, or on those of its job."""
    on = max(1.0, row.number("NNodes", "AllocNodes") or nodes)
    return math.ceil(max(1.0, row.number("NTasks") or 1.0) / on)


def _list_hosts(text: str) -> Iterator[str]:
    """Yield the hosts of a list such as `n1,rack[01-03,7]`; an empty name where it is unknown."""
    for name, numbers in _HOSTS.findall(text) or [("", "")]:
        for part in numbers.split(","):
            first, _, last = part.partition("-")
            if first.isdigit() and last.isdigit() and int(last) - int(first) < _MOST_HOSTS:
                width = len(first)
                yield from (f"{name}{i:0{width}}" for i in range(int(first), int(last) + 1))
            else:
                yield f"{name}{part}"


def _find_peak(steps: Sequence[_StepMemory]) -> float:
    """Return the most memory that steps may have had at one moment on a node; 0.0 without steps.

    Steps that ran at the same moment may have had their peaks at different times: it is an upper
    bound for them. A step whose times are unknown counts alone.
    """
    largest = max((step.peak_mb for step in steps), default=0.0)
    changes: dict[str, list[tuple[float, bool, float]]] = {}
    for step in steps:
        # Times are whole seconds. Steps of less than one may have run one after the other.
        if step.began is not None and step.ended > step.began:
            for host in step.hosts:
                of_host = changes.setdefault(host, [])
                # At one moment, those that end come before those that begin.
                of_host.append((step.began, True, step.peak_mb))
                of_host.append((step.ended, False, -step.peak_mb))
    for of_host in changes.values():
        of_host.sort()
        largest = max(largest, *accumulate(change for _, _, change in of_host))
    return largest


def _read_limit(job: Row, nodes: int, cpus: float | None) -> float | None:
    """Return the memory per node that the job had, in MB; None where that is not known.

    `AllocTRES` has the memory of all nodes. `ReqMem` is that per core (`4Gc`), per node (`4Gn`),
    or, since Slurm 21.08, that of the nodes which the job asked for: Slurm may have given it more
    nodes, each with as much.
    """
    if (allocated := _ALLOCATED.search(job.text("AllocTRES"))) is not None:
        return float(allocated[1]) * 1024.0 ** ("KMGTP".index(allocated[2] or "M") - 1) / nodes
    asked, text = job.size_mb("ReqMem", unit="M"), job.text("ReqMem")
    if not asked:
        return None
    if _PER_CORE.search(text):
        return asked * (cpus or 1.0) / nodes
    return asked if nodes == 1 or text.endswith("n") else None


def _read_gpus(allocated: str) -> int | None:
    """Return the GPUs of all nodes of a job from its `AllocTRES`; None where that is empty.

    Where Slurm keeps account of single types of GPUs alone, their sum counts.
    """
    if not allocated:
        return None
    found = _GPUS.findall(allocated) or _GPUS_OF_TYPE.findall(allocated)
    return sum(map(int, found))
