"""The steps of a workflow as records. Imports nothing of ours."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

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

    def as_dict(self) -> dict[str, Any]:
        """Return the node as plain data."""
        return {
            "index": self.index,
            "started": self.started,
            "duration_sec": self.duration_sec,
            "summary": dict(self.summary),
        }


@dataclass(frozen=True)
class Step:
    """One step of a workflow.

    Attributes:
        name: Name of the step.
        run_id: Its run in MLflow.
        status: `FINISHED`, `FAILED`, `KILLED`, `RUNNING`; None where unknown.
        started: Unix time, in seconds.
        duration_sec: How long it ran; up to now where it still does.
        waited_sec: From when it could have begun to when it did.
        nodes: Its nodes, by index.
        figures: Its run-level metrics.
        critical: Whether it is on the critical path.
        depends_on: Names of the steps before it; None where the runner noted nothing.
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

    def total(self, key: str) -> float:
        """Return the sum of a metric over the nodes; 0.0 where none has it."""
        return sum(node.summary.get(key, 0.0) for node in self.nodes)

    def as_dict(self) -> dict[str, Any]:
        """Return the step as plain data."""
        return {
            "name": self.name,
            "run_id": self.run_id,
            "status": self.status,
            "started": self.started,
            "duration_sec": self.duration_sec,
            "waited_sec": self.waited_sec,
            "nodes": [node.as_dict() for node in self.nodes],
            "figures": dict(self.figures),
            "critical": self.critical,
            "depends_on": list(self.depends_on or ()),
            "advice": self.advice,
            "bottleneck": self.bottleneck,
        }
