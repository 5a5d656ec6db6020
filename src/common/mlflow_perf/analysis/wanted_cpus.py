"""The number of CPUs that a job can use, for both the verdict and the advice."""

from __future__ import annotations

import math
from collections.abc import Sequence

from mlflow_perf.analysis.time_shares import split_time, summarise_time
from mlflow_perf.analysis.usage import TOO_SHORT_SEC, Usage
from mlflow_perf.core.format import format_count

CPU_TOLERANCE = 0.05
"""Cores by which a peak may exceed a whole number and still be rounded down: the kernel counts CPU
time in ticks of 10 ms, so that one busy thread reads as up to 1.02 cores over a second."""

SERIAL_PEAK, SERIAL_AVERAGE = 1.2, (0.5, 1.05)
"""A job runs on one CPU if its average is in this range and its peak is at most this: the rest is
helper threads that run for an instant, and the ticks of short intervals."""

THROTTLED_PCT = 10.0
"""Share of the time, in per cent, from which on a quota held a job back."""

FULL_PCT = 85.0
"""How busy all CPUs of a node are, in per cent, where others may have kept the job from some."""

_SERIAL_DEMAND = 1.3
_FEW = 0.25
"""Of the CPUs that a job missed, the part below which others cannot be the reason."""


def is_serial(usage: Usage) -> bool:
    """Tell whether a job uses one CPU and would use no more with the node to itself."""
    low, high = SERIAL_AVERAGE
    used = usage["job_cpu_avg_cores"]
    if usage["cpu_throttled_pct"] >= THROTTLED_PCT or not low <= used <= high:
        return False
    is_short = 0 < usage["duration_sec"] < TOO_SHORT_SEC  # for a peak, and for many waits
    if "job_max_cpu_cores" not in usage and not is_short:  # of an import: several CPUs at times?
        return False
    span = summarise_time(usage)
    demand = span.demand
    if usage.allowed_cores <= 1:
        # On one CPU only threads that wait tell whether the job could use another, and threads
        # that take turns may do so for want of it.
        if span.run_delay is None:
            return False
        demand = used / (1.0 - min(span.run_delay, 0.99))
    return usage["job_max_cpu_cores"] <= SERIAL_PEAK and demand <= _SERIAL_DEMAND


def find_wanted_cores(usage: Usage) -> float:
    """Return how many CPUs a job can use: its peak, plus the CPUs that it could not get.

    It reads the summary alone, so that a run whose curves were not read gets the same number.
    """
    peak = usage.peak_cores or 0.0
    cores = usage.allowed_cores or peak
    if (throttled := usage["cpu_throttled_pct"]) >= THROTTLED_PCT:
        # Its threads stood still for that share of the time; otherwise they would have used more.
        return min(max(peak, cores * (1 + throttled / 100.0)), 1e15)
    demand = summarise_time(usage).demand
    return 1.0 if is_serial(usage) else min(max(peak, min(demand, cores)), 1e15)


def is_crowded(usage: Usage) -> bool:
    """Tell whether more of a job's threads were ready to run than it has CPUs, as `findings` do.

    Beside others who have the CPUs, few threads wait as long as many.
    """
    shares = split_time(summarise_time(usage))
    return shares["oversubscribed"] > shares["contended"]


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


def explain_serial(usages: Sequence[Usage]) -> str:
    """Return why one CPU is what runs can use, as a sentence without its subject's name."""
    for usage in usages:
        if summarise_time(usage).takes_turns > 0.5 and usage.node_busy_pct > FULL_PCT:
            why = "its threads took turns on one CPU, as under Python's lock (GIL)"
            return f"{why}; if they hold none, others kept the other CPUs busy and it can use more."
    return "its work is serial, one CPU is what it can use."


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
