"""A workflow as plain data: steps, critical path, waiting, and recommendations."""

from __future__ import annotations

import math
import time
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from mlflow_perf.analysis.shared_nodes import charge_shared_nodes
from mlflow_perf.analysis.step_runs import StepRuns, explain_unread, name_steps, split_step
from mlflow_perf.analysis.workflow_findings import list_ends, list_findings
from mlflow_perf.analysis.workflow_steps import Step, StepNode, list_apart, sum_held_cpu_hours
from mlflow_perf.core.hooks import hooks
from mlflow_perf.model.document import BROKEN, SKIPPED
from mlflow_perf.model.metrics import RUN_METRICS
from mlflow_perf.tracking.perf_run import GROUP_TAG, IMPORTED_TAG, MEASURED_TAG, TAG, PerfRun
from mlflow_perf.tracking.reporting_notes import ReportingNotes
from mlflow_perf.tracking.search import find_children

_SLACK_SEC = 0.5
"""MLflow keeps times in ms and launchers take their time: a step may have waited for another one
that ended up to this long after the step began."""

_USED_KEYS = {"job_cpu_hours", "node_used_cpu_hours"}


@dataclass(frozen=True)
class Workflow:
    """A parent run and its children.

    Attributes:
        name: The parent's name.
        started: Unix time of the start or the first submission, in seconds.
        duration_sec: From the first start, or the first submission, to the last end.
        steps: The steps in the order of their starts.
        critical_path: Names of the steps that make up the length of the workflow, in order.
        totals: Figures of the whole.
        findings: Sentences, the most worthwhile first.
        status: The parent's own status. A command may fail though all the steps in it ended well.
    """

    name: str
    started: float
    duration_sec: float
    steps: tuple[Step, ...]
    critical_path: tuple[str, ...]
    totals: Mapping[str, float]
    findings: tuple[str, ...]
    status: str = ""

    def _repr_html_(self) -> str:
        """Return the page for a notebook."""
        return hooks.notebook_html(self)

    def as_dict(self) -> dict[str, Any]:
        """Return the workflow as plain data: `perf/workflow.json`, and the HTML's input."""
        data = asdict(self)
        for step in data["steps"]:
            step["depends_on"] = step["depends_on"] or ()
            for key in ("measured_by", "attempts", "part_of", "parts_sec"):
                del step[key]
            for node in step["nodes"]:
                del node["host_cores"]
        return data


def build_workflow(
    parent: PerfRun, steps: Sequence[PerfRun] | None = None, *, now: float | None = None
) -> Workflow | None:
    """Return the workflow of a parent run; None if it has no children.

    Args:
        parent: The run of the whole.
        steps: Its children; default: the children of the run in MLflow, with their documents.
        now: Unix time at which steps that still run are cut while the workflow runs, else at its
            end; default: now.
    """
    runs = find_children(parent, documents=True) if steps is None else list(steps)
    if not runs:
        return None
    # A step that outlives its workflow may be a killed one that nobody has ended.
    cut = parent.ended or (time.time() if now is None else now)
    named = name_steps(part for run in runs for part in split_step(run))
    built = _mark_parts([build_step(name, run, cut) for name, run in named.items()], runs)
    found = charge_shared_nodes(built)
    found.sort(key=lambda step: (step.started, step.name))
    begin = min(min(step.started, step.submitted or step.started) for step in found)
    if parent.started is not None:
        begin = min(begin, parent.started)
    ran = [step for step in found if not step.is_skipped] or found
    last = max(ran, key=_rank_end)
    end = last.ended if parent.ended is None else max(last.ended, parent.ended)
    before = _find_dependencies(found)
    # Going back from the last step, each link of the critical path is the dependency that ended
    # last.
    path = {last.name: None}
    name = last.name
    while earlier := [step for step in before[name] if step.name not in path]:
        name = max(earlier, key=_rank_end).name
        path[name] = None
    if last.is_skipped:  # none ran
        path.clear()
    notes = ReportingNotes(parent.tags, [(str(run.run_id), run.tags) for run in runs])
    measured = list(_list_blocks(parent, cut))
    split = (_split_gap(s, before[s.name], begin, notes, measured=measured) for s in found)
    marked = tuple(replace(step, critical=step.name in path) for step in split)
    totals = _sum_up(marked, end - begin, build_step("", parent, cut))
    tail_sec = min(notes.find(last.run_id).after_sec, end - last.ended)
    totals |= {key: totals[key] + tail_sec for key in ("reporting_sec", "critical_reporting_sec")}
    if not parent.nodes:  # else the parent's own report says what it did then
        totals["after_steps_sec"] = end - last.ended - tail_sec
    return Workflow(
        parent.name or parent.component or parent.label,
        started=begin,
        duration_sec=end - begin,
        steps=marked,
        critical_path=tuple(reversed(path)),
        totals=totals,
        findings=(
            *_explain_failure(parent, marked),
            *explain_unread(parent, len(runs)),
            *list_ends(marked, StepRuns(parent.label, parent, named).list_retried()),
            *list_findings(marked, totals, unnoted=_list_unnoted(parent, found, before, notes)),
        ),
        status=parent.status or "",
    )


def _mark_parts(steps: Sequence[Step], runs: Sequence[PerfRun]) -> list[Step]:
    """Return steps of which those that are later blocks of a pipeline's step name that step."""
    of_pipeline = {run.run_id for run in runs if f"{TAG}step" in run.tags}
    wholes = {step.run_id: step.name for step in reversed(steps) if step.run_id in of_pipeline}
    parts: dict[str, str] = {}
    parts_sec: dict[str, float] = defaultdict(float)
    for step in steps:
        if (whole := wholes.get(step.run_id, step.name)) != step.name:
            parts_sec[whole] += step.measured_sec
            parts[step.name] = whole
    return [
        replace(step, part_of=parts.get(step.name, ""), parts_sec=parts_sec[step.name])
        for step in steps
    ]


def _list_blocks(parent: PerfRun, now: float) -> Iterator[tuple[float, float]]:
    """Yield when the parent's own blocks began and ended; only a document tells that."""
    for part in parent.split():
        if part.document is not None:
            yield from ((node.started, node.ended) for node in build_step("", part, now).nodes)


def _rank_end(step: Step) -> tuple[float, float, str]:
    """Return what orders steps by their ends; of those that end together, the longest is last."""
    return step.ended, -step.started, step.name


def _list_unnoted(
    parent: PerfRun,
    steps: Sequence[Step],
    before: Mapping[str, Sequence[Step]],
    notes: ReportingNotes,
) -> set[str]:
    """Return the steps of a group before which mlflow-perf took a time that nobody has noted."""
    if GROUP_TAG not in parent.tags:
        return set()
    lost = {step.name for step in steps if step.nodes and not notes.is_whole(step.run_id)}
    return {s.name for s in steps if s.name in lost or any(b.name in lost for b in before[s.name])}


def _explain_failure(parent: PerfRun, steps: Sequence[Step]) -> list[str]:
    """Return a sentence on a parent that failed though none of its steps did."""
    if parent.status not in BROKEN or any(step.is_broken for step in steps):
        return []
    cause = parent.tags.get(f"{TAG}cause")
    reason = f" ({cause})" if cause else ""
    return [f"The whole is {parent.status}{reason}, though none of these steps failed."]


def build_step(name: str, run: PerfRun, now: float) -> Step:
    """Return a run as a step.

    Args:
        name: Name of the step.
        run: Its run.
        now: Unix time in seconds, for a run that has not ended.
    """
    nodes: list[StepNode] = []
    documents = run.document.nodes if run.document is not None else {}
    for index, summary in run.nodes.items():
        document = documents.get(index)
        began = document.started if document else None
        duration = summary.get("duration_sec")
        if duration is None and document is not None:
            duration = document.duration_sec
        begin = next(value for value in (began, run.started, now) if value is not None)
        host = document.node.get("hostname") if document else run.tags.get(f"{TAG}hostname")
        cores = document.node.get("cpu_count") if document else None
        host_cores = float(cores) if isinstance(cores, (int, float)) else 0.0
        if IMPORTED_TAG in run.tags:  # the hours of a task are those that its scheduler gave it
            host_cores = math.inf
        node = StepNode(index, begin, duration or 0.0, summary, str(host or ""), host_cores)
        nodes.append(node)
    starts = [node.started for node in nodes] + ([] if run.started is None else [run.started])
    if f"{TAG}step" in run.tags and run.started is not None and run.ended is not None:
        starts = [run.started]  # as its runner noted: the clock of its machine may be behind
    started = min(starts, default=now)
    ends = [node.ended for node in nodes]
    tried = run.tags.get(f"{TAG}attempts", "")
    # If somebody else ends the run late, or never, its work still ended with its last node.
    ended = run.ended if run.ended is not None else max(ends, default=max(now, started))
    if run.status == SKIPPED:
        ended = started  # its run exists for as long as it took to note that
    return Step(
        name,
        run_id=run.run_id,
        status=run.status,
        started=started,
        duration_sec=max(0.0, ended - started),
        nodes=tuple(nodes),
        figures=run.figures,
        depends_on=run.depends_on,
        advice=run.tags.get("mlflow_perf.advice", ""),
        bottleneck=run.verdict,
        params=dict(run.params),
        submitted=run.submitted or 0.0,
        measured_by=run.tags.get(MEASURED_TAG, ""),
        attempts=int(tried) if tried.isdecimal() and len(tried) < 10 else 1,
    )


def _split_gap(
    step: Step,
    before: Sequence[Step],
    begin: float,
    notes: ReportingNotes,
    *,
    measured: Sequence[tuple[float, float]],
) -> Step:
    """Return a step with the time that it waited, and with what mlflow-perf itself took of that.

    Args:
        step: The step.
        before: The steps that it depends on.
        begin: When the workflow began.
        notes: How long mlflow-perf took before and after each step.
        measured: Begin and end of the parent's own blocks. The parent was at work in one between
            the steps; one around steps says nothing of the time between them.
    """
    last = max(before, key=_rank_end, default=None)
    ready = max(begin if last is None else last.ended, step.submitted)
    block = min((node.started for node in step.nodes), default=step.started)
    spans = [(block - notes.find(step.run_id).before_sec, block, "own")]
    if last is not None:
        end = max((node.ended for node in last.nodes), default=last.ended)
        spans.append((end, end + notes.find(last.run_id).after_sec, "own"))
    slack = min(_SLACK_SEC, step.duration_sec / 2)
    low, high = ready - slack, step.started + slack
    spans += [(a, b, "work") for a, b in measured if low <= a <= b <= high]
    took, counted = {"own": 0.0, "work": 0.0}, ready
    for start, end, what in sorted(spans):
        until = min(end, step.started)
        took[what] += max(0.0, until - max(start, counted))
        counted = max(counted, until)
    # Nobody was going to start a skipped one; a part began when its step came to it.
    if step.is_skipped or step.part_of:
        return step
    waited_sec = max(0.0, step.started - ready - sum(took.values()))
    return replace(step, waited_sec=waited_sec, reporting_sec=took["own"])


def _find_dependencies(steps: Sequence[Step]) -> dict[str, list[Step]]:
    """Return the steps that each step waited for: as the runner noted, else by their times."""
    by_name = {step.name: step for step in steps}
    by_end = sorted(steps, key=_rank_end)
    ends = [step.ended for step in by_end]
    return {
        step.name: [by_name[name] for name in step.depends_on if name in by_name]
        if step.depends_on is not None
        else _find_last_before(step, by_end, ends)
        for step in steps
    }


def _find_last_before(step: Step, by_end: Sequence[Step], ends: Sequence[float]) -> list[Step]:
    """Return the step that ended last of those that were over when a step began, if any."""
    half = step.duration_sec / 2
    # Only the few that ended within the slack are looked at one by one: a workflow has 10,000.
    for i in reversed(range(bisect_right(ends, step.started + min(_SLACK_SEC, half)))):
        other = by_end[i]
        # No step waited for another one during more than half of either's time.
        was_over = other.ended <= step.started + min(_SLACK_SEC, other.duration_sec / 2, half)
        if other.started < step.started and was_over:
            return [other]
    return []


def _sum_used(steps: Sequence[Step], parent: Step) -> float:
    """Return the CPU hours that the steps used together.

    Steps that their parent measured, such as the trials of a search in one process, may each have
    the time of all: together they used at most what the parent did. Steps that another step
    measured used nothing besides it.
    """
    total = inside = 0.0
    for step in list_apart(steps):
        if step.measured_by == parent.run_id and parent.nodes:
            inside += step.used_cpu_hours
        else:
            total += step.used_cpu_hours
    return total + min(inside, parent.used_cpu_hours) if inside else total


def _sum_up(steps: Sequence[Step], duration_sec: float, parent: Step) -> dict[str, float]:
    summaries = [node.summary for step in list_apart(steps) for node in step.nodes]
    of_nodes = {m.key: m.compute(summaries) for m in RUN_METRICS}
    known = {k.removeprefix("run_"): v for k, v in of_nodes.items() if v is not None}
    known.pop("imbalance_pct", None)  # meaningless over different steps
    known.pop("job_cpu_avg_cores", None)  # the steps' means are of different times
    used = _sum_used(steps, parent)
    if "job_cpu_hours" in known:
        known["job_cpu_hours"] = min(known["job_cpu_hours"], used)
    if "job_cpu_hours" in known and duration_sec > 0:
        known["job_cpu_avg_cores"] = 3600.0 * known["job_cpu_hours"] / duration_sec
    hosts = {node.hostname for step in steps for node in step.nodes if node.hostname}
    if summaries:
        # Steps run on the same nodes, one after the other or side by side.
        known["node_count"] = float(len(hosts) or max(len(step.nodes) for step in steps))
    if "cpu_hours" in known:
        held = sum_held_cpu_hours(steps)
        # What nobody used is of the measured blocks; what the steps did not use is of all the time.
        known["cpu_hours"] = held
        # Where no step's source told the CPU time, nobody knows how much of it was unused.
        if any(_USED_KEYS & summary.keys() for summary in summaries):
            known["job_unused_cpu_hours"] = held - min(held, used)
    if "unused_cpu_hours" in known:
        known["unused_cpu_hours"] = min(known["unused_cpu_hours"], known["cpu_hours"])
    critical = [step for step in steps if step.critical]
    wholes = [step for step in steps if not step.part_of]
    return {
        **known,
        "duration_sec": duration_sec,
        "steps": float(len(steps)),
        "failed_steps": float(sum(step.is_broken for step in steps)),
        "running_sec": sum(step.duration_sec for step in wholes),
        "measured_sec": sum(step.measured_sec for step in steps),
        "outside_sec": sum(step.outside_sec for step in wholes if step.nodes),
        "waited_sec": sum(step.waited_sec for step in steps),
        "reporting_sec": sum(step.reporting_sec for step in steps),
        "critical_running_sec": sum(step.duration_sec for step in critical),
        "critical_waited_sec": sum(step.waited_sec for step in critical),
        "critical_reporting_sec": sum(step.reporting_sec for step in critical),
    }
