"""The metrics' names for people, and the groups in which tables show them."""

from __future__ import annotations

import re
from collections.abc import Mapping

GROUPS: Mapping[str, Mapping[str, str]] = {
    "Time": {
        "duration_sec": "duration",
        "job_run_delay_pct": "runnable time without a CPU",
        "cpu_throttled_pct": "held back by the CPU quota",
        "imbalance_pct": "busiest node above the mean",
        "node_count": "nodes",
    },
    "CPU of the job": {
        "job_cpu_avg_cores": "CPUs used",
        "job_max_cpu_cores": "CPUs used, peak",
        "cpu_limit_cores": "CPUs held",
        "job_cpu_hours": "CPU time used",
        "job_system_pct": "CPU time in the kernel",
        "cpu_hours": "CPU time held",
        "node_cpu_hours": "CPU time held",
        "job_threads_max": "threads, most",
        "job_processes_avg": "processes",
        "job_ran_beside_pct": "computed by other threads",
        "job_ran_apart_pct": "computed by other processes",
        "job_runnable_threads_avg": "threads that could run",
        "job_affinity_cpus": "CPUs by its own affinity",
        "job_quota_cores": "CPUs by its own quota",
        "job_voluntary_switches": "switches to wait",
        "job_involuntary_switches": "switches forced",
    },
    "Memory of the job": {
        "job_max_mem_mb": "memory, peak",
        "mem_limit_mb": "memory held",
        "job_mem_growth_mb_per_min": "memory growth",
        "max_t_cgroup_mem_percent": "control group's memory, peak",
        "max_t_cgroup_held_mb": "group's memory, no cache",
        "max_t_cgroup_tmpfs_mb": "files in memory, peak",
        "oom_kills": "processes killed for memory",
    },
    "Disk of the job": {
        "job_io_read_mb": "read from disks",
        "job_io_write_mb": "written to disks",
        "job_read_calls": "read calls",
        "job_write_calls": "write calls",
        "job_calls_mb": "read and written by calls",
        "job_blocked_pct": "looks that found it blocked",
        "job_looks": "looks at its threads",
    },
    "GPU": {
        "gpu_avg_utilization_pct": "GPU busy",
        "max_t_gpu_mem_percent": "GPU memory, peak",
        "max_t_gpu_mem_mb": "fullest GPU's memory, peak",
        "gpu_others_avg_utilization_pct": "GPU busy with others",
        "max_t_gpu_others_mem_percent": "others' GPU memory, peak",
        "gpu_hours": "GPU time held",
        "node_gpu_hours": "GPU time held",
        "unused_gpu_hours": "GPU time unused",
        "node_unused_gpu_hours": "GPU time unused",
        "gpu_energy_wh": "GPU energy",
    },
    "Cost": {
        "cost": "cost",
        "node_cost": "cost",
        "unused_cost": "cost unused",
        "node_unused_cost": "cost unused",
        "energy_wh": "energy",
        "node_energy_wh": "energy",
        "carbon_g": "CO2",
        "node_carbon_g": "CO2",
        "perf_overhead_pct": "measuring, of one CPU",
        "perf_mem_mb": "memory of measuring",
        "perf_mem_beside_mb": "memory beside the command",
    },
    "The whole node": {
        "cpu_avg_utilization_pct": "node's CPUs busy",
        "cpu_avg_utilization_over20_pct": "node's CPUs over 20% busy",
        "cpu_avg_utilization_over40_pct": "node's CPUs over 40% busy",
        "cpu_avg_utilization_over80_pct": "node's CPUs over 80% busy",
        "cpu_avg_utilization_at100_pct": "node's CPUs all busy",
        "host_cpu_avg_utilization_pct": "host's CPUs busy",
        "max_t_cpu_pct_per_cpu_avg": "node's CPUs busy, peak",
        "max_t_cpu_pct_per_cpu_max": "busiest CPU, peak",
        "max_t_cpu_pct_per_cpu_min": "least busy CPU, peak",
        "others_cpu_avg_cores": "CPUs used by others",
        "idle_cpu_avg_cores": "CPUs idle",
        "node_used_cpu_hours": "CPU time of all processes",
        "unused_cpu_hours": "CPU time used by nobody",
        "node_unused_cpu_hours": "CPU time used by nobody",
        "others_max_mem_mb": "others' memory, peak",
        "max_t_mem_percent": "node's memory, peak",
        "max_t_swap_percent": "node's swap, peak",
        "max_t_disk_usage_percent": "root disk fill, peak",
        "total_disk_io_read_mb": "node's disks, read",
        "total_disk_io_write_mb": "node's disks, written",
        "total_net_io_ext_recv_mb": "node's network, received",
        "total_net_io_ext_sent_mb": "node's network, sent",
        "total_net_io_lo_recv_mb": "loopback, received",
        "total_net_io_lo_sent_mb": "loopback, sent",
        "iowait_pct": "node waiting for disks",
        "cpu_steal_pct": "CPU time stolen by the host",
        "cpu_stall_pct": "some task waiting for a CPU",
        "mem_stall_pct": "some task waiting for memory",
        "io_stall_pct": "some task waiting for a disk",
    },
}
"""Group → key → name, in the order in which people read them. A run's figure (`run_…`) has the
name of the node's one."""

OPERATIONS, LOOPS, TRANSFERS, OTHER = "Operations", "Steps of loops", "Transfers", "Other"
_PREFIXES = {"ops/": OPERATIONS, "steps/": LOOPS, "transfers/": TRANSFERS}
_OF_KEY = {key: (group, name) for group, names in GROUPS.items() for key, name in names.items()}
_OF_ONE_GPU = re.compile(r"gpu(\d+)_(utilization_pct|avg_utilization_pct|(?:max_t_)?mem_percent)")
_FIGURES = {
    "avg": "mean", "mean": "mean", "min": "shortest", "max": "longest", "total": "in total",
    "p50": "median", "p95": "95% within", "p99": "99% within", "count": "count",
    "input_pct": "waiting for input",
}  # fmt: skip
_UNIT_ENDS = ("_time_ms", "_ms", "_mb", "_sec", "_pct", "_percent")


def name_metric(key: str) -> str:
    """Return a metric's name for people: `waiting for a CPU`; for a user's own metric its key."""
    known = _find(key)
    if known is not None:
        return known[1]
    if (gpu := _OF_ONE_GPU.fullmatch(key)) is not None:
        return f"GPU {gpu[1]} {'memory, peak' if 'mem' in gpu[2] else 'busy'}"
    prefix, *rest = key.split("/")
    if f"{prefix}/" not in _PREFIXES or len(rest) < 2:
        return key
    name, figure = "/".join(rest[:-1]), rest[-1]
    if prefix == "steps" and name.endswith("/part"):
        return f"{name.removesuffix('/part')}: {_strip_unit(figure)} of a step"
    figure = _FIGURES.get(figure) or _FIGURES.get(_strip_unit(figure)) or figure
    return f"{name}, {figure}"


def group_metric(key: str) -> str:
    """Return the group in which tables show a metric: one of `GROUPS`, or by its prefix."""
    known = _find(key)
    if known is not None:
        return known[0]
    if _OF_ONE_GPU.fullmatch(key):
        return "GPU"
    return next((group for prefix, group in _PREFIXES.items() if key.startswith(prefix)), OTHER)


def _find(key: str) -> tuple[str, str] | None:
    return _OF_KEY.get(key) or _OF_KEY.get(key.removeprefix("run_"))


def _strip_unit(figure: str) -> str:
    for end in _UNIT_ENDS:
        if figure.endswith(end):
            return figure.removesuffix(end)
    return figure
