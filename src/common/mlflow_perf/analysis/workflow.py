"""A workflow as a whole: Gantt, critical path, waiting, and what to change first. Imports runs.

Builds plain data; the HTML, the terminal and the page render it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from mlflow_perf.analysis.step_runs import name_steps
from mlflow_perf.analysis.workflow_findings import findings_of
from mlflow_perf.analysis.workflow_steps import Step, StepNode
from mlflow_perf.model.metrics import RUN_METRICS
from mlflow_perf.tracking.perf_run import PerfRun
from mlflow_perf.tracking.search import find_children

__all__ = ["Workflow", "build_workflow"]

_SLACK_SEC = 0.5
"""MLflow keeps a run's start and end in ms and launchers take their time: what ended less than
this after another began may still have been waited for."""


@dataclass(frozen=True)
class Workflow:
    """A parent run and its children.

    Attributes:
        name: The parent's name.
        started: Unix time of the start, in seconds.
        duration_sec: From the first start to the last end.
        steps: The steps in the order of their starts.
        critical_path: Names of the steps that make up the length of the workflow, in order.
        totals: Figures of the whole.
        findings: What stands out, the most worthwhile first; sentences.
    """

    name: str
    started: float
    duration_sec: float
    steps: tuple[Step, ...]
    critical_path: tuple[str, ...]
    totals: Mapping[str, float]
    findings: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        """Return the workflow as plain data: `perf/workflow.json`, and what the HTML draws."""
        return {
            "name": self.name,
            "started": self.started,
            "duration_sec": self.duration_sec,
            "steps": [step.as_dict() for step in self.steps],
            "critical_path": list(self.critical_path),
            "totals": dict(self.totals),
            "findings": list(self.findings),
        }


def build_workflow(
    parent: PerfRun, steps: Sequence[PerfRun] | None = None, *, now: float | None = None
) -> Workflow | None:
    """Return the workflow of a parent run; None where it has no children.

    Args:
        parent: The run of the whole.
        steps: Its children; default: as MLflow knows them, with their documents.
        now: Unix time at which steps that are still going are cut; default: now.
    """
    runs = find_children(parent, documents=True) if steps is None else list(steps)
    if not runs:
        return None
    cut = time.time() if now is None else now
    found = [_step(name, run, cut) for name, run in name_steps(runs).items()]
    found.sort(key=lambda step: (step.started, step.name))
    begin = min([step.started for step in found] + _known(parent.started))
    end = max([step.ended for step in found] + _known(parent.ended))
    waited = [replace(step, waited_sec=_waited(step, found, begin)) for step in found]
    path = _critical_path(waited)
    marked = tuple(replace(step, critical=step.name in path) for step in waited)
    totals = _totals(marked, end - begin)
    name = parent.name or parent.component or parent.label
    findings = tuple(findings_of(marked, path, totals))
    return Workflow(name, begin, end - begin, marked, path, totals, findings)


def _known(value: float | None) -> list[float]:
    return [] if value is None else [value]


def _step(name: str, run: PerfRun, now: float) -> Step:
    nodes = tuple(_nodes(run, now))
    starts = [node.started for node in nodes] + _known(run.started)
    started = min(starts, default=now)
    ends = [node.started + node.duration_sec for node in nodes]
    # A run that somebody else ends late, or never, still ended its work when its nodes did.
    ended = run.ended if run.ended is not None else max(ends, default=max(now, started))
    return Step(
        name,
        run_id=run.run_id,
        status=run.status,
        started=started,
        duration_sec=max(0.0, ended - started),
        nodes=nodes,
        figures=run.figures,
        depends_on=run.depends_on,
        advice=run.tags.get("mlflow_perf.advice", ""),
        bottleneck=run.tags.get("mlflow_perf.bottleneck", ""),
    )


def _nodes(run: PerfRun, now: float) -> Iterator[StepNode]:
    documents = run.document.nodes if run.document is not None else {}
    for index, summary in run.nodes.items():
        document = documents.get(index)
        started = document.started if document else None
        duration = summary.get("duration_sec")
        if duration is None and document is not None:
            duration = document.duration_sec
        begin = next(value for value in (started, run.started, now) if value is not None)
        yield StepNode(index, begin, duration or 0.0, summary)


def _before(step: Step, steps: Sequence[Step]) -> list[Step]:
    """Return the steps that this one waited for: as the runner noted, else by the order of time."""
    if step.depends_on is not None:
        return [other for other in steps if other.name in step.depends_on]
    ended = [o for o in steps if o is not step and _was_over(o, step)]
    return [max(ended, key=lambda other: (other.ended, other.name))] if ended else []


def _was_over(other: Step, step: Step) -> bool:
    """Return whether a step was over when another began, half of it at least."""
    slack = min(_SLACK_SEC, other.duration_sec / 2, step.duration_sec / 2)
    return other.started < step.started and other.ended <= step.started + slack


def _waited(step: Step, steps: Sequence[Step], begin: float) -> float:
    ready = max([other.ended for other in _before(step, steps)], default=begin)
    return max(0.0, step.started - ready)


def _critical_path(steps: Sequence[Step]) -> tuple[str, ...]:
    """Return the chain that ends with the last step: each link is what the next waited for."""
    step = max(steps, key=lambda s: (s.ended, s.name))
    path = [step.name]
    while before := [s for s in _before(step, steps) if s.name not in path]:
        step = max(before, key=lambda s: (s.ended, s.name))
        path.append(step.name)
    return tuple(reversed(path))


def _totals(steps: Sequence[Step], duration_sec: float) -> dict[str, float]:
    summaries = [node.summary for step in steps for node in step.nodes]
    of_nodes = {m.key: m.compute(summaries) for m in RUN_METRICS}
    known = {k.removeprefix("run_"): v for k, v in of_nodes.items() if v is not None}
    for key in ("duration_sec", "imbalance_pct"):
        known.pop(key, None)  # of one step; over different steps they mean nothing
    return {
        "duration_sec": duration_sec,
        "steps": float(len(steps)),
        "failed_steps": float(sum(step.status in ("FAILED", "KILLED") for step in steps)),
        "running_sec": sum(step.duration_sec for step in steps),
        "waited_sec": sum(step.waited_sec for step in steps),
        "critical_running_sec": sum(step.duration_sec for step in steps if step.critical),
        "critical_waited_sec": sum(step.waited_sec for step in steps if step.critical),
        **known,
    }
