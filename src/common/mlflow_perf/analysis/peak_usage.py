"""What each node of a run was seen to use. Imports the verdict and runs."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mlflow_perf.analysis.advice import Usage
from mlflow_perf.tracking.perf_run import PerfRun

__all__ = ["PeakUsage", "read_peak_usage"]

_MOST_TASKS = 1_000_000
_GPU_KEY = re.compile(r"gpu(\d+)_(.+)")
_GPU_USED_PCT = 0.5


@dataclass(frozen=True)
class PeakUsage:
    """What one node of one run was seen to use, and what it had.

    Attributes:
        where: Name of the node and its run, for people.
        cores: Peak of busy cores; None where unknown.
        memory_mb: Peak memory in MB of 2^20 bytes; None where unknown.
        gpus: GPUs that did something.
        owned_cores: CPUs that the job could use; 0.0 where unknown.
        owned_memory_mb: Memory that the job could use; 0.0 where unknown.
        owned_gpus: GPUs that the job could use.
        usage: The node's summary.
        tasks: Ranks on the node.
        job_cores: Whether `cores` is the job's own, not everybody's on the node.
        job_memory: Whether `memory_mb` is the job's own.
    """

    where: str
    cores: float | None
    memory_mb: float | None
    gpus: int
    owned_cores: float
    owned_memory_mb: float
    owned_gpus: int
    usage: Usage
    tasks: int
    job_cores: bool
    job_memory: bool


def read_peak_usage(run: PerfRun) -> list[PeakUsage]:
    """Return what each node of a run used; empty where the run has no figures of its nodes."""
    documents = run.document.nodes if run.document is not None else {}
    return [
        _need(run, index, summary, documents[index].node if index in documents else {})
        for index, summary in run.nodes.items()
    ]


def _need(
    run: PerfRun, index: int, summary: Mapping[str, float], facts: Mapping[str, Any]
) -> PeakUsage:
    usage = Usage(summary, facts)
    total_mb = _positive(facts.get("mem_total_mb"))
    used, owned = _gpus(summary, usage)
    return PeakUsage(
        where=run.label if run.node_count <= 1 else f"{run.label}, node {index}",
        cores=_peak_cores(usage),
        memory_mb=_peak_memory(usage, total_mb),
        gpus=used,
        owned_cores=usage.cores,
        owned_memory_mb=usage.mem_limit_mb or total_mb,
        owned_gpus=owned,
        usage=usage,
        tasks=_tasks(facts),
        job_cores=usage["job_max_cpu_cores"] > 0 or "job_cpu_avg_cores" in usage,
        job_memory=usage["job_max_mem_mb"] > 0,
    )


def _positive(value: Any) -> float:
    usable = isinstance(value, (int, float)) and math.isfinite(value) and value > 0
    return float(value) if usable else 0.0


def _peak_cores(usage: Usage) -> float | None:
    peak = max(usage["job_max_cpu_cores"], usage["job_cpu_avg_cores"])
    if peak or "job_cpu_avg_cores" in usage:
        return peak
    busy_pct = max(usage["max_t_cpu_pct_per_cpu_avg"], usage["cpu_avg_utilization_pct"])
    known = "cpu_avg_utilization_pct" in usage and usage.cores > 0
    return busy_pct / 100.0 * usage.cores if known else None


def _peak_memory(usage: Usage, total_mb: float) -> float | None:
    """Return the job's own peak; else its cgroup's; else the node's."""
    of_cgroup = usage["max_t_cgroup_mem_percent"] / 100.0 * usage.mem_limit_mb
    of_node = usage["max_t_mem_percent"] / 100.0 * total_mb
    return usage["job_max_mem_mb"] or of_cgroup or of_node or None


def _tasks(facts: Mapping[str, Any]) -> int:
    ranks, nodes = _positive(facts.get("world_size")), _positive(facts.get("count"))
    # A damaged document may say any number.
    return max(1, math.ceil(min(ranks / nodes, _MOST_TASKS))) if ranks and nodes else 1


def _gpus(summary: Mapping[str, float], usage: Usage) -> tuple[int, int]:
    """Return how many GPUs did something, and how many the job owned."""
    busiest: dict[str, float] = {}
    for key, value in summary.items():
        found = _GPU_KEY.fullmatch(key)
        if found:
            of_work = value if "util" in found[2] else 0.0
            busiest[found[1]] = max(busiest.get(found[1], 0.0), of_work)
    if busiest:
        return sum(pct >= _GPU_USED_PCT for pct in busiest.values()), len(busiest)
    hours = usage["duration_sec"] / 3600.0
    owned = round(usage["node_gpu_hours"] / hours) if hours > 0 else 0
    if not owned and "gpu_avg_utilization_pct" in usage:
        owned = 1
    return (owned if usage["gpu_avg_utilization_pct"] >= _GPU_USED_PCT else 0), owned
