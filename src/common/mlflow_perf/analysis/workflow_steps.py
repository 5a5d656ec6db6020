"""The steps of a workflow as records."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = ["Step", "StepNode"]


@dataclass(frozen=True)
class StepNode:
    """What one node did of a step.

    Attributes:
        index: Index of the node.
        started: Unix time, in seconds.
        duration_sec: How long it took.
        summary: Metric key → value.
    """

    index: int
    started: float
    duration_sec: float
    summary: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Step:
    """One step of a workflow.

    Attributes:
        name: Name of the step.
        started: Unix time, in seconds.
        duration_sec: How long it ran; until now if it still runs.
        run_id: Its run in MLflow.
        status: `FINISHED`, `FAILED`, `KILLED`, `RUNNING`; None if unknown.
        waited_sec: From the end of what it depends on to its start.
        nodes: Its nodes, by index.
        figures: Its run-level metrics.
        critical: Whether it is on the critical path.
        depends_on: Names of the steps before it; None if the runner noted nothing.
        advice: The verdict's sentence.
        bottleneck: The verdict.
    """

    name: str
    started: float
    duration_sec: float
    run_id: str | None = None
    status: str | None = None
    waited_sec: float = 0.0
    nodes: tuple[StepNode, ...] = ()
    figures: Mapping[str, float] = field(default_factory=dict)
    critical: bool = False
    depends_on: tuple[str, ...] | None = None
    advice: str = ""
    bottleneck: str = ""

    @property
    def ended(self) -> float:
        """Unix time of the end, in seconds."""
        return self.started + self.duration_sec

    @property
    def is_broken(self) -> bool:
        """Whether the step failed or was killed."""
        return self.status in ("FAILED", "KILLED")

    @property
    def measured_sec(self) -> float:
        """How much of the step's time its measured blocks cover; 0.0 without any."""
        begin = min((node.started for node in self.nodes), default=0.0)
        end = max((node.started + node.duration_sec for node in self.nodes), default=0.0)
        return min(self.duration_sec, max(0.0, end - begin))

    def total(self, key: str) -> float:
        """Return the sum of a metric over the nodes; 0.0 if none has it."""
        return sum(node.summary.get(key, 0.0) for node in self.nodes)
