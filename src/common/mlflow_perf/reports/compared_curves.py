"""The curves of compared runs over each other, aligned at their starts or by their phases."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any

from mlflow_perf.analysis.phases import read_phases
from mlflow_perf.errors import MlflowPerfError
from mlflow_perf.model.document import NodeDocument
from mlflow_perf.reports.charts import CHARTS, Chart, Curve, CurveSource
from mlflow_perf.reports.curves import NodeCurves, build_curves
from mlflow_perf.tracking.load import read_documents
from mlflow_perf.tracking.perf_run import PerfRun

Phases = Sequence[tuple[str, float, float]]
"""Name, begin and end of each phase, in seconds from the run's start."""

_OWN = (
    Chart("job_cpu", "Job's CPUs", "cores", "CPUs that the job's own processes kept busy.",
          (Curve("job_cpu_cores", "job"),)),
    Chart("job_delay", "Threads waiting for a CPU", "", "Threads of the job that could run, but "
          "waited for a CPU.", (Curve("job_run_delay_sec", "waiting", CurveSource.RATE),)),
)  # fmt: skip
_OF_JOB = ("job_memory", "job_io", "gpu")
_OF_NODE = (
    Chart("others_cpu", "CPUs used by others", "cores", "CPUs of the node that others kept busy.",
          (Curve("others_cpu_cores", "others"),), minor=True),
)  # fmt: skip
_FOLDED = ("network", "disk", "job_threads")
_PARTS = ("name", "title", "unit", "meaning", "top", "stacked", "minor")
_MOST_STEPS, _MOST_RUNS, _MOST_NODES = 8, 20, 64


@dataclass(frozen=True)
class _Run:
    """One run of a step: its longest node's curves and phases."""

    curves: NodeCurves | None
    phases: Phases


def build_compared_curves(
    labels: Sequence[str],
    steps: Mapping[str, Sequence[Iterable[NodeDocument]]],
    *,
    baseline: int = 0,
) -> list[dict[str, Any]]:
    """Return the curves of each step as the page's script reads them.

    Args:
        labels: The runs' names.
        steps: Step → per run its nodes, with their curves; none for a run without the step.
        baseline: Index of the run whose phases the others are aligned with.
    """
    named = {chart.name: chart for chart in CHARTS}
    charts = [
        *_OWN,
        *(named[name] for name in _OF_JOB),
        *_OF_NODE,
        *(replace(named[name], minor=True) for name in _FOLDED),
    ]
    lines = [
        replace(chart, curves=(curve,), name=f"{chart.name}_{curve.column}", title=title)
        for chart in charts
        for curve in chart.curves
        if curve.role == "line"
        for title in [chart.title if len(chart.curves) == 1 else f"{chart.title}: {curve.label}"]
    ]
    sets = []
    for step, runs in list(steps.items())[:_MOST_STEPS]:
        read = [_read_longest(index, nodes) for index, nodes in enumerate(runs)]
        curves = build_curves((run.curves for run in read), charts=lines)
        if curves is None:
            continue
        drawn = {k: v for k, v in curves.values.items() if any(any(one or ()) for one in v)}
        described = []
        for chart in lines:
            if chart.curves[0].column in drawn:
                (curve,) = chart.curves
                shown = {"key": curve.column, "label": curve.label, "role": curve.role}
                described.append({**{p: getattr(chart, p) for p in _PARTS}, "curves": [shown]})
        sets.append(
            {
                "title": step,
                "started": 0,
                "x": curves.x,
                "nodes": curves.nodes,
                "names": [f"{index + 1} {labels[index]}" for index in curves.nodes],
                "charts": described,
                "values": {chart.curves[0].column: drawn[chart.curves[0].column]
                           for chart in lines if chart.curves[0].column in drawn},
                "spread": {},
                "phases": [],
                **_align(read, curves.nodes, baseline),
            }
        )  # fmt: skip
    return sets


def read_nodes(
    steps: Sequence[Mapping[str, PerfRun]],
) -> dict[str, Sequence[Iterator[NodeDocument]]]:
    """Return per step the nodes of each run; they are read when the page draws them.

    Args:
        steps: Per run its steps by name, from `Comparison.steps`.
    """
    names = dict.fromkeys(name for of_run in steps for name in of_run)
    if len(steps) > _MOST_RUNS:
        return {}
    return {name: [_read_run(of_run.get(name)) for of_run in steps] for name in names}


def _read_run(run: PerfRun | None) -> Iterator[NodeDocument]:
    if run is None or run.node_count > _MOST_NODES:
        return
    with suppress(MlflowPerfError):  # the figures may be there without a document
        for document in read_documents((run.experiment_id and run.run_id) or Path(run.label)):
            found = document.components.get(run.component or "", document)
            yield from found.nodes.values()


def _read_longest(index: int, nodes: Iterable[NodeDocument]) -> _Run:
    """Return the node that took longest: the run waited for it."""
    longest: NodeDocument | None = None
    for node in nodes:
        if longest is None or (node.duration_sec or 0.0) > (longest.duration_sec or 0.0):
            longest = node
    curves = None if longest is None else NodeCurves.from_document(index, longest)
    if longest is None or curves is None:
        return _Run(None, [])
    phases = [(p.name, p.start_s, p.end_s) for p in read_phases(longest)]
    return _Run(replace(curves, seconds=curves.seconds - curves.seconds[0]), phases)


def _align(runs: Sequence[_Run], shown: Sequence[int], baseline: int) -> dict[str, Any]:
    """Return what aligns the runs with the baseline's phases; nothing without two phases."""
    base = runs[baseline]
    if len(base.phases) < 2 or base.curves is None:
        return {}
    end = float(base.curves.seconds[-1])
    ends = [run.curves.seconds[-1] if run.curves is not None else 0.0 for run in runs]
    bands = [
        {"name": name, "start": round(start, 2), "end": round(stop, 2)}
        for name, start, stop in base.phases
    ]
    anchors = [
        find_anchors(base.phases, end, runs[index].phases, float(ends[index])) for index in shown
    ]
    return {"anchors": anchors, "bands": bands, "end": round(end, 2)}


def find_anchors(
    base: Phases, base_end: float, other: Phases, other_end: float
) -> list[tuple[float, float]]:
    """Return which seconds of a run are which seconds of the baseline: edges of equal phases.

    Args:
        base: The baseline's phases.
        base_end: Its length.
        other: The run's phases.
        other_end: Its length.
    """
    names = [[name for name, *_ in phases] for phases in (base, other)]
    blocks = SequenceMatcher(None, names[0], names[1], autojunk=False).get_matching_blocks()
    edges = [(0.0, 0.0)]
    for block in blocks:
        for i in range(block.size):
            (_, *mine), (_, *its) = base[block.a + i], other[block.b + i]
            edges += zip(its, mine, strict=True)
    edges.append((other_end, base_end))
    anchors = edges[:1]
    for own, matched in edges[1:]:
        # Both must grow, so that each moment has one place.
        if own > anchors[-1][0] and matched > anchors[-1][1]:
            anchors.append((round(own, 3), round(matched, 3)))
    return anchors
