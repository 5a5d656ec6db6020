"""The columns of a report: a table of every value that our own readers write.

Readers, series and the summary look up kinds and units here, so that reports loaded from a file are
merged and summed like live ones.
"""

from __future__ import annotations

import functools
import re
from dataclasses import replace

from mlflow_perf.records import Column, Kind

_GAUGE, _COUNTER = Kind.GAUGE, Kind.COUNTER

SAMPLER_COLUMNS = (
    Column("timestamp", _COUNTER, "s", "Unix time of the report: the start's, plus `elapsed_sec`."),
    Column("elapsed_sec", _COUNTER, "s", "Time since the start, on a clock that never jumps."),
)
CPU_COLUMNS = (
    Column("cpu_pct_per_cpu_avg", _GAUGE, "%", "Mean utilisation of the CPUs.", True),
    Column("cpu_pct_per_cpu_min", _GAUGE, "%", "Utilisation of the least busy CPU.", True),
    Column("cpu_pct_per_cpu_max", _GAUGE, "%", "Utilisation of the busiest CPU.", True),
    Column("cpu_busy_sec", _COUNTER, "s", "Busy time summed over the CPUs."),
    Column("cpu_ticks_sec", _COUNTER, "s", "Busy and idle time summed over the CPUs."),
    Column("cpu_iowait_sec", _COUNTER, "s", "Idle time with a disk request outstanding."),
    Column("cpu_steal_sec", _COUNTER, "s", "Time in which a CPU had work and the host ran others."),
    Column("cpu_limit_cores", _GAUGE, "cores", "CPUs that the job may use."),
)
HOST_CPU_COLUMNS = (
    Column(
        "host_cpu_pct_per_cpu_avg", _GAUGE, "%", "Mean utilisation of all the node's CPUs.", True
    ),
    Column("host_cpu_busy_sec", _COUNTER, "s", "Busy time summed over all the node's CPUs."),
    Column("host_cpu_ticks_sec", _COUNTER, "s", "Busy and idle time of all the node's CPUs."),
    Column("host_cpu_cores", _GAUGE, "cores", "CPUs of the node."),
)
"""Columns of the whole node, in addition to the job's, if the job does not own all of it."""
LIMIT_COLUMNS = (Column("mem_limit_mb", _GAUGE, "MB", "Memory that the job may use."),)
CGROUP_COLUMNS = (
    Column("cgroup_mem_mb", _GAUGE, "MB", "Memory of the job's control group, idle cache aside."),
    Column("cgroup_mem_percent", _GAUGE, "%", "The same, of the control group's limit."),
    Column("cgroup_held_mb", _GAUGE, "MB", "Memory of a group with a limit, page cache aside."),
    Column("cgroup_tmpfs_mb", _GAUGE, "MB", "Files in memory that it got since the start."),
    Column("cpu_throttled_sec", _COUNTER, "s", "Time in which the CPU quota held the job back."),
    Column("oom_kills", _COUNTER, "", "Processes that the kernel killed for lack of memory."),
)
PRESSURE_COLUMNS = (
    Column("cpu_stall_sec", _COUNTER, "s", "Time in which some task waited for a CPU."),
    Column("mem_stall_sec", _COUNTER, "s", "Time in which some task waited for memory."),
    Column("io_stall_sec", _COUNTER, "s", "Time in which some task waited for IO."),
)
BUSY_CORES = 0.95
"""A job that uses as many CPUs keeps one busy, and is not looked at for blocked threads."""

JOB_COLUMNS = (
    Column("job_cpu_sec", _COUNTER, "s", "CPU time of the job's processes, ended ones included."),
    Column("job_system_sec", _COUNTER, "s", "The part of it that the kernel worked for them."),
    Column("job_cpu_cores", _GAUGE, "cores", "CPUs that the job's processes kept busy.", True),
    Column("job_processes", _GAUGE, "", "Processes of the job."),
    Column("job_mem_mb", _GAUGE, "MB", "Memory of the job's processes together."),
    Column("job_mem_peak_mb", _GAUGE, "MB", "Most that one of them had, as the kernel keeps it."),
    Column("job_io_read_mb", _COUNTER, "MB", "Read from disks by the job's processes."),
    Column("job_io_write_mb", _COUNTER, "MB", "Written to disks by the job's processes."),
    Column("job_read_calls", _COUNTER, "", "System calls of the job's processes that read."),
    Column("job_write_calls", _COUNTER, "", "System calls of the job's processes that write."),
    Column("job_calls_mb", _COUNTER, "MB", "What these read and wrote, from memory and pipes too."),
    Column("job_threads", _GAUGE, "", "Threads of the job's processes."),
    Column("job_ran_sec", _COUNTER, "s", "Time in which the threads of the job ran."),
    Column("job_run_delay_sec", _COUNTER, "s", "Time in which they waited for a CPU meanwhile."),
    Column("job_ran_beside_sec", _COUNTER, "s", "Time in which others than the busiest ran."),
    Column("job_ran_apart_sec", _COUNTER, "s", "That of all but the busiest process."),
    Column("job_looks", _COUNTER, "", "Looks at its threads while it used less than a CPU."),
    Column("job_blocked_looks", _COUNTER, "", "Those that found one blocked, as by a disk."),
    Column("job_affinity_cpus", _GAUGE, "CPUs", "CPUs that threads which lack one may run on."),
    Column("job_quota_cores", _GAUGE, "CPUs", "Quota that the job gave to such threads."),
    # Of a command they are known at its end alone.
    Column(
        "job_voluntary_switches",
        _COUNTER,
        "",
        "Times that threads of the job gave up their CPU.",
        is_from_zero=True,
    ),
    Column(
        "job_involuntary_switches",
        _COUNTER,
        "",
        "Times that threads of the job lost their CPU.",
        is_from_zero=True,
    ),
)
GPU_COLUMNS = (
    Column("gpu_count", _GAUGE, "GPUs", "GPUs that the job may use."),
    Column("gpu_utilization_pct", _GAUGE, "%", "Mean utilisation of its GPUs by the job.", True),
    Column("gpu_mem_percent", _GAUGE, "%", "Memory of its GPUs that the job uses."),
    Column("gpu_mem_mb", _GAUGE, "MB", "Memory that the job uses on the fullest of its GPUs."),
    Column("gpu_others_utilization_pct", _GAUGE, "%", "The same utilisation, by others.", True),
    Column("gpu_others_mem_percent", _GAUGE, "%", "Memory of the job's GPUs that others use."),
)
_ONE_GPU_COLUMNS = (
    Column("utilization_pct", _GAUGE, "%", "Utilisation of this GPU by the job.", True),
    Column("mem_percent", _GAUGE, "%", "Memory of this GPU that the job uses."),
    Column("energy_wh", _COUNTER, "Wh", "Energy that this GPU used."),
)
ENERGY_COLUMNS = (
    Column("cpu_energy_wh", _COUNTER, "Wh", "Energy of the CPU packages and their memory."),
)
CARBON_COLUMNS = (
    Column(
        "carbon_g", _COUNTER, "g", "CO2 equivalent that the node emitted: CodeCarbon's estimate."
    ),
    Column("carbon_energy_wh", _COUNTER, "Wh", "Energy that the estimate is of, modelled in part."),
)
MEMORY_COLUMNS = (
    Column("mem_percent", _GAUGE, "%", "Memory that is not available to a new process."),
    Column("swap_percent", _GAUGE, "%", "Swap space in use; absent without swap."),
    Column("host_mem_mb", _GAUGE, "MB", "Memory of the node."),
)
NODE_SPLIT_COLUMNS = (
    Column(
        "others_cpu_cores", _GAUGE, "cores", "Busy CPUs of the node, less `job_cpu_cores`.", True
    ),
    Column("idle_cpu_cores", _GAUGE, "cores", "CPUs of the node that nobody used.", True),
    Column("others_mem_mb", _GAUGE, "MB", "Memory in use on the node, less `job_mem_mb`."),
    Column("idle_mem_mb", _GAUGE, "MB", "Memory of the node that is available."),
)
"""The node beside the job; other processes, the kernel and a virtual machine's host are others.

The node's and the job's figures come from different counters of the kernel, so a small difference
is noise: busy CPUs are counted in steps of 10 ms, and available memory is the kernel's estimate.
"""
DISK_IO_COLUMNS = (
    Column("disk_io_read_mb", _COUNTER, "MB", "Read from the node's disks."),
    Column("disk_io_write_mb", _COUNTER, "MB", "Written to the node's disks."),
)
DISK_USAGE_COLUMNS = (
    Column("disk_usage_percent", _GAUGE, "%", "How full the root file system is."),
)
NETWORK_COLUMNS = (
    Column("net_io_lo_sent_mb", _COUNTER, "MB", "Sent over the loopback interface."),
    Column("net_io_lo_recv_mb", _COUNTER, "MB", "Received over the loopback interface."),
    Column("net_io_ext_sent_mb", _COUNTER, "MB", "Sent over the other interfaces."),
    Column("net_io_ext_recv_mb", _COUNTER, "MB", "Received over the other interfaces."),
)

COLUMNS: dict[str, Column] = {
    column.name: column
    for group in (
        SAMPLER_COLUMNS,
        CPU_COLUMNS,
        MEMORY_COLUMNS,
        DISK_IO_COLUMNS,
        DISK_USAGE_COLUMNS,
        NETWORK_COLUMNS,
        HOST_CPU_COLUMNS,
        LIMIT_COLUMNS,
        CGROUP_COLUMNS,
        PRESSURE_COLUMNS,
        JOB_COLUMNS,
        NODE_SPLIT_COLUMNS,
        GPU_COLUMNS,
        ENERGY_COLUMNS,
        CARBON_COLUMNS,
    )
    for column in group
}
"""Column name → its record, for every column of our own readers."""


_OF_ONE_GPU = re.compile(r"gpu(\d+)_(.+)")
_ONE_GPU = {column.name: column for column in _ONE_GPU_COLUMNS}


def make_gpu_columns(index: int) -> tuple[Column, ...]:
    """Return the columns of one GPU: `gpu0_utilization_pct` and so on."""
    return tuple(replace(column, name=f"gpu{index}_{column.name}") for column in _ONE_GPU_COLUMNS)


@functools.lru_cache(maxsize=4096)
def parse_gpu_index(name: str) -> int | None:
    """Return the GPU number in the name of a GPU's own column; None for any other column."""
    found = _OF_ONE_GPU.fullmatch(name)
    return int(found[1]) if found and found[2] in _ONE_GPU else None


@functools.lru_cache(maxsize=4096)
def lookup_kind(name: str) -> Kind:
    """Return whether a column is a gauge or a counter; an unknown column is a gauge."""
    column = COLUMNS.get(name)
    if column is None and (found := _OF_ONE_GPU.fullmatch(name)):
        column = _ONE_GPU.get(found[2])
    return Kind.GAUGE if column is None else column.kind


SYSTEM_KEYS = {
    "job_cpu_cores": "job_cpu_cores",
    "job_mem_mb": "job_memory_megabytes",
    "cpu_pct_per_cpu_avg": "cpu_utilization_percentage",
    "mem_percent": "system_memory_usage_percentage",
    "disk_usage_percent": "disk_usage_percentage",
    "net_io_ext_recv_mb": "network_receive_megabytes",
    "net_io_ext_sent_mb": "network_transmit_megabytes",
    "gpu_utilization_pct": "gpu_0_utilization_percentage",
}
"""Column of a report → the key under which MLflow's "System metrics" tab shows it,
where `live=True` sends it."""
