"""Steps side by side on one machine: each is charged what it used, and the machine is held once.

A step's report is of the whole node. The reports of two steps that ran at the same time on the same
node each hold all of its CPUs and count each other's work as busy time. Summed up as they are, the
node would be held twice and its work be done twice.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from mlflow_perf.analysis.workflow_steps import Step, StepNode
from mlflow_perf.model.metrics import RUN_METRICS

__all__ = ["Host", "charge_shared_nodes"]

_HOUR_SEC = 3600.0
_OWN_IO = {"total_disk_io_read_mb": "job_io_read_mb", "total_disk_io_write_mb": "job_io_write_mb"}
_PRICES = ("node_cost", "node_unused_cost")
_CHANGED = (
    "run_cpu_hours", "run_unused_cpu_hours", "run_cpu_avg_utilization_pct", "run_cost",
    "run_unused_cost", "run_total_disk_io_read_mb", "run_total_disk_io_write_mb",
)  # fmt: skip


@dataclass(frozen=True)
class Host:
    """The machine that a node of a step was.

    Attributes:
        name: Its host name.
        cores: Its CPUs; 0.0 where unknown.
    """

    name: str
    cores: float = 0.0


@dataclass(frozen=True)
class _Stay:
    """The time that a node of a step spent on a host."""

    place: tuple[str, int]
    node: StepNode
    begin: float
    end: float
    cores: float


def charge_shared_nodes(steps: Sequence[Step], hosts: Mapping[tuple[str, int], Host]) -> list[Step]:
    """Return the steps with the hours that each is charged.

    A step that shared its node used the CPU time of its own processes, and holds besides a part of
    what nobody used: all parts together are the node, held once. Without the CPU time of its
    processes a step keeps its report's figures.

    Args:
        steps: The steps with their reports.
        hosts: Name of the step and index of the node → its machine, as far as known.
    """
    charged: dict[tuple[str, int], Mapping[str, float]] = {}
    for host in set(hosts.values()):
        stays = [
            _Stay((step.name, node.index), node, node.started, node.started + node.duration_sec,
                  node.summary.get("cpu_limit_cores", host.cores))
            for step in steps
            for node in step.nodes
            if hosts.get((step.name, node.index)) == host and "job_cpu_hours" in node.summary
        ]  # fmt: skip
        for group in _find_overlapping(stays):
            charged.update(_charge(group, host.cores))
    return [_with_charges(step, charged) for step in steps]


def _find_overlapping(stays: Sequence[_Stay]) -> Iterator[list[_Stay]]:
    """Yield the groups of two stays or more that hang together in time."""
    group: list[_Stay] = []
    for stay in sorted(stays, key=lambda s: (s.begin, s.end)):
        if group and stay.begin >= max(s.end for s in group):
            if len(group) > 1:
                yield group
            group = []
        group.append(stay)
    if len(group) > 1:
        yield group


def _charge(group: Sequence[_Stay], host_cores: float) -> dict[tuple[str, int], dict[str, float]]:
    """Return the summaries of stays that overlap, with what each is charged."""
    held_sec = 0.0
    for begin, end in pairwise(sorted({t for stay in group for t in (stay.begin, stay.end)})):
        there = [stay.cores for stay in group if stay.begin < end and stay.end > begin]
        # Steps that own different CPUs hold them all; steps that own the same ones hold them once.
        most = max(host_cores, *there) if there else 0.0
        held_sec += (end - begin) * min(most, sum(there))
    used = {stay.place: stay.node.summary["job_cpu_hours"] for stay in group}
    unused = max(0.0, held_sec / _HOUR_SEC - sum(used.values()))
    alone = {stay.place: stay.cores * (stay.end - stay.begin) / _HOUR_SEC for stay in group}
    whole = sum(alone.values())
    charged = {}
    for stay in group:
        idle = unused * alone[stay.place] / whole if whole > 0 else unused / len(group)
        summary = dict(stay.node.summary)
        held = used[stay.place] + idle
        summary.update(node_cpu_hours=held, node_used_cpu_hours=used[stay.place],
                       node_unused_cpu_hours=idle)  # fmt: skip
        summary.update({k: summary[own] for k, own in _OWN_IO.items() if own in summary})
        part = held / alone[stay.place] if alone[stay.place] > 0 else 1.0
        summary.update({k: summary[k] * part for k in _PRICES if k in summary})
        charged[stay.place] = summary
    return charged


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
