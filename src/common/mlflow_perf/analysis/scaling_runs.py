"""The scaling of a component, from its runs on several numbers of nodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mlflow_perf.analysis.scaling import Scaling, fit
from mlflow_perf.errors import RunNotFoundError, SettingError
from mlflow_perf.tracking.perf_run import PerfRun


@dataclass(frozen=True)
class ScalingPoint:
    """One run on some number of nodes."""

    run_id: str | None
    nodes: int
    seconds: float


@dataclass(frozen=True)
class ScalingStudy:
    """What the runs of a component say about other numbers of nodes.

    Attributes:
        component: The component.
        points: Its runs, by number of nodes.
        scaling: The fit.
        counts: The numbers of nodes to predict.
        fastest: Of these, the one with the shortest run time.
        cheapest: Of these, the one with the fewest node-hours.
    """

    component: str
    points: tuple[ScalingPoint, ...]
    scaling: Scaling
    counts: tuple[int, ...]
    fastest: int
    cheapest: int

    def as_dict(self) -> dict[str, Any]:
        """Return the study as plain data: the output of `scale --json`."""
        predictions = []
        for nodes in self.counts:
            low, high = self.scaling.interval(nodes)
            seconds = self.scaling.predict(nodes)
            predictions.append(
                {
                    "nodes": nodes,
                    "seconds": seconds,
                    "low_seconds": low,
                    "high_seconds": high,
                    "node_hours": nodes * seconds / 3600.0,
                }
            )
        return {
            "component": self.component,
            "points": [vars(point) for point in self.points],
            "serial_sec": self.scaling.a,
            "parallel_sec": self.scaling.b,
            "coordination_sec": self.scaling.c,
            "idle_nodes": self.scaling.idle,
            "note": self.scaling.note,
            "predictions": predictions,
            "fastest": self.fastest,
            "cheapest": self.cheapest,
        }


def group_points(runs: Sequence[PerfRun]) -> Mapping[str, list[ScalingPoint]]:
    """Return the runs that ended well, by component: how many nodes they had, and their time."""
    found: dict[str, list[ScalingPoint]] = {}
    for run in runs:
        times = [node["duration_sec"] for node in run.nodes.values() if "duration_sec" in node]
        seconds = max(times, default=run.metrics.get("duration_sec", 0.0))
        if run.status in (None, "FINISHED") and seconds > 0:
            point = ScalingPoint(run.run_id, run.node_count, seconds)
            found.setdefault(run.component or run.label, []).append(point)
    return {name: sorted(p, key=lambda p: (p.nodes, p.seconds)) for name, p in found.items()}


def study_scaling(
    component: str, points: Sequence[ScalingPoint], *, nodes: Sequence[int] = ()
) -> ScalingStudy:
    """Return what runs on several numbers of nodes say about others.

    Args:
        component: The component.
        points: Its runs.
        nodes: The numbers of nodes to predict; by default the measured numbers, and doublings up to
            twice the largest.

    Raises:
        RunNotFoundError: When no run ended well.
        SettingError: When all runs had the same number of nodes, or a number is not above zero.
    """
    if not points:
        raise RunNotFoundError(f"No run of {component} ended well: there is no scaling to see.")
    measured = sorted({point.nodes for point in points})
    if len(measured) < 2:
        raise SettingError(
            f"All runs of {component} had {measured[0]} node{'s' * (measured[0] > 1)}: "
            "scaling needs runs on two numbers of nodes, better three."
        )
    if any(count < 1 for count in nodes):
        raise SettingError(f"A number of nodes must be above zero, not {min(nodes)}.")
    doubled = {measured[0] * 2**i for i in range(64) if measured[0] * 2**i <= 2 * measured[-1]}
    counts = tuple(sorted(set(nodes) or doubled | set(measured)))
    scaling = fit((point.nodes, point.seconds) for point in points)
    return ScalingStudy(
        component, tuple(points), scaling, counts, scaling.fastest(counts),
        scaling.cheapest(counts),
    )  # fmt: skip
