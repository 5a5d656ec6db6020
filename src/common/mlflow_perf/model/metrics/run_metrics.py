"""The metrics of a run as a whole, computed from those of its nodes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class RunMetric:
    """One metric of a run, from the summaries of all its nodes; attributes as in `Metric`."""

    key: str
    unit: str
    formula: str
    meaning: str
    compute: Callable[[Sequence[Mapping[str, float]]], float | None]
    better: str = ""
    essential: bool = False


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


def _weighted_gpu_utilisation(nodes: Sequence[Mapping[str, float]]) -> float | None:
    known = [node for node in nodes if "node_unused_gpu_hours" in node]
    hours = sum(_values(known, "node_gpu_hours"))
    unused = sum(_values(known, "node_unused_gpu_hours"))
    return 100.0 * (1 - unused / hours) if hours else None


def _imbalance(nodes: Sequence[Mapping[str, float]]) -> float | None:
    used = _values(nodes, "node_used_cpu_hours")
    mean = sum(used) / len(used) if used else 0.0
    return 100.0 * (max(used) - mean) / mean if mean > 0 else None


# fmt: off
RUN_METRICS: tuple[RunMetric, ...] = (
    RunMetric("run_job_cpu_avg_cores", "CPUs", "sum of `job_cpu_avg_cores`",
              "CPUs of all nodes that the job's own processes kept busy on average.",
              _sum("job_cpu_avg_cores")),
    RunMetric("run_job_cpu_hours", "CPU h", "sum of `job_cpu_hours`",
              "CPU time of the job's own processes on all nodes.", _sum("job_cpu_hours"), "lower"),
    RunMetric("run_job_max_mem_mb", "MB", "max of `job_max_mem_mb`",
              "Peak memory of the job's own processes on any node.", _max("job_max_mem_mb"),
              "lower"),
    RunMetric("run_cpu_hours", "CPU h", "sum of `node_cpu_hours`",
              "CPU-hours that all nodes held.", _sum("node_cpu_hours"), "lower", essential=True),
    RunMetric("run_unused_cpu_hours", "CPU h", "sum of `node_unused_cpu_hours`",
              "CPU-hours that all nodes held and that were idle.",
              _sum("node_unused_cpu_hours"), "lower", essential=True),
    RunMetric("run_cpu_avg_utilization_pct", "%", "mean of the nodes, weighted by their CPU-hours",
              "Average utilisation over all nodes.", _weighted_utilisation, "higher",
              essential=True),
    RunMetric("run_max_t_mem_percent", "%", "max of `max_t_mem_percent`",
              "Peak share of the memory in use on any node.", _max("max_t_mem_percent"), "lower",
              essential=True),
    RunMetric("run_duration_sec", "s", "max of `duration_sec`",
              "How long the longest node took.", _max("duration_sec"), "lower", essential=True),
    RunMetric("run_node_count", "", "number of nodes that reported",
              "Nodes whose figures are in the run.",
              lambda nodes: float(len(nodes)) if nodes else None, essential=True),
    RunMetric("run_imbalance_pct", "%", "busiest node's `node_used_cpu_hours` / mean − 1",
              "How far the busiest node is above the mean.", _imbalance, "lower",
              essential=True),
    RunMetric("run_total_disk_io_read_mb", "MB", "sum of `total_disk_io_read_mb`",
              "Read from the disks of all nodes.", _sum("total_disk_io_read_mb"), "lower"),
    RunMetric("run_total_disk_io_write_mb", "MB", "sum of `total_disk_io_write_mb`",
              "Written to the disks of all nodes.", _sum("total_disk_io_write_mb"), "lower"),
    RunMetric("run_gpu_hours", "GPU h", "sum of `node_gpu_hours`",
              "GPU-hours that all nodes held.", _sum("node_gpu_hours"), "lower"),
    RunMetric("run_unused_gpu_hours", "GPU h", "sum of `node_unused_gpu_hours`",
              "GPU-hours that all nodes held and did not use.",
              _sum("node_unused_gpu_hours"), "lower"),
    RunMetric("run_gpu_avg_utilization_pct", "%", "mean of the nodes, weighted by their GPU-hours",
              "Average utilisation of the GPUs of all nodes by the job.",
              _weighted_gpu_utilisation, "higher"),
    RunMetric("run_max_t_gpu_mem_percent", "%", "max of `max_t_gpu_mem_percent`",
              "Peak share of the GPUs' memory that the job used on any node.",
              _max("max_t_gpu_mem_percent"), "lower"),
    RunMetric("run_energy_wh", "Wh", "sum of `node_energy_wh`",
              "Energy of all nodes that have counters.", _sum("node_energy_wh"), "lower"),
    RunMetric("run_carbon_g", "g", "sum of `node_carbon_g`",
              "CO2 equivalent that all nodes emitted: CodeCarbon's estimate.",
              _sum("node_carbon_g"), "lower"),
    RunMetric("run_cost", "", "sum of `node_cost`",
              "Cost of all nodes, in the currency of the given price.",
              _sum("node_cost"), "lower"),
    RunMetric("run_unused_cost", "", "sum of `node_unused_cost`",
              "Cost of the unused capacity.",
              _sum("node_unused_cost"), "lower"),
)
# fmt: on
"""Every metric of a run as a whole, logged at step 0."""
