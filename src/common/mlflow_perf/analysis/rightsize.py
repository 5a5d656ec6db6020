"""How many cores, how much memory, how many nodes and GPUs to ask for, with the evidence.

Imports runs. Nothing recommended is ever below what was seen to be used.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

from mlflow_perf.analysis.peak_usage import PeakUsage, read_peak_usage
from mlflow_perf.errors import RunNotFoundError, SettingError
from mlflow_perf.tracking.perf_run import PerfRun

__all__ = ["RightSize", "right_size"]

CPU_TOLERANCE = 0.05
"""Cores by which a peak may stand above a whole number and still be taken for it: the kernel counts
CPU time in ticks of 10 ms, so that one busy thread reads as up to 1.02 cores over a second."""

SERIAL_PEAK, SERIAL_AVERAGE = 1.2, (0.5, 1.05)
"""A job whose average is in this range and whose peak is not above this runs on one CPU: what goes
beyond it is helper threads for an instant, and the ticks of short intervals."""

MEMORY_STEP_MB = 64
MEMORY_MIN_MB = 128
_MOST = 1e15
_OOM_FACTOR = 1.5
_SATURATED_PCT = 90.0
_THROTTLED_PCT = 10.0
_TIGHT_PCT = 10.0
_TIME_STEP_MIN = 5


@dataclass(frozen=True)
class RightSize:
    """What to ask for.

    Attributes:
        cpus: Cores per node; None where no run has CPU figures.
        memory_mb: Memory per node, in MB of 2^20 bytes; None where no run has memory figures.
        nodes: Number of nodes.
        gpus: GPUs per node.
        evidence: What that rests on, in sentences.
        tasks_per_node: Ranks per node: on all nodes as many as the launcher had.
        minutes: A limit for the time, from the longest run; None where unknown.
        had: What the runs had, the largest of each: `cpus`, `memory_mb`, `nodes`, `gpus`.
        peak: What they were seen to use: the same keys.
    """

    cpus: int | None
    memory_mb: int | None
    nodes: int
    gpus: int
    evidence: tuple[str, ...] = ()
    tasks_per_node: int = 1
    minutes: int | None = None
    had: Mapping[str, float] = field(default_factory=dict)
    peak: Mapping[str, float] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """Return the recommendation as plain data: what `advise --json` prints."""
        return {
            "cpus": self.cpus,
            "memory_mb": self.memory_mb,
            "nodes": self.nodes,
            "gpus": self.gpus,
            "evidence": list(self.evidence),
        }


def right_size(runs: Sequence[PerfRun], *, headroom_pct: float = 20.0) -> RightSize:
    """Return what to ask for, from one run or from many of one component: the worst of them.

    Args:
        runs: Runs with figures; those without any are left out, and the evidence says so.
        headroom_pct: What to add to the peak memory and to the longest time, in per cent.

    Raises:
        RunNotFoundError: When none of the runs holds figures of its nodes.
        SettingError: When the head-room is negative or not finite.
    """
    if not (math.isfinite(headroom_pct) and headroom_pct >= 0):
        raise SettingError(f"The head-room must be at least 0 per cent, not {headroom_pct}.")
    needs = [found for run in runs if (found := read_peak_usage(run))]
    if not needs:
        raise RunNotFoundError(_nothing(runs))
    nodes = max(map(_nodes_needed, needs))
    cpus, of_cpus = _cpus(needs, nodes)
    memory_mb, of_memory = _memory(needs, nodes, headroom_pct)
    gpus = math.ceil(_worst(needs, nodes, lambda need: need.gpus)[0])
    return RightSize(
        cpus,
        memory_mb,
        nodes,
        gpus,
        (*_basis(runs, needs), *of_cpus, *of_memory, *_of_nodes(needs, nodes), *_of_gpus(needs)),
        tasks_per_node=max(_ranks(of_run, nodes) for of_run in needs),
        minutes=_minutes(needs, headroom_pct),
        had=_largest(needs, _had),
        peak=_largest(needs, _used),
    )


def _nothing(runs: Sequence[PerfRun]) -> str:
    if len(runs) == 1:
        return f"The run {runs[0].label} holds no figures of its nodes: there is nothing to advise."
    return f"None of the {len(runs)} runs holds figures of its nodes: there is nothing to advise."


def _flat(needs: Sequence[Sequence[PeakUsage]]) -> list[PeakUsage]:
    return [need for of_run in needs for need in of_run]


def _had(need: PeakUsage) -> dict[str, float]:
    return {"cpus": need.owned_cores, "memory_mb": need.owned_memory_mb, "gpus": need.owned_gpus}


def _used(need: PeakUsage) -> dict[str, float]:
    return {"cpus": need.cores or 0, "memory_mb": need.memory_mb or 0, "gpus": need.gpus}


def _largest(
    needs: Sequence[Sequence[PeakUsage]], figures: Callable[[PeakUsage], dict[str, float]]
) -> dict[str, float]:
    found = [figures(need) for need in _flat(needs)]
    largest = {key: max(figure[key] for figure in found) for key in found[0]}
    return {**largest, "nodes": max(map(len, needs))}


def _worst(
    needs: Sequence[Sequence[PeakUsage]], nodes: int, value: Callable[[PeakUsage], float | None]
) -> tuple[float, PeakUsage]:
    """Return the largest need per node when each run's work is put on `nodes` nodes, and whose."""
    best = -1.0, needs[0][0]
    for of_run in needs:
        values = sorted((value(need) or 0.0 for need in of_run), reverse=True)
        # What one node did may be one process: it moves as a whole, beside the largest others.
        peak = sum(values[: _moved_together(of_run, nodes)])
        if peak > best[0]:
            best = peak, max(of_run, key=lambda need: value(need) or 0.0)
    return best


def _moved_together(of_run: Sequence[PeakUsage], nodes: int) -> int:
    """Return of how many of its nodes one holds the work when a run is put on `nodes` nodes."""
    return math.ceil(len(of_run) / nodes)


def _ranks(of_run: Sequence[PeakUsage], nodes: int) -> int:
    """Return the ranks per node with which a run has as many on `nodes` nodes as it had."""
    return max(need.tasks for need in of_run) * _moved_together(of_run, nodes)


def _nodes_needed(of_run: Sequence[PeakUsage]) -> int:
    """Return on how many of its nodes a run's work would have fit, peaks beside each other.

    Fewer than it had only where the job's own cores and memory are known on every node, and no
    node waited for disks, network or memory: more nodes may have been taken for their bandwidth.
    """
    had = len(of_run)
    known = all(n.job_cores and n.job_memory and n.owned_cores for n in of_run)
    if had == 1 or not known or any(map(_is_tight, of_run)):
        return had
    cores = min(n.owned_cores for n in of_run) * (1 + CPU_TOLERANCE)
    gpus = max(1, min(n.owned_gpus for n in of_run))
    # Four fifths of the memory: the peaks of today are not those of tomorrow.
    memory = 0.8 * min(n.owned_memory_mb for n in of_run)
    together = min(
        _fitting([n.cores or 0.0 for n in of_run], cores),
        _fitting([n.gpus for n in of_run], gpus),
        _fitting([n.memory_mb or 0.0 for n in of_run], memory),
    )
    return math.ceil(had / together)


def _fitting(values: Sequence[float], room: float) -> int:
    """Return how many of the values fit into a node beside each other, whichever; at least one."""
    sums = accumulate(sorted(values, reverse=True))
    return max(1, sum(total <= room for total in sums))


def _is_tight(need: PeakUsage) -> bool:
    usage = need.usage
    stalls = ("io_stall_pct", "mem_stall_pct", "cpu_throttled_pct")
    return (
        usage["oom_kills"] > 0
        or any(usage[key] >= _TIGHT_PCT for key in stalls)
        or (usage.net_mb_s >= 10)
    )


def _cpus(needs: Sequence[Sequence[PeakUsage]], nodes: int) -> tuple[int | None, list[str]]:
    if all(need.cores is None for need in _flat(needs)):
        return None, ["No run says how many CPUs were busy: there is no advice on CPUs."]
    peak, whose = _worst(needs, nodes, lambda need: need.cores)
    of_whom = "the job" if whose.job_cores else "everything on the node (the job's own is unknown)"
    had = f" of {whose.owned_cores:g}" if whose.owned_cores else ""
    evidence = [f"CPU: {of_whom} kept at most {peak:.2f}{had} CPUs busy ({whose.where})."]
    wanted = peak
    slowed = max(_flat(needs), key=lambda need: need.usage["cpu_throttled_pct"])
    throttled = slowed.usage["cpu_throttled_pct"]
    if throttled >= _THROTTLED_PCT:
        # Its threads stood still for that share of the time: with it they would have used more.
        wanted = max(wanted, (slowed.owned_cores or peak) * (1 + throttled / 100.0))
        evidence.append(
            f"CPU: the quota held it back for {throttled:.0f}% of the time ({slowed.where}): "
            "it could use more than was seen."
        )
    elif whose.usage.busy_pct >= _SATURATED_PCT:
        evidence.append(
            f"CPU: they were {whose.usage.busy_pct:.0f}% busy throughout: with more it may be "
            "faster."
        )
    if wanted <= SERIAL_PEAK and all(map(_is_serial, _flat(needs))):
        evidence.append("CPU: its work is serial, one CPU is what it can use.")
        return 1, evidence
    return max(1, math.ceil(min(wanted, _MOST) - CPU_TOLERANCE)), evidence


def _is_serial(need: PeakUsage) -> bool:
    low, high = SERIAL_AVERAGE
    return (need.cores or 0.0) <= SERIAL_PEAK and low <= need.usage["job_cpu_avg_cores"] <= high


def _memory(
    needs: Sequence[Sequence[PeakUsage]], nodes: int, headroom_pct: float
) -> tuple[int | None, list[str]]:
    if all(need.memory_mb is None for need in _flat(needs)):
        return None, ["No run says how much memory was used: there is no advice on memory."]
    peak, whose = _worst(needs, nodes, lambda need: need.memory_mb)
    of_whom = "the job" if whose.job_memory else "everything on the node (the job's own is unknown)"
    had = f" of {whose.owned_memory_mb:,.0f}" if whose.owned_memory_mb else ""
    sentence = f"Memory: {of_whom} peaked at {peak:,.0f}{had} MB ({whose.where}); "
    evidence = [sentence + f"{headroom_pct:g}% head-room added."]
    wanted = peak * (1 + headroom_pct / 100.0)
    killed = [need for need in _flat(needs) if need.usage["oom_kills"] > 0]
    if killed:
        limit = max(max(n.owned_memory_mb, n.memory_mb or 0.0) for n in killed)
        wanted = max(wanted, limit * _OOM_FACTOR)
        evidence.append(
            f"Memory: the kernel killed processes for want of it ({killed[0].where}): the true "
            f"peak is unknown, so {_OOM_FACTOR:g} times what there was is advised."
        )
    return max(MEMORY_MIN_MB, _up(wanted, MEMORY_STEP_MB)), evidence


def _up(value: float, step: int) -> int:
    # A damaged document's figure may be infinite.
    return math.ceil(min(value, _MOST) / step) * step


def _basis(runs: Sequence[PerfRun], needs: Sequence[Sequence[PeakUsage]]) -> list[str]:
    if len(runs) == 1:
        return []
    left_out = len(runs) - len(needs)
    without = f"; {left_out} without figures left out" if left_out else ""
    return [f"From {len(needs)} runs, the worst of them counts{without}."]


def _of_nodes(needs: Sequence[Sequence[PeakUsage]], nodes: int) -> list[str]:
    had = max(map(len, needs))
    if had == 1:
        return []
    if nodes == had:
        return [f"Nodes: the work needs all {had}, or it is not known that it would fit on fewer."]
    return [f"Nodes: what {had} nodes used at their peaks, side by side, fits on {nodes} of them."]


def _of_gpus(needs: Sequence[Sequence[PeakUsage]]) -> list[str]:
    owned = max(need.owned_gpus for need in _flat(needs))
    if not owned:
        return []
    whose = max(_flat(needs), key=lambda need: need.gpus)
    busy = max(need.usage["gpu_avg_utilization_pct"] for need in _flat(needs))
    what = f"GPU: {whose.gpus} of {owned} per node did any work"
    return [f"{what}, {busy:.0f}% busy on average ({whose.where})."]


def _minutes(needs: Sequence[Sequence[PeakUsage]], headroom_pct: float) -> int | None:
    longest = max(need.usage["duration_sec"] for need in _flat(needs))
    if not longest:
        return None
    return _up(longest / 60.0 * (1 + headroom_pct / 100.0), _TIME_STEP_MIN)
