"""Tasks that another system ran, as plain records."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Task:
    """One task of a workflow.

    A figure that is not in the source is None.

    Attributes:
        key: Names the task for ever, so that it is imported once.
        component: What ran: a process, a rule, a job's name.
        name: The task's own name.
        status: `FINISHED`, `FAILED` or `KILLED`.
        duration_sec: How long it ran.
        started: Unix time of its start, in seconds.
        submitted: Unix time from which it waited for its start, in seconds.
        nodes: On how many nodes it ran.
        tasks_per_node: The most ranks that it had on a node at once.
        cpus: CPUs that it held on all nodes.
        gpus: GPUs that it held on all nodes.
        cpu_sec: CPU time that it used.
        memory_limit_mb: Memory that it asked for, in MB of 2^20 bytes, per node.
        peak_mb: The most memory that it used, per node.
        disk_read_mb: Read from storage.
        disk_write_mb: Written to storage.
        out_of_memory: Whether it was killed for lack of memory; None if the source does not tell.
        params: What it was given: numbers that may predict its memory.
        tags: More facts about it.
    """

    key: str
    component: str
    name: str
    status: str
    duration_sec: float
    started: float | None = None
    submitted: float | None = None
    nodes: int = 1
    tasks_per_node: int = 1
    cpus: float | None = None
    gpus: int | None = None
    cpu_sec: float | None = None
    memory_limit_mb: float | None = None
    peak_mb: float | None = None
    disk_read_mb: float | None = None
    disk_write_mb: float | None = None
    out_of_memory: bool | None = None
    params: Mapping[str, float] = field(default_factory=dict)
    tags: Mapping[str, str] = field(default_factory=dict)

    @property
    def metrics(self) -> dict[str, float]:
        """The figures per node under the names that `report()` gives them."""
        hours = self.duration_sec / 3600.0
        found: dict[str, float | None] = {
            "duration_sec": self.duration_sec,
            "mem_limit_mb": self.memory_limit_mb,
            "job_max_mem_mb": self.peak_mb,
            "job_io_read_mb": self.disk_read_mb,
            "job_io_write_mb": self.disk_write_mb,
            "oom_kills": None if self.out_of_memory is None else float(self.out_of_memory),
        }
        if self.cpus is not None:
            found["cpu_limit_cores"] = self.cpus / self.nodes
            found["node_cpu_hours"] = self.cpus * hours / self.nodes
        if self.gpus is not None:
            found["node_gpu_hours"] = self.gpus * hours / self.nodes
        if self.cpu_sec is not None:
            used = self.cpu_sec / 3600.0 / self.nodes
            found["job_cpu_hours"] = used
            if self.duration_sec > 0:
                found["job_cpu_avg_cores"] = self.cpu_sec / self.duration_sec / self.nodes
            if self.cpus is not None:
                # What a task used beyond its share was others' share, and is no hour of its own.
                held = self.cpus * hours / self.nodes
                found["node_used_cpu_hours"] = min(used, held)
                found["node_unused_cpu_hours"] = max(0.0, held - used)
        return {key: value for key, value in found.items() if value is not None}


@dataclass(frozen=True)
class Workflow:
    """One workflow that another system ran.

    Attributes:
        source: `nextflow`, `snakemake` or `sacct`.
        name: Name of the workflow.
        tasks: Its tasks that ended, in the order of the source.
        left_out: How many tasks did not run, or still do.
        broken: The statuses of those that were to run, and that nothing ran in the place of.
        doubts: Figures that cannot be, and so are left out: the place of each, and why.
    """

    source: str
    name: str
    tasks: tuple[Task, ...]
    left_out: int = 0
    doubts: tuple[str, ...] = ()
    broken: frozenset[str] = frozenset()
