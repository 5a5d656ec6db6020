"""Recommends cores, memory, nodes and GPUs for the next run, with the evidence.

No recommendation is ever below the observed usage.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate, compress
from typing import Any

from mlflow_perf.analysis.gpu_advice import advise_gpus
from mlflow_perf.analysis.learned_memory import LearnedMemory, SeenRun, learn_memory, list_teachers
from mlflow_perf.analysis.peak_usage import PeakUsage, explain_missing, read_measured
from mlflow_perf.analysis.run_inputs import check_inputs, read_inputs
from mlflow_perf.analysis.sizing import Suggestion
from mlflow_perf.analysis.wanted_cpus import (
    CPU_TOLERANCE,
    SERIAL_PEAK,
    explain_own_limit,
    explain_serial,
    explain_wait,
)
from mlflow_perf.core.format import format_chance, format_count, join_some
from mlflow_perf.errors import RunNotFoundError, SettingError
from mlflow_perf.tracking.perf_run import IMPORTED_TAG, TAG, PerfRun

MEMORY_STEP_MB = 64
MEMORY_MIN_MB = 128
_MOST = 1e15  # a damaged document's figure may be infinite
_OOM_FACTOR = 1.5
_SATURATED_PCT = 90.0
_TIME_STEP_MIN = 5
_TIME_HEADROOM_PCT = 20.0


@dataclass(frozen=True)
class RightSize:
    """What to ask for.

    Attributes:
        cpus: Cores per node, as many as the runs had if none says how many were busy; None if that
            is unknown too.
        memory_mb: Memory per node, in MB of 2^20 bytes; None if no run has memory figures.
        nodes: Number of nodes.
        gpus: GPUs per node; None where not every run tells, and none tells of any.
        evidence: The reasons, in sentences.
        tasks_per_node: Ranks per node, so that all nodes together run as many as before.
        minutes: A time limit, from the longest run; None if unknown.
        had: The largest that the runs had of `cpus`, `memory_mb`, `nodes`, `gpus`.
        peak: The largest that they used, with these keys and `gpu_memory_mb`; of memory, without
            mlflow-perf's.
        p_fit: Estimated chance that the memory is enough for the next run; None with a head-room
            that was given, where a run that did not finish had most, and for a guess far beyond
            all runs.
        runs: How many runs the memory was learned from.
        method: How the memory was found.
        predictor: Name of the input that predicts the memory; None if no input is used.
        seen: The runs, oldest first, as the memory was learned from them.
        is_lower_bound: Whether the runs may have needed more than was seen, as the evidence says.
        gpu_memory_mb: Memory of each GPU, in MB of 2^20 bytes; None if unknown, or without a GPU.
    """

    cpus: int | None
    memory_mb: int | None
    nodes: int
    gpus: int | None
    evidence: tuple[str, ...] = ()
    tasks_per_node: int = 1
    minutes: int | None = None
    had: Mapping[str, float] = field(default_factory=dict)
    peak: Mapping[str, float] = field(default_factory=dict)
    p_fit: float | None = None
    runs: int = 0
    method: str = ""
    predictor: str | None = None
    seen: tuple[SeenRun, ...] = ()
    is_lower_bound: bool = False
    gpu_memory_mb: int | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return the recommendation as plain data: the output of `advise --json`."""
        keys = ["cpus", "memory_mb", "nodes", "gpus", "gpu_memory_mb", "p_fit", "runs", "method"]
        if self.predictor is not None:
            keys.append("predictor")
        return {**{key: getattr(self, key) for key in keys}, "evidence": list(self.evidence)}


def right_size(
    runs: Sequence[PerfRun],
    *,
    headroom_pct: float | None = None,
    risk: float = 0.01,
    inputs: Mapping[str, float] | None = None,
    in_pipeline: bool = False,
) -> RightSize:
    """Return the resources to request, from the worst of one or several runs of a component.

    Args:
        runs: Runs with figures; runs without any are left out, and the evidence says so.
        headroom_pct: Per cent to add to the peak memory and to the longest time; by default 20%
            for the time, and for memory a head-room learned from the runs.
        risk: Accepted share of runs with too little memory.
        inputs: The inputs of the next run: parameters, counters, or `read_mb`. They may predict
            less memory than the worst run's peak.
        in_pipeline: Whether the next run is a step of a pipeline, beside a wrapper.

    Raises:
        RunNotFoundError: When none of the runs holds figures of its nodes.
        SettingError: When a number is out of range, or no run has one of the inputs.
    """
    if headroom_pct is not None and not (math.isfinite(headroom_pct) and headroom_pct >= 0):
        raise SettingError(f"The head-room must be at least 0 per cent, not {headroom_pct}.")
    by_time = sorted(runs, key=lambda run: run.started or 0.0)
    measured = read_measured(by_time, in_pipeline=in_pipeline)
    if not measured:
        raise RunNotFoundError(f"{explain_missing(runs)}: there is nothing to advise.")
    sources, usages = zip(*measured, strict=True)
    peaks = _Peaks(sources, usages)
    check_inputs(inputs or {}, (read_inputs(run) for run in peaks.sources))
    cpus, cpu_evidence = _advise_cpus(peaks)
    memory = _advise_memory(peaks, headroom_pct, risk, inputs or {})
    taught, unfinished = memory.taught, memory.unfinished
    gpu, bounds = advise_gpus(peaks.all), peaks.explain_bounds()
    evidence = [*peaks.explain_sources(len(runs)), *unfinished, *cpu_evidence, *memory.evidence]
    evidence += [*peaks.explain_nodes(), *gpu.evidence, *bounds]
    longest = max(peak.estimate_sec(cpus) for peak in peaks.all)
    spare_pct = _TIME_HEADROOM_PCT if headroom_pct is None else headroom_pct
    minutes = _round_up(longest / 60.0 * (1 + spare_pct / 100.0), _TIME_STEP_MIN)
    return RightSize(
        cpus,
        memory.memory_mb,
        peaks.nodes,
        math.ceil(peaks.find_worst(lambda peak: peak.gpus)[0]) or (0 if gpu.is_told else None),
        tuple(evidence),
        tasks_per_node=peaks.tasks,
        minutes=minutes if longest else None,
        p_fit=memory.p_fit,
        runs=len(usages) if taught is None else taught.runs,
        method=f"peak + {spare_pct:g}%" if taught is None else taught.method,
        predictor=None if taught is None else taught.predictor,
        seen=tuple(peaks.seen),
        is_lower_bound=bool(bounds or unfinished),
        had=peaks.find_most(lambda peak: peak.owned),
        peak=peaks.find_most(lambda peak: peak.used),
        gpu_memory_mb=gpu.memory_mb,
    )


class _Peaks:
    """The peak usage of all runs, and the number of nodes on which each run's work fits.

    Attributes:
        sources: The runs, oldest first.
        runs: The peak usage of each run's nodes.
        all: The peak usage of all nodes of all runs.
        nodes: The number of nodes to ask for.
    """

    def __init__(self, sources: Sequence[PerfRun], runs: Sequence[Sequence[PeakUsage]]) -> None:
        self.sources = sources
        self.runs = runs
        self.all = [peak for run in runs for peak in run]
        self.nodes = max(map(self.count_needed_nodes, runs))

    def consolidated(self, run: Sequence[PeakUsage]) -> int:
        """Return how many of a run's nodes share one node after consolidation."""
        return math.ceil(len(run) / self.nodes)

    @property
    def tasks(self) -> int:
        """Return the most ranks on one node after consolidation."""
        return max(max(p.tasks for p in run) * self.consolidated(run) for run in self.runs)

    def total(self, run: Sequence[PeakUsage], figure: Callable[[PeakUsage], float | None]) -> float:
        """Return the largest peak of one node of a run after consolidation."""
        # A node's work may be one process, so it moves as a whole, beside the largest others.
        values = sorted((figure(peak) or 0.0 for peak in run), reverse=True)
        return sum(values[: self.consolidated(run)])

    def find_most(self, read: Callable[[PeakUsage], tuple[float, ...]]) -> dict[str, float]:
        """Return the largest CPUs, memory, GPUs, GPU memory of a node, and the number of nodes."""
        most = map(max, zip(*map(read, self.all), strict=True))
        return {
            **dict(zip(("cpus", "memory_mb", "gpus", "gpu_memory_mb"), most, strict=True)),
            "nodes": max(map(len, self.runs)),
        }

    def find_worst(self, figure: Callable[[PeakUsage], float | None]) -> tuple[float, PeakUsage]:
        """Return the largest peak of one node after consolidation, and the node it comes from."""
        best = -1.0, self.all[0]
        for run in self.runs:
            total = self.total(run, figure)
            if total > best[0]:
                best = total, max(run, key=lambda peak: figure(peak) or 0.0)
        return best

    @staticmethod
    def count_needed_nodes(run: Sequence[PeakUsage]) -> int:
        """Return how many of its nodes a run needs if the peaks of several nodes fit on one.

        The answer is less than the run had only if the job's own cores and memory are known on
        every node, and no node waited for disks, network or memory: nodes may have been added for
        their bandwidth.
        """
        had = len(run)
        known = all(peak.job_cores and peak.job_memory_mb and peak.owned_cores for peak in run)
        if had == 1 or not known or any(peak.is_tight or peak.is_mean for peak in run):
            return had
        limits = [
            ([peak.cores or 0.0 for peak in run],
             min(peak.owned_cores for peak in run) * (1 + CPU_TOLERANCE)),
            ([float(peak.gpus or 0) for peak in run], max(1, min(peak.owned_gpus for peak in run))),
            # A scheduler gives each rank one CPU at least.
            ([float(peak.tasks) for peak in run], min(peak.owned_cores for peak in run)),
            # Only four fifths of the memory: tomorrow's peaks may be higher.
            ([peak.memory_mb or 0.0 for peak in run],
             0.8 * min(peak.owned_memory_mb for peak in run)),
        ]  # fmt: skip
        together = min(
            sum(total <= room for total in accumulate(sorted(values, reverse=True)))
            for values, room in limits
        )
        return math.ceil(had / max(1, together))

    @cached_property
    def seen(self) -> list[SeenRun]:
        """The runs, oldest first, as the sizer sees them: the node that used most."""
        found = []
        for run, usage in zip(self.sources, self.runs, strict=True):
            # The last attempt of a step may have had enough, and its figures are those of the run.
            had_enough = run.status == "FINISHED" and f"{TAG}sizes_mb" in run.tags
            killed = [p for p in usage if p.usage["oom_kills"] > 0 and not had_enough]
            seen = SeenRun(
                run.label,
                self.total(usage, lambda peak: peak.memory_mb),
                max(peak.usage["duration_sec"] for peak in usage),
                read_inputs(run),
                max((peak.had_mb for peak in killed), default=0.0),
                run.status in (None, "FINISHED"),
            )
            found.append(seen)
        return found

    def explain_sources(self, count: int) -> list[str]:
        """Return from how many of so many given runs the advice is; nothing for one run."""
        left_out = count - len(self.sources)
        without = f"; {left_out} without figures left out" if left_out else ""
        worst = ", the worst of them counts" if len(self.sources) > 1 else ""
        of_all = f"From {format_count(len(self.sources), 'run')}{worst}{without}."
        return [of_all] if count > 1 else []

    def explain_unfinished(self, learned: LearnedMemory | None) -> list[str]:
        """Return which runs without the whole work the advice rests on, as more may be needed."""
        which, counting = "", [not run.ended_well for run in self.seen]
        if not all(counting):
            teachers = list_teachers(self.seen) if learned is None else learned.teachers
            counting = [run in teachers and not run.ended_well for run in self.seen]
            which = ", yet with more memory than any that finished"
        unfinished = compress(self.sources, counting)
        if not (named := join_some(f"{run.label} ({run.status})" for run in unfinished)):
            return []
        whole = f"Not finished, so not the figures of the whole work{which}: {named}."
        return [f"{whole} Each peak is a lower bound."]

    def explain_nodes(self) -> list[str]:
        """Return why so many nodes are asked for; nothing for one node."""
        had = max(map(len, self.runs))
        if had == 1:
            return []
        reason = f"the work needs all {had}, or it is not known that it would fit on fewer"
        if self.nodes < had:
            reason = f"what {had} used at their peaks, side by side, fits on {self.nodes} of them"
        return [f"Nodes: {reason}."]

    def explain_bounds(self) -> list[str]:
        """Return why more may be needed than was seen; nothing where the runs have all figures."""
        pairs = zip(self.sources, self.runs, strict=True)
        # What was imported did not run beside mlflow-perf.
        ours = [found for run, found in pairs if IMPORTED_TAG not in run.tags]
        partial = sum(any(peak.is_partial for peak in found) for found in ours)
        if not partial:
            return []
        which = format_count(partial, "run")
        held = "the memory that mlflow-perf held"
        return [f"Ask for at least this: {which} without a whole document cannot tell {held}."]


def _advise_cpus(peaks: _Peaks) -> tuple[int | None, list[str]]:
    if all(peak.cores is None for peak in peaks.all):
        had_cpus = math.ceil(peaks.find_worst(lambda peak: peak.owned_cores)[0])
        same = f"ask for the {had_cpus} that it had" if had_cpus else "there is no advice on CPUs"
        return had_cpus or None, [f"No run says how many CPUs were busy: {same}."]
    cores, worst = peaks.find_worst(lambda peak: peak.cores)
    user = "the job" if worst.job_cores else "everything on the node (the job's own is unknown)"
    had = f" of {worst.owned_cores:g}" if worst.owned_cores else ""
    noun = "CPU" if worst.owned_cores == 1 else "CPUs"
    busy = f"{cores:.2f}{had} {noun} busy"
    kept = f"{busy} on average, its peak is unknown" if worst.is_mean else f"at most {busy}"
    evidence = [f"CPU: {user} kept {kept} ({worst.where})."]
    wanted, _ = peaks.find_worst(lambda peak: peak.wanted_cores)
    slowed = max(peaks.all, key=lambda peak: peak.usage["cpu_throttled_pct"])
    held = max(peaks.all, key=lambda peak: peak.usage.cores - peak.usage.allowed_cores)
    is_serial = all(peak.is_serial for peak in peaks.all) and wanted <= SERIAL_PEAK
    if slowed.is_throttled and wanted > cores:
        held_for = f"for {slowed.usage['cpu_throttled_pct']:.0f}% of the time ({slowed.where})"
        evidence.append(f"CPU: the quota held it back {held_for}: it could use more than was seen.")
    elif (limit := explain_own_limit(held.usage)) is not None:
        evidence.append(f"CPU: {limit} ({held.where}): more can help only once that is lifted.")
    elif max(peak.crowd for peak in peaks.all) >= wanted + 0.3:
        evidence.append("CPU: it had more threads to run than CPUs: with more it may be faster.")
    elif min(wanted, peaks.find_worst(lambda peak: peak.demand_cores)[0]) >= cores + 0.3:
        waited = explain_wait([(p.usage, p.demand_cores) for p in peaks.all if p.is_short])
        evidence.append(f"CPU: {waited} it could use {wanted:.2f}.")
    elif worst.usage.busy_pct >= _SATURATED_PCT and not is_serial:
        busy = f"CPU: they were {worst.usage.busy_pct:.0f}% busy throughout"
        evidence.append(f"{busy}: with more it may be faster.")
    if is_serial:
        evidence.append(f"CPU: {explain_serial([peak.usage for peak in peaks.all])}")
    cpus = max(1, math.ceil(wanted - CPU_TOLERANCE))
    if (ranks := min(peaks.tasks, int(worst.owned_cores))) > cpus:
        evidence.append(f"CPU: one for each of the {ranks} ranks on a node.")
    cpus = max(cpus, ranks)
    return cpus, [*evidence, *worst.explain_slower(cpus)]


@dataclass(frozen=True)
class _MemoryAdvice:
    """The memory to ask for, and why.

    Attributes:
        memory_mb: As `RightSize.memory_mb`.
        evidence: The reasons, in sentences.
        unfinished: Which runs without the whole work it rests on, as a sentence.
        taught: What was learned from the runs; None with a head-room that was given.
        p_fit: As `RightSize.p_fit`.
    """

    memory_mb: int | None
    evidence: Sequence[str]
    unfinished: Sequence[str]
    taught: Suggestion | None = None
    p_fit: float | None = None


def _advise_memory(
    peaks: _Peaks, headroom_pct: float | None, risk: float, inputs: Mapping[str, float]
) -> _MemoryAdvice:
    used, worst = peaks.find_worst(lambda peak: peak.memory_mb)
    failed_mb = max((max(r.failed_mb, r.peak_mb) for r in peaks.seen if r.failed_mb), default=0.0)
    if not (used or failed_mb):
        missing = "No run says how much memory was used: there is no advice on memory."
        return _MemoryAdvice(None, [missing], peaks.explain_unfinished(None))
    run = next(run for run in peaks.runs if worst in run)
    job_mb = peaks.total(run, lambda peak: peak.job_memory_mb)
    user = "the job" if job_mb else "everything on the node (the job's own is unknown)"
    had = f" of {worst.owned_memory_mb:,.0f}" if worst.owned_memory_mb else ""
    more = peaks.consolidated(run) - 1
    where = f"{worst.where} together with {more} more" if more else worst.where
    peaked = f"Memory: {user} peaked at {job_mb or used:,.0f}{had} MB ({where})"
    if job_mb and used >= job_mb + 1:
        beside = " and files in memory (/dev/shm, tmpfs)" * (worst.tmpfs_mb >= 1)
        peaked += f", {used:,.0f} MB with mlflow-perf{beside}"
    learned = learn_memory(peaks.seen, risk=risk, inputs=inputs) if headroom_pct is None else None
    unfinished, p_fit = peaks.explain_unfinished(learned), None
    if learned is not None:
        found, wanted, failed_mb = learned.suggestion, learned.wanted_mb, learned.failed_mb
        runs = format_count(found.runs, "run")
        source = f" learned from {runs}" if found.runs else ""
        spare = f"{max(0.0, 100 * (wanted / (used or wanted) - 1)):.0f}% head-room{source} added"
        if wanted < used:
            spare = f"{wanted:,.0f} MB learned from {runs}"
        p_fit = None if found.is_guess or unfinished else found.p_fit
        if p_fit is not None:
            spare += f", the next one fits with a chance of {format_chance(p_fit)}"
        spare += f" ({found.method})"
    else:
        spare_pct = headroom_pct or 0.0
        wanted = max(used * (1 + spare_pct / 100.0), failed_mb * _OOM_FACTOR)
        spare = f"{spare_pct:g}% head-room added"
    evidence = [f"{peaked}; {spare}." if used else "Memory: no run says how much was used."]
    if failed_mb:
        killed = [peak for peak in peaks.all if peak.usage["oom_kills"] > 0]
        most = max(killed, key=lambda peak: (peak.had_mb <= failed_mb, peak.had_mb))
        evidence.append(
            f"Memory: the kernel killed processes for want of it ({most.where}): the true peak is "
            f"unknown, so {wanted / failed_mb:.2g} times the {failed_mb:,.0f} MB with which they "
            "were killed is advised."
        )
    memory_mb = max(MEMORY_MIN_MB, _round_up(wanted, MEMORY_STEP_MB))
    taught = None if learned is None else learned.suggestion
    return _MemoryAdvice(memory_mb, evidence, unfinished, taught, p_fit)


def _round_up(value: float, step: int) -> int:
    return math.ceil(min(value, _MOST) / step) * step
