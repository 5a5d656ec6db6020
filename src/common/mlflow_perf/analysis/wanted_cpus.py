"""The number of CPUs that a job can use, for both the verdict and the advice."""

from __future__ import annotations

import math
from collections.abc import Sequence

from mlflow_perf.analysis.time_shares import summarise_time
from mlflow_perf.analysis.usage import Usage
from mlflow_perf.core.format import format_count

CPU_TOLERANCE = 0.05
"""Cores by which a peak may exceed a whole number and still be rounded down: the kernel counts CPU
time in ticks of 10 ms, so that one busy thread reads as up to 1.02 cores over a second."""

SERIAL_PEAK, SERIAL_AVERAGE = 1.2, (0.5, 1.05)
"""A job runs on one CPU if its average is in this range and its peak is at most this: the rest is
helper threads that run for an instant, and the ticks of short intervals."""

_FEW = 0.25
"""Of the CPUs that a job missed, the part below which others cannot be the reason."""


def is_serial(usage: Usage, demand: float) -> bool:
    """Tell whether a job uses one CPU and would use no more with the node to itself.

    Args:
        usage: The node's figures.
        demand: CPUs that the job would have used with the node to itself, on average.
    """
    low, high = SERIAL_AVERAGE
    # On one CPU only threads that wait tell whether the job could use another.
    knows_demand = usage.cores > 1 or "job_run_delay_pct" in usage
    return (
        knows_demand
        and (usage.peak_cores or 0.0) <= SERIAL_PEAK
        and low <= usage["job_cpu_avg_cores"] <= high
        and demand <= 1.3
    )


def find_wanted_cores(usage: Usage) -> float:
    """Return how many CPUs a job can use: its peak, plus the CPUs that it could not get.

    It reads the summary alone, so that a run whose curves were not read gets the same number.
    """
    demand = summarise_time(usage).demand
    peak = usage.peak_cores or 0.0
    cores = usage.allowed_cores or peak
    if (throttled := usage["cpu_throttled_pct"]) >= 10:
        # Its threads stood still for that share of the time; otherwise they would have used more.
        return min(max(peak, cores * (1 + throttled / 100.0)), 1e15)
    return 1.0 if is_serial(usage, demand) else min(max(peak, min(demand, cores)), 1e15)


def waits_beside_idle(usage: Usage, demand: float) -> bool:
    """Tell whether a job waited for CPUs that others did not use, and some CPUs were idle.

    Then its own affinity or quota held it, or more of its threads ran at once than it has CPUs.
    """
    missed = min(demand, usage.cores) - usage.used_cores
    busy = max(usage.used_cores, usage.node_busy_pct / 100.0 * usage.cores)
    idle = usage.cores - busy
    if "idle_cpu_avg_cores" in usage:
        idle = min(idle, usage["idle_cpu_avg_cores"])
    return missed > 0 and usage.others_cores < _FEW * missed and idle >= _FEW * missed


def explain_wait(short: Sequence[tuple[Usage, float]]) -> str:
    """Return what runs that were short of CPUs waited for, as the start of a sentence.

    Args:
        short: How each run used its CPUs, and how many it could use.
    """
    if all(waits_beside_idle(usage, demand) for usage, demand in short):
        waited = "its threads waited for a CPU beside idle ones"
        return f"{waited}; unless its own affinity or quota holds them,"
    return "its threads waited for CPUs that others had;"


def explain_own_limit(usage: Usage) -> str | None:
    """Return which limit of its own kept a job from some of its CPUs; None without one."""
    if usage.allowed_cores >= usage.cores:
        return None
    limit = "affinity (taskset, numactl, sched_setaffinity)"
    if usage.own_quota == usage.allowed_cores:
        limit = "control group's quota"
    cpus = format_count(usage.cores, "CPU")
    return f"its own {limit} allowed it {usage.allowed_cores:.2g} of {cpus}"


def count_wanted_cpus(usage: Usage) -> int:
    """Return the whole number of CPUs to ask for."""
    return max(1, math.ceil(find_wanted_cores(usage) - CPU_TOLERANCE))
