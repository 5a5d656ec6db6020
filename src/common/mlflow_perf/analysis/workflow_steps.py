"""The steps of a workflow as records, and the CPU time that they held together."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from mlflow_perf.model.document import BROKEN, SKIPPED

_HOUR_SEC = 3600.0


@dataclass(frozen=True)
class StepNode:
    """What one node did of a step.

    Attributes:
        index: Index of the node.
        started: Unix time, in seconds.
        duration_sec: How long its measured block took.
        summary: Metric key → value.
        hostname: Its host; empty if unknown.
        host_cores: The CPUs of the host; 0.0 if unknown, infinite where those that the node holds
            are nobody else's: a scheduler gave them to it alone.
    """

    index: int
    started: float
    duration_sec: float
    summary: Mapping[str, float] = field(default_factory=dict)
    hostname: str = ""
    host_cores: float = 0.0

    @property
    def ended(self) -> float:
        """Unix time of the block's end, in seconds."""
        return self.started + self.duration_sec

    @property
    def cores(self) -> float:
        """The CPUs that it held; 0.0 if unknown."""
        if "cpu_limit_cores" in self.summary:
            return self.summary["cpu_limit_cores"]
        held = self.summary.get("node_cpu_hours", 0.0)
        return _HOUR_SEC * held / self.duration_sec if self.duration_sec > 0 else 0.0

    @property
    def used_cpu_hours(self) -> float:
        """CPU time of the job's own processes; where that is unknown, of all processes."""
        busy = self.summary.get("node_used_cpu_hours", 0.0)
        return self.summary.get("job_cpu_hours", busy)


@dataclass(frozen=True)
class Step:
    """One step of a workflow.

    Attributes:
        name: Name of the step.
        started: Unix time, in seconds.
        duration_sec: How long it ran; until now if it still runs.
        run_id: Its run in MLflow.
        status: `FINISHED`, `FAILED`, `KILLED`, `RUNNING`; None if unknown.
        waited_sec: From the end of its dependencies to its start, and only since it was submitted;
            without `reporting_sec`.
        reporting_sec: How much of that time mlflow-perf took itself: for the report of the step
            before, and to start. At least: only the notes of a group's steps tell it.
        nodes: Its nodes, by index.
        figures: Its run-level metrics.
        critical: Whether it is on the critical path.
        depends_on: Names of the steps before it; None if the runner noted nothing.
        advice: The verdict's sentence.
        bottleneck: The verdict.
        params: The parameters of its run.
        submitted: Unix time, in seconds; 0.0 where only its dependencies tell when it could begin.
        measured_by: The run whose figures contain its own; empty where there is none.
        attempts: How often a pipeline tried it; its nodes are those of the last attempt.
        part_of: The step whose time contains its own, as a later block of that step's script;
            empty where there is none.
        parts_sec: How much of its time such parts of it cover.
    """

    name: str
    started: float
    duration_sec: float
    run_id: str | None = None
    status: str | None = None
    waited_sec: float = 0.0
    reporting_sec: float = 0.0
    nodes: tuple[StepNode, ...] = ()
    figures: Mapping[str, float] = field(default_factory=dict)
    critical: bool = False
    depends_on: tuple[str, ...] | None = None
    advice: str = ""
    bottleneck: str = ""
    params: Mapping[str, str] = field(default_factory=dict)
    submitted: float = 0.0
    measured_by: str = ""
    attempts: int = 1
    part_of: str = ""
    parts_sec: float = 0.0

    @property
    def ended(self) -> float:
        """Unix time of the end, in seconds."""
        return self.started + self.duration_sec

    @property
    def is_broken(self) -> bool:
        """Whether the step failed or was killed."""
        return self.status in BROKEN

    @property
    def is_skipped(self) -> bool:
        """Whether a pipeline never ran it: its times are those at which that was noted."""
        return self.status == SKIPPED

    @property
    def measured_sec(self) -> float:
        """How much of the step's time its measured blocks cover; 0.0 without any."""
        begin = min((node.started for node in self.nodes), default=0.0)
        end = max((node.ended for node in self.nodes), default=0.0)
        return min(self.duration_sec, max(0.0, end - begin))

    @property
    def outside_sec(self) -> float:
        """How much of the step's time passed outside its blocks: start-up and end."""
        return max(0.0, self.duration_sec - self.measured_sec - self.parts_sec)

    @property
    def held_cpu_hours(self) -> float:
        """CPU time that its nodes held from its start to its end."""
        return sum(node.cores for node in self.nodes) * self.duration_sec / _HOUR_SEC

    @property
    def used_cpu_hours(self) -> float:
        """CPU time that was used in its measured blocks."""
        return sum(node.used_cpu_hours for node in self.nodes)

    def total(self, key: str) -> float:
        """Return the sum of a metric over the nodes; 0.0 if none has it."""
        return sum(node.summary.get(key, 0.0) for node in self.nodes)


def list_apart(steps: Sequence[Step]) -> list[Step]:
    """Return the steps that no other step measured: the figures of those contain the others'."""
    ids = {step.run_id for step in steps}
    return [
        step
        for step in steps
        if step.measured_by in (step.run_id, "") or step.measured_by not in ids
    ]


def sum_held_cpu_hours(steps: Sequence[Step]) -> float:
    """Return the CPU time that steps held together: a host's CPUs count once at any moment.

    Nodes of unknown hosts count as one host per index, unless their CPUs are nobody else's.
    """
    by_host: dict[str, list[tuple[float, float, StepNode]]] = {}
    for step in steps:
        for node in step.nodes:
            host = node.hostname or f"node {node.index}"
            by_host.setdefault(host, []).append((step.started, step.ended, node))
    return sum(hold_host(stays) for stays in by_host.values())


def hold_host(stays: Iterable[tuple[float, float, StepNode]]) -> float:
    """Return the CPU hours that nodes held together on one host.

    Nodes that own different CPUs of the host hold them all; nodes that own the same ones hold them
    once. Where the host's CPUs are unknown, the largest node is taken for the host.

    Args:
        stays: Begin and end of each node's stay, Unix times in seconds, and the node.
    """
    later = sorted(stays, key=lambda stay: stay[:2], reverse=True)
    ends = sorted((end, node.cores) for _, end, node in later)[::-1]
    moments = sorted({moment for begin, end, _ in later for moment in (begin, end)})
    highest: list[tuple[float, float]] = []
    together = total_sec = 0.0
    for begin, end in pairwise(moments):
        while later and later[-1][0] <= begin:
            _, until, node = later.pop()
            heapq.heappush(highest, (-max(node.cores, node.host_cores), until))
            together += node.cores
        while ends and ends[-1][0] <= begin:
            together -= ends.pop()[1]
        while highest and highest[0][1] <= begin:
            heapq.heappop(highest)
        if highest:
            total_sec += min(-highest[0][0], together) * (end - begin)
    return total_sec / _HOUR_SEC
