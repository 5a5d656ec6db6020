"""The charts of a report and the curves in them, in one table."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import Enum

from mlflow_perf.model.columns import COLUMNS, lookup_kind
from mlflow_perf.records import Kind

_PEAK_SUFFIX = "_max"
_MOST_OTHER_CHARTS = 12
# Columns that never change, or that another column shows better.
NEVER_DRAWN = {
    "timestamp", "elapsed_sec", "cpu_busy_sec", "cpu_ticks_sec", "host_cpu_busy_sec",
    "host_cpu_ticks_sec", "host_cpu_cores", "job_cpu_sec", "job_mem_peak_mb", "oom_kills",
    "job_system_sec", "job_calls_mb", "job_looks", "job_blocked_looks",
    "host_mem_mb", "job_ran_sec", "job_ran_beside_sec", "job_ran_apart_sec",
    "job_voluntary_switches", "job_involuntary_switches", "job_affinity_cpus", "job_quota_cores",
    "cgroup_held_mb",
}  # fmt: skip


class CurveSource(Enum):
    """How a curve is calculated from its column."""

    VALUE = "value"
    """The column as it is."""
    RATE = "rate"
    """A counter's growth per second."""
    SHARE = "share"
    """A counter of seconds: its growth per second, in per cent."""


@dataclass(frozen=True)
class Curve:
    """One curve of a chart.

    Attributes:
        column: The column of the reports.
        label: Its name in the legend.
        source: How it is calculated from the column.
        role: `line`; `low` or `high` for an edge of the band around the chart's first line; `limit`
            for a line that the others stay below; `rest` for the remainder below it.
    """

    column: str
    label: str
    source: CurveSource = CurveSource.VALUE
    role: str = "line"


@dataclass(frozen=True)
class Chart:
    """One chart.

    Attributes:
        name: Identifier in the page.
        title: Heading.
        unit: Unit of the vertical axis.
        meaning: One sentence for the tooltip and for screen readers.
        curves: Its curves.
        top: Fixed end of the vertical axis; None to fit the values.
        minor: Whether it is folded away below the others.
        stacked: Whether the lines of one node are put on top of each other.
    """

    name: str
    title: str
    unit: str
    meaning: str
    curves: tuple[Curve, ...]
    top: float | None = None
    minor: bool = False
    stacked: bool = False


# fmt: off
CHARTS: tuple[Chart, ...] = (
    Chart("cpu_share", "CPUs: job, others, idle", "cores", "CPUs that the job kept busy, that "
          "other processes kept busy, and that were idle, up to the job's limit.", (
              Curve("job_cpu_cores", "job"),
              Curve("others_cpu_cores", "others"),
              Curve("idle_cpu_cores", "idle", role="rest"),
              Curve("cpu_limit_cores", "limit", role="limit"),
          ), stacked=True),
    Chart("job_memory", "Job's memory", "MB", "Memory of the job's own processes.", (
              Curve("job_mem_mb", "processes"),
              Curve("cgroup_mem_mb", "control group"),
              Curve("cgroup_tmpfs_mb", "files in memory"),
              Curve("mem_limit_mb", "limit", role="limit"),
          )),
    Chart("mem_share", "Memory: job, others, free", "MB", "Memory of the job's own processes, of "
          "others on the node, and what was free.", (
              Curve("job_mem_mb", "job"),
              Curve("others_mem_mb", "others"),
              Curve("idle_mem_mb", "free", role="rest"),
              Curve("mem_limit_mb", "limit", role="limit"),
          ), stacked=True),
    Chart("cpu", "Node's CPUs", "%", "Utilisation of the CPUs that the job may use, by all "
          "processes: their mean, between the least and the most busy one.", (
              Curve("cpu_pct_per_cpu_avg", "mean"),
              Curve("cpu_pct_per_cpu_min", "least busy CPU", role="low"),
              Curve("cpu_pct_per_cpu_max", "busiest CPU", role="high"),
          ), 100.0),
    Chart("memory", "Node's memory", "%", "Share of the memory in use, by all processes.", (
              Curve("mem_percent", "node"),
              Curve("cgroup_mem_percent", "control group, of its limit"),
              Curve("swap_percent", "swap"),
          ), 100.0),
    Chart("gpu", "GPU", "%", "Utilisation and memory of the GPUs that the job owns.", (
              Curve("gpu_utilization_pct", "utilisation by the job"),
              Curve("gpu_mem_percent", "memory of the job"),
              Curve("gpu_others_utilization_pct", "utilisation by others"),
              Curve("gpu_others_mem_percent", "memory of others"),
          ), 100.0),
    Chart("gpu_memory", "GPU memory", "MB", "Memory that the job uses on the fullest GPU.", (
              Curve("gpu_mem_mb", "job"),
          ), minor=True),
    Chart("job_io", "Job's disk IO", "MB/s", "Read from and written to disks by the job's own "
          "processes.", (
              Curve("job_io_read_mb", "read", CurveSource.RATE),
              Curve("job_io_write_mb", "written", CurveSource.RATE),
          )),
    Chart("disk", "Node's disks", "MB/s", "Read from and written to the node's disks, by all "
          "processes.", (
              Curve("disk_io_read_mb", "read", CurveSource.RATE),
              Curve("disk_io_write_mb", "written", CurveSource.RATE),
          )),
    Chart("network", "Node's network", "MB/s", "Sent and received over all interfaces "
          "but loopback, by all processes.", (
              Curve("net_io_ext_recv_mb", "received", CurveSource.RATE),
              Curve("net_io_ext_sent_mb", "sent", CurveSource.RATE),
          )),
    Chart("loopback", "Loopback", "MB/s", "Moved between processes of the same node over the "
          "loopback interface.", (
              Curve("net_io_lo_recv_mb", "received", CurveSource.RATE),
              Curve("net_io_lo_sent_mb", "sent", CurveSource.RATE),
          ), minor=True),
    Chart("stalls", "Stalls", "%", "Share of the time in which some task waited for the "
          "resource (pressure stall information), or was throttled.", (
              Curve("cpu_stall_sec", "CPU", CurveSource.SHARE),
              Curve("mem_stall_sec", "memory", CurveSource.SHARE),
              Curve("io_stall_sec", "IO", CurveSource.SHARE),
              Curve("cpu_throttled_sec", "throttled", CurveSource.SHARE),
          )),
    Chart("iowait", "IO wait and steal", "cores", "CPUs that were idle while a disk request was "
          "outstanding, and that had work while the host of this virtual machine ran others.", (
              Curve("cpu_iowait_sec", "IO wait", CurveSource.RATE),
              Curve("cpu_steal_sec", "steal", CurveSource.RATE),
          ), minor=True),
    Chart("job_threads", "Job's threads", "", "Threads of the job, and those of them that waited "
          "for a CPU.", (
              Curve("job_threads", "threads"),
              Curve("job_run_delay_sec", "waiting for a CPU", CurveSource.RATE),
          ), minor=True),
    Chart("job_calls", "Job's system calls", "per s", "System calls of the job that read or "
          "write.", (
              Curve("job_read_calls", "read", CurveSource.RATE),
              Curve("job_write_calls", "write", CurveSource.RATE),
          ), minor=True),
    Chart("host_cpu", "All CPUs of the node", "%", "Mean utilisation of all the node's "
          "CPUs, those that the job does not own included.",
          (Curve("host_cpu_pct_per_cpu_avg", "mean"),), 100.0, minor=True),
    Chart("processes", "Processes", "", "Processes of the job.",
          (Curve("job_processes", "job"),), minor=True),
    Chart("disk_usage", "Disk fill", "%", "How full the root file system is.",
          (Curve("disk_usage_percent", "root"),), 100.0, minor=True),
)
# fmt: on
"""The charts in the order of the page."""

_PER_GPU = re.compile(r"gpu(\d+)_(utilization_pct|mem_percent)")


def select_charts(columns: Iterable[str]) -> list[Chart]:
    """Return the charts that have a curve among these columns; charts of unknown columns last.

    Args:
        columns: Names of the columns of any node.
    """
    names = dict.fromkeys(columns)
    charts = [
        replace(spec, curves=curves)
        for spec in CHARTS
        if (curves := tuple(curve for curve in spec.curves if curve.column in names))
    ]
    known = {curve.column for spec in CHARTS for curve in spec.curves} | NEVER_DRAWN
    peaks = {f"{name}{_PEAK_SUFFIX}" for name in names}
    others = [name for name in names if name not in known and name not in peaks]
    gpus = [name for name in others if _PER_GPU.fullmatch(name)]
    for kind, title in (("utilization_pct", "Each GPU"), ("mem_percent", "Each GPU's memory")):
        curves = tuple(Curve(n, n.split("_")[0].upper()) for n in gpus if n.endswith(kind))
        if len(curves) > 1:
            charts.append(Chart(f"gpus_{kind}", title, "%", f"{title}, one by one.", curves, 100.0))
    others = [name for name in others if name not in gpus][:_MOST_OTHER_CHARTS]
    # Columns in no chart of the table, such as those of a user's reader, get one each.
    for number, name in enumerate(others):
        column = COLUMNS.get(name)
        unit = "" if column is None else column.unit
        meaning = f"The column {name}." if column is None else column.meaning
        curve = Curve(name, name)
        if lookup_kind(name) is Kind.COUNTER:
            curve, unit = Curve(name, name, CurveSource.RATE), f"{unit}/s" if unit else "per s"
        top = 100.0 if unit == "%" else None
        charts.append(Chart(f"other{number}", name, unit, meaning, (curve,), top))
    return charts
