"""How many cores, how much memory, how many nodes and GPUs to ask for, with the evidence.

No recommendation is ever below the observed usage.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

from mlflow_perf.analysis.peak_usage import PeakUsage, read_peak_usage
from mlflow_perf.analysis.wanted_cpus import CPU_TOLERANCE, SERIAL_PEAK
from mlflow_perf.errors import RunNotFoundError, SettingError
from mlflow_perf.tracking.perf_run import TAG, PerfRun

__all__ = ["RightSize", "right_size"]

MEMORY_STEP_MB = 64
MEMORY_MIN_MB = 128
_MOST = 1e15  # a damaged document's figure may be infinite
_OOM_FACTOR = 1.5
_SATURATED_PCT = 90.0
_TIME_STEP_MIN = 5


@dataclass(frozen=True)
class RightSize:
    """What to ask for.

    Attributes:
        cpus: Cores per node; None if no run has CPU figures.
        memory_mb: Memory per node, in MB of 2^20 bytes; None if no run has memory figures.
        nodes: Number of nodes.
        gpus: GPUs per node.
        evidence: The reasons, in sentences.
        tasks_per_node: Ranks per node, so that all nodes together run as many as before.
        minutes: A time limit, from the longest run; None if unknown.
        had: The largest that the runs had of `cpus`, `memory_mb`, `nodes`, `gpus`.
        peak: The largest that they used, with the same keys.
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
        """Return the recommendation as plain data: the output of `advise --json`."""
        keys = ("cpus", "memory_mb", "nodes", "gpus")
        return {**{key: getattr(self, key) for key in keys}, "evidence": list(self.evidence)}


def right_size(runs: Sequence[PerfRun], *, headroom_pct: float = 20.0) -> RightSize:
    """Return what to ask for, from one run or from several of one component: the worst counts.

    Args:
        runs: Runs with figures; runs without any are left out, and the evidence says so.
        headroom_pct: What to add to the peak memory and to the longest time, in per cent.

    Raises:
        RunNotFoundError: When none of the runs holds figures of its nodes.
        SettingError: When the head-room is negative or not finite.
    """
    if not (math.isfinite(headroom_pct) and headroom_pct >= 0):
        raise SettingError(f"The head-room must be at least 0 per cent, not {headroom_pct}.")
    usages = [found for run in runs if (found := read_peak_usage(run))]
    if not usages:
        runs_hold = f"The run {runs[0].label} holds no"
        if len(runs) != 1:
            runs_hold = f"None of the {len(runs)} runs holds"
        why = f"{runs_hold} figures of its nodes"
        if launcher := runs[0].tags.get(f"{TAG}elsewhere"):
            why = (
                f"The work of {runs[0].label} is not measured: {launcher} had it started elsewhere"
            )
        raise RunNotFoundError(f"{why}: there is nothing to advise.")
    peaks = _Peaks(usages)
    cpus, cpu_evidence = _advise_cpus(peaks)
    memory_mb, memory_evidence = _advise_memory(peaks, headroom_pct)
    evidence = [*cpu_evidence, *memory_evidence, *_explain_nodes(peaks), *_explain_gpus(peaks)]
    if len(runs) > 1:
        left_out = len(runs) - len(usages)
        without = f"; {left_out} without figures left out" if left_out else ""
        evidence.insert(0, f"From {len(usages)} runs, the worst of them counts{without}.")
    longest = max(peak.usage["duration_sec"] for peak in peaks.all)
    minutes = _round_up(longest / 60.0 * (1 + headroom_pct / 100.0), _TIME_STEP_MIN)
    keys = ("cpus", "memory_mb", "gpus")
    had = [(peak.owned_cores, peak.owned_memory_mb, peak.owned_gpus) for peak in peaks.all]
    used = [(peak.cores or 0, peak.memory_mb or 0, peak.gpus) for peak in peaks.all]
    nodes = {"nodes": max(map(len, usages))}
    return RightSize(
        cpus,
        memory_mb,
        peaks.nodes,
        math.ceil(peaks.find_worst(lambda peak: peak.gpus)[0]),
        tuple(evidence),
        tasks_per_node=max(
            max(peak.tasks for peak in run) * peaks.consolidated(run) for run in usages
        ),
        minutes=minutes if longest else None,
        had={**dict(zip(keys, map(max, zip(*had, strict=True)), strict=True)), **nodes},
        peak={**dict(zip(keys, map(max, zip(*used, strict=True)), strict=True)), **nodes},
    )


class _Peaks:
    """The peak usage of all runs, and the number of nodes on which each run's work fits.

    Attributes:
        runs: The peak usage of each run's nodes.
        all: The peak usage of all nodes of all runs.
        nodes: The number of nodes to ask for.
    """

    def __init__(self, runs: Sequence[Sequence[PeakUsage]]) -> None:
        self.runs = runs
        self.all = [peak for run in runs for peak in run]
        self.nodes = max(map(_count_needed_nodes, runs))

    def consolidated(self, run: Sequence[PeakUsage]) -> int:
        """Return how many of a run's nodes share one node after consolidation."""
        return math.ceil(len(run) / self.nodes)

    def find_worst(self, figure: Callable[[PeakUsage], float | None]) -> tuple[float, PeakUsage]:
        """Return the largest peak of one node after consolidation, and the node it comes from."""
        best = -1.0, self.all[0]
        for run in self.runs:
            values = sorted((figure(peak) or 0.0 for peak in run), reverse=True)
            # A node's work may be one process, so it moves as a whole, beside the largest others.
            total = sum(values[: self.consolidated(run)])
            if total > best[0]:
                best = total, max(run, key=lambda peak: figure(peak) or 0.0)
        return best


def _count_needed_nodes(run: Sequence[PeakUsage]) -> int:
    """Return how many of its nodes a run needs if the peaks of several nodes fit on one.

    The answer is less than the run had only if the job's own cores and memory are known on every
    node, and no node waited for disks, network or memory: nodes may have been added for their
    bandwidth.
    """
    had = len(run)
    known = all(peak.job_cores and peak.job_memory and peak.owned_cores for peak in run)
    if had == 1 or not known or any(peak.is_tight for peak in run):
        return had
    limits = [
        ([peak.cores or 0.0 for peak in run],
         min(peak.owned_cores for peak in run) * (1 + CPU_TOLERANCE)),
        ([float(peak.gpus) for peak in run], max(1, min(peak.owned_gpus for peak in run))),
        # Only four fifths of the memory: tomorrow's peaks may be higher.
        ([peak.memory_mb or 0.0 for peak in run],
         0.8 * min(peak.owned_memory_mb for peak in run)),
    ]  # fmt: skip
    together = min(
        sum(total <= room for total in accumulate(sorted(values, reverse=True)))
        for values, room in limits
    )
    return math.ceil(had / max(1, together))


def _advise_cpus(peaks: _Peaks) -> tuple[int | None, list[str]]:
    if all(peak.cores is None for peak in peaks.all):
        return None, ["No run says how many CPUs were busy: there is no advice on CPUs."]
    cores, worst = peaks.find_worst(lambda peak: peak.cores)
    user = "the job" if worst.job_cores else "everything on the node (the job's own is unknown)"
    had = f" of {worst.owned_cores:g}" if worst.owned_cores else ""
    evidence = [f"CPU: {user} kept at most {cores:.2f}{had} CPUs busy ({worst.where})."]
    wanted, _ = peaks.find_worst(lambda peak: peak.wanted_cores)
    slowed = max(peaks.all, key=lambda peak: peak.usage["cpu_throttled_pct"])
    throttled = slowed.usage["cpu_throttled_pct"]
    if throttled >= 10 and wanted > cores:
        evidence.append(
            f"CPU: the quota held it back for {throttled:.0f}% of the time ({slowed.where}): "
            "it could use more than was seen."
        )
    elif wanted >= cores + 0.3:
        evidence.append(
            f"CPU: its threads waited for CPUs that others had; it could use {wanted:.2f}."
        )
    elif worst.usage.busy_pct >= _SATURATED_PCT:
        evidence.append(
            f"CPU: they were {worst.usage.busy_pct:.0f}% busy throughout: with more it may be "
            "faster."
        )
    if all(peak.is_serial for peak in peaks.all) and wanted <= SERIAL_PEAK:
        evidence.append("CPU: its work is serial, one CPU is what it can use.")
    return max(1, math.ceil(wanted - CPU_TOLERANCE)), evidence


def _advise_memory(peaks: _Peaks, headroom_pct: float) -> tuple[int | None, list[str]]:
    if all(peak.memory_mb is None for peak in peaks.all):
        return None, ["No run says how much memory was used: there is no advice on memory."]
    used, worst = peaks.find_worst(lambda peak: peak.memory_mb)
    user = "the job" if worst.job_memory else "everything on the node (the job's own is unknown)"
    had = f" of {worst.owned_memory_mb:,.0f}" if worst.owned_memory_mb else ""
    peaked = f"Memory: {user} peaked at {used:,.0f}{had} MB ({worst.where})"
    evidence = [f"{peaked}; {headroom_pct:g}% head-room added."]
    wanted = used * (1 + headroom_pct / 100.0)
    killed = [peak for peak in peaks.all if peak.usage["oom_kills"] > 0]
    if killed:
        limit = max(max(peak.owned_memory_mb, peak.memory_mb or 0.0) for peak in killed)
        wanted = max(wanted, limit * _OOM_FACTOR)
        evidence.append(
            f"Memory: the kernel killed processes for want of it ({killed[0].where}): the true "
            f"peak is unknown, so {_OOM_FACTOR:g} times what there was is advised."
        )
    return max(MEMORY_MIN_MB, _round_up(wanted, MEMORY_STEP_MB)), evidence


def _round_up(value: float, step: int) -> int:
    return math.ceil(min(value, _MOST) / step) * step


def _explain_nodes(peaks: _Peaks) -> list[str]:
    had = max(map(len, peaks.runs))
    if had == 1:
        return []
    if peaks.nodes == had:
        return [f"Nodes: the work needs all {had}, or it is not known that it would fit on fewer."]
    return [
        f"Nodes: what {had} nodes used at their peaks, side by side, fits on {peaks.nodes} of them."
    ]


def _explain_gpus(peaks: _Peaks) -> list[str]:
    owned = max(peak.owned_gpus for peak in peaks.all)
    if not owned:
        return []
    worst = max(peaks.all, key=lambda peak: peak.gpus)
    busy = max(peak.usage["gpu_avg_utilization_pct"] for peak in peaks.all)
    did = f"GPU: {worst.gpus} of {owned} per node did any work"
    return [f"{did}, {busy:.0f}% busy on average ({worst.where})."]
