"""The metrics: key, unit, source, formula and meaning of each, in one table.

Imports nothing of ours. The summary computes from it, README and docs print it, and a test holds
them equal.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

__all__ = [
    "METRICS",
    "RUN_METRICS",
    "SHARE_COLUMN",
    "SHARE_THRESHOLDS_PCT",
    "Figures",
    "Metric",
    "RunMetric",
    "metric_for",
]

SHARE_COLUMN = "cpu_pct_per_cpu_avg"
"""The column for which the time spent at or above each threshold is kept."""

SHARE_THRESHOLDS_PCT = (20.0, 40.0, 80.0, 100.0)
"""The thresholds, in per cent."""

_HOUR_SEC = 3600.0


class Figures(Protocol):
    """What a formula may ask of a block's reports; None where the source was missing."""

    def duration(self) -> float | None:
        """Return the block's length in seconds."""
        ...

    def total(self, column: str) -> float | None:
        """Return how far a counter got over the whole block."""
        ...

    def peak(self, column: str) -> float | None:
        """Return the largest value of a column, over every report ever taken."""
        ...

    def mean(self, column: str) -> float | None:
        """Return the time-weighted mean of a column."""
        ...

    def integral(self, column: str) -> float | None:
        """Return the integral of a column over time, in its unit times seconds."""
        ...

    def share(self, threshold_pct: float) -> float | None:
        """Return the share of the time, in per cent, at or above a threshold of `SHARE_COLUMN`."""
        ...

    def fact(self, name: str) -> float | None:
        """Return a figure that does not come from reports, such as the number of nodes."""
        ...


Formula = Callable[[Figures], "float | None"]


@dataclass(frozen=True)
class Metric:
    """One metric of a node.

    Attributes:
        key: Name in MLflow and in the document's summary.
        unit: Unit of the value.
        source: Where the figures come from.
        formula: How it is computed, for people.
        meaning: What it tells, in one sentence.
        compute: The formula, as code.
        better: `"lower"` or `"higher"` where one of them is better for the same work, else `""`.
    """

    key: str
    unit: str
    source: str
    formula: str
    meaning: str
    compute: Formula
    better: str = ""


@dataclass(frozen=True)
class RunMetric:
    """One metric of a run, from the summaries of all its nodes; attributes as in `Metric`."""

    key: str
    unit: str
    formula: str
    meaning: str
    compute: Callable[[Sequence[Mapping[str, float]]], float | None]
    better: str = ""


def _peak(column: str) -> Formula:
    return lambda f: f.peak(column)


def _total(column: str) -> Formula:
    return lambda f: f.total(column)


def _fact(name: str) -> Formula:
    return lambda f: f.fact(name)


def _share(threshold_pct: float) -> Formula:
    return lambda f: f.share(threshold_pct)


def _ratio_pct(part: str, whole: str) -> Formula:
    def compute(f: Figures) -> float | None:
        a, b = f.total(part), f.total(whole)
        return None if a is None or not b else 100.0 * a / b

    return compute


def _cpu_average(f: Figures) -> float | None:
    exact = _ratio_pct("cpu_busy_sec", "cpu_ticks_sec")(f)
    return f.mean(SHARE_COLUMN) if exact is None else min(100.0, exact)


def _cpu_hours(f: Figures) -> float | None:
    core_seconds = f.integral("cpu_limit_cores")
    return None if core_seconds is None else core_seconds / _HOUR_SEC


def _used_cpu_hours(f: Figures) -> float | None:
    hours, used_pct = _cpu_hours(f), _cpu_average(f)
    return None if hours is None or used_pct is None else hours * used_pct / 100.0


def _unused_cpu_hours(f: Figures) -> float | None:
    hours, used = _cpu_hours(f), _used_cpu_hours(f)
    return None if hours is None or used is None else max(0.0, hours - used)


def _per_duration(counter: str, scale: float = 1.0) -> Formula:
    def compute(f: Figures) -> float | None:
        amount, duration = f.total(counter), f.duration()
        return None if amount is None or not duration else scale * amount / duration

    return compute


def _time_share_pct(counter: str) -> Formula:
    share = _per_duration(counter, 100.0)
    return lambda f: None if (pct := share(f)) is None else min(100.0, pct)


def _highest(*formulas: Formula) -> Formula:
    def compute(f: Figures) -> float | None:
        values = [value for formula in formulas if (value := formula(f)) is not None]
        return max(values, default=None)

    return compute


def _hours(counter: str) -> Formula:
    return lambda f: None if (seconds := f.total(counter)) is None else seconds / _HOUR_SEC


def _over(threshold: int) -> Metric:
    return Metric(
        f"cpu_avg_utilization_over{threshold}_pct", "%", "cpu",
        f"time with `{SHARE_COLUMN}` ≥ {threshold} / duration",
        f"Share of the time in which the CPUs were on average at least {threshold}% busy.",
        _share(float(threshold)),
    )  # fmt: skip


def _moved(column: str, source: str, what: str) -> Metric:
    return Metric(
        f"total_{column}", "MB", source, f"`{column}` at the end − at the start",
        f"{what} during the block (1 MB = 2^20 bytes).", _total(column), "lower",
    )  # fmt: skip


# fmt: off
METRICS: tuple[Metric, ...] = (
    Metric("cpu_avg_utilization_pct", "%", "cpu",
           "busy time / (busy + idle time) of the CPUs, from the kernel's counters",
           "Average utilisation of the CPUs that the job may use, over the whole block.",
           _cpu_average, "higher"),
    _over(20),
    _over(40),
    _over(80),
    Metric("cpu_avg_utilization_at100_pct", "%", "cpu",
           f"time with `{SHARE_COLUMN}`, rounded to 0.1, ≥ 100 / duration",
           "Share of the time in which every CPU was fully busy.", _share(100.0)),
    Metric("max_t_cpu_pct_per_cpu_avg", "%", "cpu", "max over time of `cpu_pct_per_cpu_avg`",
           "Highest mean utilisation of the CPUs in any interval.", _peak("cpu_pct_per_cpu_avg")),
    Metric("max_t_cpu_pct_per_cpu_max", "%", "cpu", "max over time of `cpu_pct_per_cpu_max`",
           "Highest utilisation of the busiest CPU in any interval.",
           _peak("cpu_pct_per_cpu_max")),
    Metric("max_t_cpu_pct_per_cpu_min", "%", "cpu", "max over time of `cpu_pct_per_cpu_min`",
           "Highest utilisation of the least busy CPU in any interval.",
           _peak("cpu_pct_per_cpu_min")),
    Metric("node_cpu_hours", "CPU h", "cpu", "duration × CPUs the job owns / 3600",
           "CPU-hours that the job held, used or not.", _cpu_hours, "lower"),
    Metric("node_used_cpu_hours", "CPU h", "cpu", "`node_cpu_hours` × utilisation",
           "CPU-hours that were busy.", _used_cpu_hours, "lower"),
    Metric("node_unused_cpu_hours", "CPU h", "cpu", "`node_cpu_hours` × (1 − utilisation)",
           "CPU-hours that the job held and nobody used.", _unused_cpu_hours, "lower"),
    Metric("max_t_mem_percent", "%", "memory", "max over time of `mem_percent`",
           "Peak share of the memory in use.", _peak("mem_percent"), "lower"),
    Metric("max_t_disk_usage_percent", "%", "disk", "max over time of `disk_usage_percent`",
           "Peak fill of the root file system.", _peak("disk_usage_percent"), "lower"),
    _moved("disk_io_read_mb", "disk", "Read from the node's disks"),
    _moved("disk_io_write_mb", "disk", "Written to the node's disks"),
    _moved("net_io_lo_sent_mb", "network", "Sent over the loopback interface"),
    _moved("net_io_ext_sent_mb", "network", "Sent over the other interfaces"),
    _moved("net_io_lo_recv_mb", "network", "Received over the loopback interface"),
    _moved("net_io_ext_recv_mb", "network", "Received over the other interfaces"),
    Metric("duration_sec", "s", "clock", "monotonic clock, end − start",
           "How long the block took.", lambda f: f.duration(), "lower"),
    Metric("node_count", "", "launcher", "as the launcher says",
           "Number of nodes of the job.", _fact("node_count")),
    Metric("iowait_pct", "%", "cpu", "iowait time / (busy + idle time) of the CPUs",
           "Share of the CPU time that was idle while a disk request was outstanding.",
           _ratio_pct("cpu_iowait_sec", "cpu_ticks_sec"), "lower"),
    Metric("max_t_swap_percent", "%", "memory", "max over time of `swap_percent`",
           "Peak share of the swap space in use; absent without swap.",
           _peak("swap_percent"), "lower"),
    Metric("cpu_limit_cores", "CPUs", "limits",
           "least of affinity, control group's quota and scheduler's allocation",
           "CPUs that the job may use; utilisation and hours are of these.",
           _peak("cpu_limit_cores")),
    Metric("mem_limit_mb", "MB", "limits",
           "least of the node's memory, control group's limit and scheduler's allocation",
           "Memory that the job may use.", _peak("mem_limit_mb")),
    Metric("host_cpu_avg_utilization_pct", "%", "cpu",
           "busy time / (busy + idle time) of all the node's CPUs",
           "Average utilisation of the whole node, where the job does not own all of it.",
           _ratio_pct("host_cpu_busy_sec", "host_cpu_ticks_sec")),
    Metric("job_cpu_avg_cores", "CPUs", "processes", "`job_cpu_sec` / duration",
           "CPUs that the job's own processes kept busy on average, ended ones included.",
           _per_duration("job_cpu_sec")),
    Metric("job_max_cpu_cores", "CPUs", "processes", "max over time of `job_cpu_cores`",
           "Most CPUs that the job's own processes kept busy in any interval.",
           _highest(_peak("job_cpu_cores"), _per_duration("job_cpu_sec"))),
    Metric("job_cpu_hours", "CPU h", "processes", "`job_cpu_sec` / 3600",
           "CPU time of the job's own processes, ended ones included.",
           _hours("job_cpu_sec"), "lower"),
    Metric("job_max_mem_mb", "MB", "processes",
           "max over time of `job_mem_mb`, and the kernel's peak of one process",
           "Peak memory of the job's own processes together.",
           _highest(_peak("job_mem_mb"), _peak("job_mem_peak_mb")), "lower"),
    Metric("job_io_read_mb", "MB", "processes", "`job_io_read_mb` at the end − at the start",
           "Read from disks by the job's own processes, ended ones included.",
           _total("job_io_read_mb"), "lower"),
    Metric("job_io_write_mb", "MB", "processes", "`job_io_write_mb` at the end − at the start",
           "Written to disks by the job's own processes, ended ones included.",
           _total("job_io_write_mb"), "lower"),
    Metric("cpu_throttled_pct", "%", "cgroup", "`cpu_throttled_sec` / duration",
           "Share of the time in which the CPU quota held the job back; absent without a quota.",
           _time_share_pct("cpu_throttled_sec"), "lower"),
    Metric("max_t_cgroup_mem_percent", "%", "cgroup", "max over time of `cgroup_mem_percent`",
           "Peak memory of the job's control group, idle cache aside, of its limit.",
           _peak("cgroup_mem_percent"), "lower"),
    Metric("oom_kills", "", "cgroup", "`oom_kills` at the end − at the start",
           "Processes of the job that the kernel killed for want of memory.",
           _total("oom_kills"), "lower"),
    Metric("cpu_stall_pct", "%", "pressure", "`cpu_stall_sec` / duration",
           "Share of the time in which some task waited for a CPU.",
           _time_share_pct("cpu_stall_sec"), "lower"),
    Metric("mem_stall_pct", "%", "pressure", "`mem_stall_sec` / duration",
           "Share of the time in which some task waited for memory.",
           _time_share_pct("mem_stall_sec"), "lower"),
    Metric("io_stall_pct", "%", "pressure", "`io_stall_sec` / duration",
           "Share of the time in which some task waited for a disk.",
           _time_share_pct("io_stall_sec"), "lower"),
    Metric("perf_overhead_pct", "%", "mlflow-perf", "CPU time of the sampler / duration",
           "What mlflow-perf itself cost, as a share of one core.",
           _fact("perf_overhead_pct"), "lower"),
)
# fmt: on
"""Every metric of a node, in the order in which it is shown."""


def _values(nodes: Sequence[Mapping[str, float]], key: str) -> list[float]:
    return [node[key] for node in nodes if key in node]


def _sum(key: str) -> Callable[[Sequence[Mapping[str, float]]], float | None]:
    return lambda nodes: sum(values) if (values := _values(nodes, key)) else None


def _max(key: str) -> Callable[[Sequence[Mapping[str, float]]], float | None]:
    return lambda nodes: max(_values(nodes, key), default=None)


def _weighted_utilisation(nodes: Sequence[Mapping[str, float]]) -> float | None:
    hours = sum(_values(nodes, "node_cpu_hours"))
    used = _values(nodes, "node_used_cpu_hours")
    return 100.0 * sum(used) / hours if used and hours else None


def _imbalance(nodes: Sequence[Mapping[str, float]]) -> float | None:
    used = _values(nodes, "node_used_cpu_hours")
    mean = sum(used) / len(used) if used else 0.0
    return 100.0 * (max(used) - mean) / mean if mean > 0 else None


# fmt: off
RUN_METRICS: tuple[RunMetric, ...] = (
    RunMetric("run_cpu_hours", "CPU h", "sum of `node_cpu_hours`",
              "CPU-hours that all nodes held.", _sum("node_cpu_hours"), "lower"),
    RunMetric("run_unused_cpu_hours", "CPU h", "sum of `node_unused_cpu_hours`",
              "CPU-hours that all nodes held and nobody used.",
              _sum("node_unused_cpu_hours"), "lower"),
    RunMetric("run_cpu_avg_utilization_pct", "%", "mean of the nodes, weighted by their CPU-hours",
              "Average utilisation over all nodes.", _weighted_utilisation, "higher"),
    RunMetric("run_max_t_mem_percent", "%", "max of `max_t_mem_percent`",
              "Peak share of the memory in use on any node.", _max("max_t_mem_percent"), "lower"),
    RunMetric("run_duration_sec", "s", "max of `duration_sec`",
              "How long the longest node took.", _max("duration_sec"), "lower"),
    RunMetric("run_node_count", "", "number of nodes that reported",
              "Nodes whose figures are in the run.",
              lambda nodes: float(len(nodes)) if nodes else None),
    RunMetric("run_imbalance_pct", "%", "busiest node's `node_used_cpu_hours` / mean − 1",
              "How far the busiest node stands above the mean.", _imbalance, "lower"),
    RunMetric("run_total_disk_io_read_mb", "MB", "sum of `total_disk_io_read_mb`",
              "Read from the disks of all nodes.", _sum("total_disk_io_read_mb"), "lower"),
    RunMetric("run_total_disk_io_write_mb", "MB", "sum of `total_disk_io_write_mb`",
              "Written to the disks of all nodes.", _sum("total_disk_io_write_mb"), "lower"),
)
# fmt: on
"""Every metric of a run as a whole, logged at step 0."""

_BY_KEY: dict[str, Metric | RunMetric] = {
    **{metric.key: metric for metric in METRICS},
    **{metric.key: metric for metric in RUN_METRICS},
}


def metric_for(key: str) -> Metric | RunMetric | None:
    """Return the table's row for a key, or None for one that is not in the table."""
    return _BY_KEY.get(key)
