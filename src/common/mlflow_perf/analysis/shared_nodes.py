"""Divides the cost of a machine among steps that ran on it at the same time.

A step's report is of the whole node. The reports of two steps that ran at the same time on the same
node each hold all of its CPUs and count each other's work as busy time. Summed up as they are, the
node would be held twice and its work be done twice.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from mlflow_perf.analysis.workflow_steps import Step, StepNode, hold_host, list_apart
from mlflow_perf.model.metrics import RUN_METRICS

_HOUR_SEC = 3600.0
_TRAFFIC = ("total_disk_io_read_mb", "total_disk_io_write_mb")
_PRICES = ("node_cost", "node_unused_cost")
_CHANGED = (
    "run_cpu_hours", "run_unused_cpu_hours", "run_cpu_avg_utilization_pct", "run_cost",
    "run_unused_cost", "run_total_disk_io_read_mb", "run_total_disk_io_write_mb",
)  # fmt: skip


_Stay = tuple[tuple[str, int], StepNode]
"""A step's name and the index of its node, and what that node did."""


def charge_shared_nodes(steps: Sequence[Step]) -> list[Step]:
    """Return the steps with the hours that each is charged.

    A step that shared its node is charged the CPU time of its own processes, and a part of what
    processes besides the steps used and of the idle time. All parts together are the node, held
    once. Without the CPU time of its processes, and where its host is unknown or its CPUs are
    nobody else's, a step keeps its report's figures. So does one whose work another step measured
    as its own: it shared the node with nobody by that.
    """
    stays: dict[str, list[_Stay]] = {}
    for step in list_apart(steps):
        for node in step.nodes:
            is_shared = node.hostname and not math.isinf(node.host_cores)
            if is_shared and "job_cpu_hours" in node.summary:
                stays.setdefault(node.hostname, []).append(((step.name, node.index), node))
    charged: dict[tuple[str, int], Mapping[str, float]] = {}
    for of_host in stays.values():
        for group in _find_overlapping(of_host):
            charged.update(_charge(group))
    return [_with_charges(step, charged) for step in steps]


def _find_overlapping(stays: Sequence[_Stay]) -> Iterator[list[_Stay]]:
    """Yield the groups of two stays or more that hang together in time."""
    group: list[_Stay] = []
    end = -math.inf
    for stay in sorted(stays, key=lambda s: (s[1].started, s[1].ended)):
        if stay[1].started >= end:
            if len(group) > 1:
                yield group
            group = []
        group.append(stay)
        end = max(end, stay[1].ended)
    if len(group) > 1:
        yield group


def _charge(group: Sequence[_Stay]) -> dict[tuple[str, int], dict[str, float]]:
    """Return the summaries of stays that overlap, with what each is charged."""
    held_hours = hold_host((node.started, node.ended, node) for _, node in group)
    rest = max(0.0, held_hours - sum(node.used_cpu_hours for _, node in group))
    idle = [node.summary.get("node_unused_cpu_hours", math.inf) for _, node in group]
    # No more than all saw together: of what stays on different CPUs saw, nothing counts twice.
    unused = max(0.0, min(sum(idle), rest - _find_others_share(group) * held_hours))
    alone = {place: node.cores * node.duration_sec / _HOUR_SEC for place, node in group}
    time_shares = _find_time_shares(group)
    scales = {key: _find_scale(group, time_shares, key) for key in _TRAFFIC}
    whole = sum(alone.values())
    charged = {}
    for place, node in group:
        part = alone[place] / whole if whole > 0 else 1.0 / len(group)
        summary = dict(node.summary)
        held = node.used_cpu_hours + rest * part
        summary.update(node_cpu_hours=held, node_used_cpu_hours=held - unused * part,
                       node_unused_cpu_hours=unused * part)  # fmt: skip
        summary.update({key: summary[key] * time_shares[place] * scale
                        for key, scale in scales.items() if key in summary})  # fmt: skip
        scale = held / alone[place] if alone[place] > 0 else 1.0
        summary.update({k: summary[k] * scale for k in _PRICES if k in summary})
        charged[place] = summary
    return charged


def _find_others_share(group: Sequence[_Stay]) -> float:
    """Return the share of their CPUs that processes besides all stays kept busy, from 0 to 1.

    A report does not tell who else was busy on its node, so what the other stays used at the time,
    at their mean rates, is taken off.
    """
    used_until = _integrate(
        ((node.started, node.ended, node.used_cpu_hours / node.duration_sec)
         for _, node in group if node.duration_sec > 0), lambda rate: rate
    )  # fmt: skip
    others = held = 0.0
    for _, node in group:
        own = used_until.get(node.ended, 0.0) - used_until.get(node.started, 0.0)
        others += max(0.0, node.summary.get("node_used_cpu_hours", own) - own)
        held += node.summary.get("node_cpu_hours", 0.0)
    return min(1.0, others / held) if held > 0 else 0.0


def _find_time_shares(group: Sequence[_Stay]) -> dict[tuple[str, int], float]:
    """Return which share of its time each stay has, where those of a moment have it evenly."""
    until = _integrate(
        ((node.started, node.ended, 1.0) for _, node in group), lambda count: 1.0 / round(count)
    )
    return {
        place: (until[node.ended] - until[node.started]) / node.duration_sec
        if node.duration_sec > 0 else 0.0
        for place, node in group
    }  # fmt: skip


def _find_scale(
    group: Sequence[_Stay], time_shares: Mapping[tuple[str, int], float], key: str
) -> float:
    """Return what the charges of a traffic need so as not to be less than what one stay saw."""
    seen = [(node.summary.get(key, 0.0), time_shares[place]) for place, node in group]
    charged = sum(traffic * share for traffic, share in seen)
    return max(1.0, max(traffic for traffic, _ in seen) / charged) if charged > 0 else 1.0


def _integrate(
    spans: Iterable[tuple[float, float, float]], of: Callable[[float], float]
) -> dict[float, float]:
    """Return, at each begin and end, the integral over time until then of a function of a sum.

    Args:
        spans: Begin, end and value of each; the sum is that of the values at a moment.
        of: The function; it is not called while there is no span.
    """
    changes = sorted(
        change for begin, end, value in spans for change in ((begin, 1, value), (end, -1, -value))
    )
    until: dict[float, float] = {}
    integral, count, total, last = 0.0, 0, 0.0, 0.0
    for moment, one, value in changes:
        integral += of(total) * (moment - last) if count else 0.0
        until[moment] = integral
        count, total, last = count + one, total + value, moment
    return until


def _with_charges(step: Step, charged: Mapping[tuple[str, int], Mapping[str, float]]) -> Step:
    """Return a step with the summaries of its nodes, and its figures, as charged."""
    if not any((step.name, node.index) in charged for node in step.nodes):
        return step
    nodes = tuple(
        replace(node, summary=charged.get((step.name, node.index), node.summary))
        for node in step.nodes
    )
    summaries = [node.summary for node in nodes]
    figures = {m.key: m.compute(summaries) for m in RUN_METRICS if m.key in _CHANGED}
    known = {key: value for key, value in figures.items() if value is not None}
    return replace(step, nodes=nodes, figures={**step.figures, **known})
