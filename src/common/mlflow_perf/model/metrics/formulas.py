"""Formulas that compute a metric from a block's figures."""

from __future__ import annotations

from collections.abc import Callable
from operator import methodcaller
from typing import Protocol

SHARE_COLUMN = "cpu_pct_per_cpu_avg"
"""The column whose time at or above each threshold is recorded."""

SHARE_THRESHOLDS_PCT = (20.0, 40.0, 80.0, 100.0)
"""The thresholds, in per cent."""

_HOUR_SEC = 3600.0
_NEARLY_ALL = 0.9


class Figures(Protocol):
    """The figures of a block's reports; a method returns None if the source was missing."""

    def duration(self) -> float | None:
        """Return the block's length in seconds."""
        ...

    def total(self, column: str) -> float | None:
        """Return the growth of a counter over the whole block."""
        ...

    def peak(self, column: str) -> float | None:
        """Return the largest value of a column over all reports."""
        ...

    def mean(self, column: str) -> float | None:
        """Return the time-weighted mean of a column."""
        ...

    def integral(self, column: str) -> float | None:
        """Return the integral of a column over time, in its unit times seconds."""
        ...

    def slope(self, column: str) -> float | None:
        """Return how fast a column grew over the block, per second: the least-squares line's."""
        ...

    def share(self, threshold_pct: float) -> float | None:
        """Return the percentage of time in which `SHARE_COLUMN` was at or above a threshold."""
        ...

    def fact(self, name: str) -> float | None:
        """Return a figure that does not come from reports, such as the number of nodes."""
        ...


Formula = Callable[[Figures], "float | None"]


def _of(figure: str) -> Callable[[str], Formula]:
    return lambda name: methodcaller(figure, name)


peak, mean, total, fact = map(_of, ("peak", "mean", "total", "fact"))
"""Each returns the formula that is the method of `Figures` of its name."""


def share_above(threshold_pct: float) -> Formula:
    """Return the formula of the percentage of time at or above a threshold."""
    return lambda f: f.share(threshold_pct)


def ratio_pct(part: str, whole: str) -> Formula:
    """Return the formula of one counter as a share of another, in per cent."""

    def compute(f: Figures) -> float | None:
        a, b = f.total(part), f.total(whole)
        return None if a is None or not b else 100.0 * a / b

    return compute


def cpu_average_pct(f: Figures) -> float | None:
    """Return the average utilisation, from the counters if there are any."""
    exact = ratio_pct("cpu_busy_sec", "cpu_ticks_sec")(f)
    return f.mean(SHARE_COLUMN) if exact is None else min(100.0, exact)


def cpu_hours(f: Figures) -> float | None:
    """Return the CPU-hours that the job held."""
    core_seconds = f.integral("cpu_limit_cores")
    return None if core_seconds is None else core_seconds / _HOUR_SEC


def used_cpu_hours(f: Figures) -> float | None:
    """Return the CPU-hours that were busy."""
    held, used_pct = cpu_hours(f), cpu_average_pct(f)
    return None if held is None or used_pct is None else held * used_pct / 100.0


def unused_cpu_hours(f: Figures) -> float | None:
    """Return the CPU-hours that the job held and that were idle."""
    held, used = cpu_hours(f), used_cpu_hours(f)
    return None if held is None or used is None else max(0.0, held - used)


def per_duration(counter: str, scale: float = 1.0) -> Formula:
    """Return the formula of a counter per second of the block."""

    def compute(f: Figures) -> float | None:
        amount, duration = f.total(counter), f.duration()
        return None if amount is None or not duration else scale * amount / duration

    return compute


def time_share_pct(counter: str) -> Formula:
    """Return the formula of a counter of seconds as a share of the time, at most 100%."""
    share = per_duration(counter, 100.0)
    return lambda f: None if (pct := share(f)) is None else min(100.0, pct)


def highest(*formulas: Formula) -> Formula:
    """Return the formula of the largest of several."""

    def compute(f: Figures) -> float | None:
        values = [value for formula in formulas if (value := formula(f)) is not None]
        return max(values, default=None)

    return compute


def hours(counter: str) -> Formula:
    """Return the formula of a counter of seconds, in hours."""
    return lambda f: None if (seconds := f.total(counter)) is None else seconds / _HOUR_SEC


def _node_cores(f: Figures) -> tuple[float, float] | None:
    """Return the node's CPUs and how many of them were busy on average."""
    head = "" if f.mean("host_cpu_cores") is None else "host_"
    cores = f.mean("host_cpu_cores" if head else "cpu_limit_cores")
    busy_pct = ratio_pct(f"{head}cpu_busy_sec", f"{head}cpu_ticks_sec")(f)
    return None if cores is None or busy_pct is None else (cores, cores * busy_pct / 100.0)


def others_cpu_cores(f: Figures) -> float | None:
    """Return the node's busy CPUs less the job's; never negative."""
    node, job = _node_cores(f), per_duration("job_cpu_sec")(f)
    return None if node is None or job is None else max(0.0, node[1] - job)


def idle_cpu_cores(f: Figures) -> float | None:
    """Return the node's idle CPUs; never negative."""
    node, job = _node_cores(f), per_duration("job_cpu_sec")(f)
    return None if node is None or job is None else max(0.0, node[0] - max(node[1], job))


def affinity_cpus(f: Figures) -> float | None:
    """Return the mean of the CPUs that the job's affinity left; None where it left nearly all."""
    cpus, cores = f.mean("job_affinity_cpus"), f.peak("cpu_limit_cores")
    is_limit = cpus is not None and (cores is None or cpus < _NEARLY_ALL * cores)
    return cpus if is_limit else None


def run_delay_pct(f: Figures) -> float | None:
    """Return the share of its runnable time in which a thread of the job waited for a CPU."""
    ran, waited = f.total("job_ran_sec"), f.total("job_run_delay_sec")
    if ran is None or waited is None or ran + waited <= 0:
        return None
    return 100.0 * waited / (ran + waited)


def runnable_threads(f: Figures) -> float | None:
    """Return how many threads of the job ran or waited for a CPU, on average."""
    cores, delay_pct = per_duration("job_cpu_sec")(f), run_delay_pct(f)
    if cores is None or delay_pct is None or delay_pct >= 100.0:
        return None
    return cores / (1.0 - delay_pct / 100.0)


def growth_per_min(column: str) -> Formula:
    """Return the formula of how fast a column grew over the block, per minute."""
    return lambda f: None if (slope := f.slope(column)) is None else 60.0 * slope


def gpu_energy_wh(f: Figures) -> float | None:
    """Return the energy of all GPUs that report it."""
    count = f.peak("gpu_count")
    used = (f.total(f"gpu{index}_energy_wh") for index in range(int(count or 0)))
    known = [energy for energy in used if energy is not None]
    return sum(known) if known else None


def node_energy_wh(f: Figures) -> float | None:
    """Return the energy of all CPUs and GPUs that report it."""
    known = [e for e in (f.total("cpu_energy_wh"), gpu_energy_wh(f)) if e is not None]
    return sum(known) if known else None


def gpu_hours(f: Figures) -> float | None:
    """Return the GPU-hours that the job held."""
    gpu_seconds = f.integral("gpu_count")
    return None if gpu_seconds is None else gpu_seconds / _HOUR_SEC


def unused_gpu_hours(f: Figures) -> float | None:
    """Return the GPU-hours that the job held and did not use."""
    held, used_pct = gpu_hours(f), f.mean("gpu_utilization_pct")
    return None if held is None or used_pct is None else held * max(0.0, 1 - used_pct / 100.0)


def node_cost(f: Figures) -> float | None:
    """Return the cost of the node at the given price."""
    price, duration = f.fact("node_price"), f.duration()
    return None if price is None or duration is None else price * duration / _HOUR_SEC


def unused_cost(f: Figures) -> float | None:
    """Return the cost of the unused capacity."""
    cost, used_pct = node_cost(f), f.mean("gpu_utilization_pct")
    if used_pct is None:
        used_pct = cpu_average_pct(f)
    return None if cost is None or used_pct is None else cost * max(0.0, 1 - used_pct / 100.0)
