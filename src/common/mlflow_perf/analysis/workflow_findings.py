"""The findings about a workflow, as sentences."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence, Set

from mlflow_perf.analysis.workflow_steps import Step, StepNode
from mlflow_perf.core.format import cpu_time, duration, join_some

_STRAGGLER_FACTOR = 1.25
_UNEVEN_PCT = 25.0
_WORK_CORES = 0.1  # of a node that only waited there is nothing to share
_WAIT_SHARE = 0.1
_UNUSED_SHARE = 0.5
_OUTSIDE_SHARE = 0.2
_OUTSIDE_MIN_SEC = 2.0


def list_ends(steps: Sequence[Step], retried: Set[str] = frozenset()) -> Iterator[str]:
    """Yield which steps did not finish, never ran, or were tried again.

    Args:
        steps: The steps of the workflow.
        retried: Those that ended badly, and were tried again as steps of their own.
    """
    broken = [step for step in steps if step.is_broken and step.name not in retried]
    if broken:
        yield f"Did not finish: {join_some(f'{step.name} ({step.status})' for step in broken)}."
    if again := [step.name for step in steps if step.name in retried]:
        yield f"Did not finish, and was tried again: {join_some(again)}."
    if skipped := [step.name for step in steps if step.is_skipped]:
        yield f"Never ran: {join_some(skipped)}."
    repeated = [f"{step.name} ({step.attempts} attempts)" for step in steps if step.attempts > 1]
    if repeated:
        yield f"Tried more than once: {join_some(repeated)}; the figures are the last one's."


def list_findings(
    steps: Sequence[Step], totals: Mapping[str, float], *, unnoted: Set[str] = frozenset()
) -> Iterator[str]:
    """Yield what is worth while to change, the most worthwhile first.

    Args:
        steps: The steps of the workflow; those on the critical path are marked.
        totals: Figures of the whole.
        unnoted: The steps before which mlflow-perf took a time that is not known.
    """
    # A verdict on the blocks explains little where most of the time passed outside them.
    outside = list(_find_unmeasured(steps, totals["running_sec"]))
    is_news = totals["outside_sec"] >= 0.5 * totals["running_sec"]
    yield from outside if is_news else ()
    yield from _find_longest([step for step in steps if step.critical], totals["duration_sec"])
    waited, whole = totals["critical_waited_sec"], totals["duration_sec"]
    if whole > 0 and waited >= _WAIT_SHARE * whole:
        yield _tell_waiting([s for s in steps if s.critical], waited, whole, unnoted)
    rest = totals.get("after_steps_sec", 0.0)
    if whole > 0 and rest >= max(_OUTSIDE_MIN_SEC, _WAIT_SHARE * whole):
        yield (
            f"{duration(rest)} ({100 * rest / whole:.0f}% of the workflow) passed after the last "
            "step had ended: measure what runs then as a step, too."
        )
    own = totals["critical_reporting_sec"]
    if whole > 0 and own >= _WAIT_SHARE * whole:
        yield (
            f"mlflow-perf itself took {duration(own)} of the critical path "
            f"({100 * own / whole:.0f}%) to start and to report beside the steps; without it the "
            "workflow is that much shorter. Measure short steps together."
        )
    yield from () if is_news else outside
    held, unused = totals.get("cpu_hours", 0.0), totals.get("job_unused_cpu_hours", 0.0)
    if held > 0 and unused >= _UNUSED_SHARE * held:
        step = max(steps, key=lambda s: s.held_cpu_hours - s.used_cpu_hours)
        yield (
            f"{100 * unused / held:.0f}% of the {cpu_time(held)} held were unused by the steps' "
            f"measured blocks, most of it in {step.name}."
        )
    for step in steps:
        yield from _find_uneven(step)
    if running := [s.name for s in steps if s.status == "RUNNING" and not s.nodes]:
        yield (
            f"Without a report yet: {join_some(running)}. If it was killed, `mlflow-perf recover` "
            "on its machine stores what it left."
        )
    silent = [s.name for s in steps if not (s.nodes or s.is_skipped or s.name in running)]
    if silent:
        yield f"Without performance data: {join_some(silent)}; wrap them in mlflow_perf.report()."


def _tell_waiting(
    critical: Sequence[Step], waited_sec: float, whole_sec: float, unnoted: Set[str]
) -> str:
    longest = max(critical, key=lambda s: s.waited_sec)
    share = f"of the critical path ({100 * waited_sec / whole_sec:.0f}%)"
    most = f"most of it before {longest.name} ({duration(longest.waited_sec)})"
    unsure = [s.name for s in critical if s.name in unnoted and s.waited_sec > 0]
    if not unsure:
        return f"Waiting took {duration(waited_sec)} {share}, {most}."
    return (
        f"Waiting took up to {duration(waited_sec)} {share}, {most}: it is not known how much of "
        f"the time before {join_some(unsure)} mlflow-perf itself took."
    )


def _find_longest(critical: Sequence[Step], whole_sec: float) -> Iterator[str]:
    step = max(critical, key=lambda s: s.duration_sec, default=None)
    if step is None or whole_sec <= 0 or step.duration_sec <= 0:
        return
    share = 100 * min(1.0, step.duration_sec / whole_sec)
    reason = f" {step.advice}" if step.advice else ""
    # A verdict on a small part of the step's time does not explain the whole.
    if step.nodes and step.measured_sec < 0.5 * step.duration_sec:
        blocks = "blocks" if step.parts_sec else "block"
        reason = f" {duration(step.outside_sec)} of that passed outside its measured {blocks}."
    yield (
        f"Change first: {step.name}, on the critical path with {duration(step.duration_sec)}, "
        f"{share:.0f}% of the workflow.{reason}"
    )


def _find_unmeasured(steps: Sequence[Step], running_sec: float) -> Iterator[str]:
    """Yield how much of the steps' time passed before and after their measured blocks."""
    outside = {step.name: step.outside_sec for step in steps if step.nodes and not step.part_of}
    total = sum(outside.values())
    if total >= max(_OUTSIDE_MIN_SEC, _OUTSIDE_SHARE * running_sec):
        most = max(outside, key=lambda name: outside[name])
        earlier = ", earlier attempts" if any(step.attempts > 1 for step in steps) else ""
        yield (
            f"{duration(total)} of the steps' {duration(running_sec)} passed outside their "
            f"measured blocks (starting, importing, ending{earlier}), most of it in {most} "
            f"({duration(outside[most])})."
        )


def _find_uneven(step: Step) -> Iterator[str]:
    late = find_stragglers(step.nodes)
    if late:
        others = statistics.median(n.duration_sec for n in step.nodes if n not in late)
        names = join_some(f"node {n.index} ({duration(n.duration_sec)})" for n in late)
        yield f"{step.name}: {names} took longer than the others ({duration(others)})."
    if len(step.nodes) < 2:
        return
    busiest = max(step.nodes, key=lambda n: n.used_cpu_hours)
    mean = step.used_cpu_hours / len(step.nodes)
    had_work = 3600.0 * busiest.used_cpu_hours >= _WORK_CORES * busiest.duration_sec
    if had_work and mean > 0 and (more := 100 * (busiest.used_cpu_hours / mean - 1)) >= _UNEVEN_PCT:
        yield (
            f"{step.name}: node {busiest.index} did {more:.0f}% more work than the mean of "
            f"the {len(step.nodes)} nodes: share the work more evenly."
        )


def find_stragglers(nodes: Sequence[StepNode]) -> list[StepNode]:
    """Return the nodes that took much longer than the others, the slowest first."""
    if len(nodes) < 2:
        return []
    middle = statistics.median_low(node.duration_sec for node in nodes)
    late = [node for node in nodes if node.duration_sec > max(_STRAGGLER_FACTOR * middle, 0.1)]
    return sorted(late, key=lambda node: -node.duration_sec) if len(late) < len(nodes) else []
