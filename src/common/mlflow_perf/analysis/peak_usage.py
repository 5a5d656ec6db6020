"""The peak usage of each node of a run, and the node's resources."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from mlflow_perf.analysis.time_shares import summarise_time
from mlflow_perf.analysis.usage import Usage, read_positive
from mlflow_perf.analysis.wanted_cpus import (
    THROTTLED_PCT,
    find_wanted_cores,
    is_crowded,
    is_serial,
)
from mlflow_perf.model.document import NodeDocument
from mlflow_perf.tracking.perf_run import IMPORTED_TAG, TAG, PerfRun

_MOST_TASKS = 1_000_000
_TIGHT_PCT = 10.0
_WRAPPER_MB = 32.0
"""What `mlflow-perf run` holds beside each rank of a pipeline's step; resident, measured."""


@dataclass(frozen=True)
class PeakUsage:
    """The peak usage of one node of one run.

    Attributes:
        where: Name of the node and its run, for people.
        cores: Peak of busy cores, or their mean where that alone is known; None if unknown.
        memory_mb: Peak memory in MB of 2^20 bytes, that of mlflow-perf included, which counts
            against the same limit, and of `tmpfs_mb`; None if unknown.
        job_memory_mb: Peak memory of the job alone; 0.0 if unknown.
        gpus: GPUs that computed for the job or held memory of it; all that it owned if that is
            unknown, and None if what it owned is unknown, too.
        gpu_memory_mb: Peak memory of the job on the fullest GPU; 0.0 if unknown.
        owned_cores: CPUs that the job could use; 0.0 if unknown.
        owned_memory_mb: Memory that the job could use; 0.0 if unknown.
        owned_gpus: GPUs that the job could use.
        usage: The node's summary.
        tasks: Ranks on the node.
        job_cores: Whether `cores` counts the job alone, not everything on the node.
        wanted_cores: CPUs that the job can use: more than `cores` where it waited for CPUs.
        demand_cores: CPUs that it would have used with the node to itself, on average.
        tmpfs_mb: Files in memory (tmpfs) that its control group held beside its processes.
        is_mean: Whether `cores` is a mean: that of an import, which tells no peak.
    """

    where: str
    cores: float | None
    memory_mb: float | None
    job_memory_mb: float
    gpus: int | None
    gpu_memory_mb: float
    owned_cores: float
    owned_memory_mb: float
    owned_gpus: int
    usage: Usage
    tasks: int
    job_cores: bool
    wanted_cores: float
    demand_cores: float
    tmpfs_mb: float
    is_mean: bool

    def estimate_sec(self, cpus: int | None) -> float:
        """Return the longest time that the work may take on so many CPUs.

        Where the CPUs' mean alone is known, all of the work may have been done on all of them.
        """
        duration = self.usage["duration_sec"]
        if not self.is_mean or not cpus or cpus >= self.owned_cores:
            return duration
        return duration + (self.cores or 0.0) * duration * (1 / cpus - 1 / self.owned_cores)

    def explain_slower(self, cpus: int) -> list[str]:
        """Return by how much fewer CPUs may slow the work down, as a sentence; nothing if not."""
        before, after = self.usage["duration_sec"], self.estimate_sec(cpus)
        if after <= before:
            return []
        by = f"up to {after / before:.2g} times as long, which the time limit allows for"
        return [f"CPU: with {cpus}, it may take {by}."]

    @property
    def owned(self) -> tuple[float, ...]:
        """CPUs, memory, GPUs that the job could use; of the GPUs' memory it is unknown."""
        return self.owned_cores, self.owned_memory_mb, self.owned_gpus, 0.0

    @property
    def used(self) -> tuple[float, ...]:
        """The same at its peaks, with the memory of the fullest GPU."""
        memory_mb = self.job_memory_mb or self.memory_mb or 0.0
        cores = 0.0 if self.is_mean else self.cores or 0.0
        gpus = (self.gpus or 0) if self.usage.knows_gpu_use else 0
        return cores, memory_mb, gpus, self.gpu_memory_mb

    @property
    def is_serial(self) -> bool:
        """Whether the job ran on one CPU and could use no more."""
        return self.usage.allowed_cores >= self.usage.cores and is_serial(self.usage)

    @property
    def is_throttled(self) -> bool:
        """Whether its quota held the job back."""
        return self.usage["cpu_throttled_pct"] >= THROTTLED_PCT

    @property
    def crowd(self) -> float:
        """How many of the job's threads were ready to run, where they were too many; else 0.0."""
        return self.demand_cores if is_crowded(self.usage) else 0.0

    @property
    def is_short(self) -> bool:
        """Whether the job could use clearly more CPUs than it was seen to use."""
        return min(self.wanted_cores, self.demand_cores) >= (self.cores or 0.0) + 0.3

    @property
    def is_partial(self) -> bool:
        """Whether figures are missing that only whole documents hold, as among a run's metrics."""
        return self.job_memory_mb > 0 and "perf_mem_mb" not in self.usage

    @property
    def had_mb(self) -> float:
        """Memory that the job had: what it could use, or its peak where more was seen."""
        return max(self.owned_memory_mb, self.memory_mb or 0.0)

    @property
    def is_tight(self) -> bool:
        """Whether the node waited for disks, network, memory or its quota, or ran out of memory."""
        stalls = ("io_stall_pct", "mem_stall_pct", "cpu_throttled_pct")
        return (
            self.usage["oom_kills"] > 0
            or any(self.usage[key] >= _TIGHT_PCT for key in stalls)
            or self.usage.net_mb_s >= 10
        )


def read_measured(
    runs: Sequence[PerfRun], *, in_pipeline: bool = False
) -> list[tuple[PerfRun, list[PeakUsage]]]:
    """Return the runs of a component that have figures of their nodes, with their peak usage.

    The memory of a whole node is left out where it says nothing of the job. Others run beside a
    step of a pipeline. Elsewhere it is better than nothing, but not beside a run whose own is
    known.

    Args:
        runs: The runs.
        in_pipeline: As in `read_peak_usage`.
    """
    pairs = [(run, read_peak_usage(run, in_pipeline=in_pipeline)) for run in runs]
    found = [(run, peaks) for run, peaks in pairs if peaks]
    if not in_pipeline and not any(peak.job_memory_mb for _, peaks in found for peak in peaks):
        return found
    return [
        (run, [p if p.job_memory_mb else replace(p, memory_mb=None) for p in peaks])
        for run, peaks in found
    ]


def explain_missing(runs: Sequence[PerfRun]) -> str:
    """Return why no run has figures of its nodes."""
    if not runs:  # none has a duration that is a number, for one
        return "There is no run with figures"
    if launcher := runs[0].tags.get(f"{TAG}elsewhere"):
        return f"The work of {runs[0].label} is not measured: {launcher} had it started elsewhere"
    if len(runs) == 1:
        return f"The run {runs[0].label} holds no figures of its nodes"
    return f"None of the {len(runs)} runs holds figures of its nodes"


def read_peak_usage(run: PerfRun, *, in_pipeline: bool = False) -> list[PeakUsage]:
    """Return the peak usage of each node of a run; empty if the run has no figures of its nodes.

    Args:
        run: The run.
        in_pipeline: Whether it is to run as a step of a pipeline: then each rank has a wrapper
            beside it. A run that was a step, which the runner has noted in its tags, had one.
    """
    wrapped = in_pipeline or f"{TAG}attempts" in run.tags
    documents = run.document.nodes if run.document is not None else {}
    found: list[PeakUsage] = []
    if run.tags.get(f"{TAG}elsewhere"):
        return found  # the figures are those of a launcher such as srun
    for index, summary in run.nodes.items():
        document = documents.get(index) or NodeDocument(summary=dict(summary))
        facts = document.node
        usage = Usage(summary, facts)
        total_mb = read_positive(facts.get("mem_total_mb"))
        of_cgroup = usage["max_t_cgroup_mem_percent"] / 100.0 * usage.mem_limit_mb
        of_node = usage["max_t_mem_percent"] / 100.0 * total_mb
        ranks, count = read_positive(facts.get("world_size")), read_positive(facts.get("count"))
        told = run.tags.get(f"{TAG}tasks_per_node", "")  # of what was imported
        per_node = ranks / count if count else float(told) if told.isdecimal() else 1.0
        job_mb, own_mb = usage["job_max_mem_mb"], usage["perf_mem_mb"]
        # A damaged document may hold any number.
        tasks = max(1, math.ceil(min(per_node, _MOST_TASKS)))
        # The job runs again as it ran: with mlflow-perf, whose memory counts against its limit.
        # A step that reports by itself does not see its wrapper.
        beside_mb = usage["perf_mem_mb"] + _WRAPPER_MB * tasks * wrapped
        if "perf_mem_beside_mb" in usage:
            beside_mb = usage["perf_mem_beside_mb"]
        # After a command has ended, its wrapper loads MLflow: then it needs `own_mb` alone.
        memory_mb = max(job_mb + beside_mb, own_mb) if job_mb else 0.0
        # Files in memory count against a limit as well. Those that a process has mapped are in its
        # own figure already: no more than the whole group held is added.
        spare_mb = max(0.0, usage["max_t_cgroup_held_mb"] - memory_mb) if memory_mb else 0.0
        tmpfs_mb = min(usage["max_t_cgroup_tmpfs_mb"], spare_mb)
        used_gpus, owned_gpus = usage.count_gpus()
        is_told = IMPORTED_TAG not in run.tags or owned_gpus or "node_gpu_hours" in usage
        peak = PeakUsage(
            where=run.label if run.node_count <= 1 else f"{run.label}, node {index}",
            cores=usage.peak_cores,
            memory_mb=memory_mb + tmpfs_mb or of_cgroup or of_node or None,
            job_memory_mb=job_mb,
            gpus=used_gpus if is_told else None,
            gpu_memory_mb=usage["max_t_gpu_mem_mb"],
            owned_cores=usage.cores,
            owned_memory_mb=usage.mem_limit_mb or total_mb,
            owned_gpus=owned_gpus,
            usage=usage,
            tasks=tasks,
            job_cores=usage["job_max_cpu_cores"] > 0 or "job_cpu_avg_cores" in usage,
            wanted_cores=find_wanted_cores(usage),
            demand_cores=summarise_time(usage).demand,
            tmpfs_mb=tmpfs_mb,
            is_mean=IMPORTED_TAG in run.tags and "job_max_cpu_cores" not in usage,
        )
        found.append(peak)
    return found
