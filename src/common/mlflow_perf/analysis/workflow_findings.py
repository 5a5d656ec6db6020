"""What stands out in a workflow, as sentences. Imports steps."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence

from mlflow_perf.analysis.workflow_steps import Step, StepNode

__all__ = ["findings_of", "stragglers"]

_STRAGGLER_FACTOR = 1.25
_IMBALANCE_PCT = 25.0
_WAIT_SHARE = 0.1
_UNUSED_SHARE = 0.5
_OUTSIDE_SHARE = 0.2
_OUTSIDE_MIN_SEC = 2.0
_LONGEST_SEC = 1e15  # a damaged document's time may be infinite
_NAMED_MAX = 5


def findings_of(
    steps: Sequence[Step], path: Sequence[str], totals: Mapping[str, float]
) -> Iterator[str]:
    """Yield what stands out, the most worthwhile first.

    Args:
        steps: The steps of the workflow.
        path: Names of the steps on the critical path.
        totals: Figures of the whole.
    """
    yield from _broken(steps)
    yield from _longest(steps, path, totals)
    yield from _waiting(steps, totals)
    yield from _outside(steps, totals)
    yield from _unused(steps)
    for step in steps:
        yield from _uneven(step)
    yield from _silent(steps)


def _broken(steps: Sequence[Step]) -> Iterator[str]:
    broken = [f"{step.name} ({step.status})" for step in steps if step.status in _BROKEN]
    if broken:
        yield f"Did not finish: {_some(broken)}."


_BROKEN = ("FAILED", "KILLED")


def _longest(
    steps: Sequence[Step], path: Sequence[str], totals: Mapping[str, float]
) -> Iterator[str]:
    whole = totals["duration_sec"]
    step = max((s for s in steps if s.name in path), key=lambda s: s.duration_sec)
    if whole <= 0 or step.duration_sec <= 0:
        return
    share = 100 * min(1.0, step.duration_sec / whole)
    yield (
        f"Change first: {step.name}, on the critical path with {_time(step.duration_sec)}, "
        f"{share:.0f}% of the workflow.{_reason(step)}"
    )


def _reason(step: Step) -> str:
    """Return why a step took long: its verdict, unless that is of a small part of its time."""
    if step.nodes and _measured(step) < 0.5 * step.duration_sec:
        outside = _time(step.duration_sec - _measured(step))
        return (
            f" {outside} of that passed outside its measured block (starting, importing, ending)."
        )
    return f" {step.advice}" if step.advice else ""


def _waiting(steps: Sequence[Step], totals: Mapping[str, float]) -> Iterator[str]:
    waited, whole = totals["critical_waited_sec"], totals["duration_sec"]
    if whole > 0 and waited >= _WAIT_SHARE * whole:
        longest = max((s for s in steps if s.critical), key=lambda s: s.waited_sec)
        yield (
            f"Waiting took {_time(waited)} of the critical path ({100 * waited / whole:.0f}%), "
            f"most of it before {longest.name} ({_time(longest.waited_sec)})."
        )


def _outside(steps: Sequence[Step], totals: Mapping[str, float]) -> Iterator[str]:
    """Yield how much of the steps' time passed before and after their measured blocks."""
    outside = {step.name: step.duration_sec - _measured(step) for step in steps if step.nodes}
    total = sum(outside.values())
    if total >= max(_OUTSIDE_MIN_SEC, _OUTSIDE_SHARE * totals["running_sec"]):
        most = max(outside, key=lambda name: outside[name])
        yield (
            f"{_time(total)} of the steps' {_time(totals['running_sec'])} passed outside their "
            f"measured blocks (starting, importing, ending), most of it in {most} "
            f"({_time(outside[most])})."
        )


def _measured(step: Step) -> float:
    begin = min(node.started for node in step.nodes)
    end = max(node.started + node.duration_sec for node in step.nodes)
    return min(step.duration_sec, max(0.0, end - begin))


def _unused(steps: Sequence[Step]) -> Iterator[str]:
    held = sum(step.total("node_cpu_hours") for step in steps)
    unused = sum(step.total("node_unused_cpu_hours") for step in steps)
    if held > 0 and unused >= _UNUSED_SHARE * held:
        step = max(steps, key=lambda s: s.total("node_unused_cpu_hours"))
        most = 100 * step.total("node_unused_cpu_hours") / unused
        yield (
            f"{100 * unused / held:.0f}% of the CPU-hours held were unused, "
            f"{most:.0f}% of those in {step.name}."
        )


def _uneven(step: Step) -> Iterator[str]:
    late = stragglers(step.nodes)
    if late:
        slow = {node.index for node in late}
        others = statistics.median(n.duration_sec for n in step.nodes if n.index not in slow)
        names = [f"node {n.index} ({_time(n.duration_sec)})" for n in late]
        yield f"{step.name}: {_some(names)} took longer than the others ({_time(others)})."
    imbalance = step.figures.get("run_imbalance_pct", 0.0)
    if len(step.nodes) > 1 and imbalance >= _IMBALANCE_PCT:
        busiest = max(step.nodes, key=lambda n: n.summary.get("node_used_cpu_hours", 0.0))
        yield (
            f"{step.name}: node {busiest.index} did {imbalance:.0f}% more work than the mean of "
            f"the {len(step.nodes)} nodes: share the work more evenly."
        )


def stragglers(nodes: Sequence[StepNode]) -> list[StepNode]:
    """Return the nodes that took much longer than the others, the slowest first."""
    if len(nodes) < 2:
        return []
    middle = statistics.median_low(node.duration_sec for node in nodes)
    late = [node for node in nodes if node.duration_sec > max(_STRAGGLER_FACTOR * middle, 0.1)]
    return sorted(late, key=lambda node: -node.duration_sec) if len(late) < len(nodes) else []


def _silent(steps: Sequence[Step]) -> Iterator[str]:
    silent = [step.name for step in steps if not step.nodes]
    if silent:
        yield f"Without performance data: {_some(silent)}; wrap them in mlflow_perf.report()."


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMED_MAX} more" if len(names) > _NAMED_MAX else ""
    return ", ".join(names[:_NAMED_MAX]) + more


def _time(seconds: float) -> str:
    """Return a duration for people: `0.4 s`, `12 s`, `3 min 20 s`, `2 h 05 min`."""
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(min(seconds, _LONGEST_SEC))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
