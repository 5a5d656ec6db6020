"""The metrics of a node, one row each."""

from __future__ import annotations

from dataclasses import dataclass

from mlflow_perf.model.metrics import formulas as by
from mlflow_perf.model.metrics.formulas import SHARE_COLUMN, Formula

# MLflow shows each metric as a chart, so that a node has at most 40 by default: the essential ones,
# less those that follow from others, and what the job itself used, may use and waited for.
_OTHERWISE = frozenset(
    {
        *("node_count", "node_used_cpu_hours", "oom_kills"),
        *("job_max_cpu_cores", "job_cpu_hours", "job_io_read_mb", "job_io_write_mb"),
        *("cpu_limit_cores", "mem_limit_mb", "cpu_stall_pct", "mem_stall_pct", "io_stall_pct"),
        *("max_t_gpu_mem_percent", "node_gpu_hours", "node_unused_gpu_hours", "node_unused_cost"),
        *("gpu_others_avg_utilization_pct", "max_t_gpu_mem_mb"),
    }
)


@dataclass(frozen=True)
class Metric:
    """One metric of a node.

    Attributes:
        key: Name in MLflow and in the document's summary.
        unit: Unit of the value.
        source: Where the figures come from.
        formula: How it is computed, for people.
        meaning: Its meaning, in one sentence.
        compute: The formula, as code.
        better: `"lower"` or `"higher"` where one of them is better for the same work, else `""`.
        essential: Whether a store that takes few metrics gets this one before all others.
        is_signed: Whether it can be negative.
    """

    key: str
    unit: str
    source: str
    formula: str
    meaning: str
    compute: Formula
    better: str = ""
    essential: bool = False
    is_signed: bool = False

    @property
    def by_default(self) -> bool:
        """Whether MLflow gets this metric unless `MLFLOW_PERF_METRICS=all` asks for every one."""
        return self.essential != (self.key in _OTHERWISE)


def _over(threshold: int) -> Metric:
    return Metric(
        f"cpu_avg_utilization_over{threshold}_pct", "%", "cpu",
        f"time with `{SHARE_COLUMN}` ≥ {threshold} / duration",
        f"Share of the time in which the CPUs were on average at least {threshold}% busy.",
        by.share_above(float(threshold)), essential=True,
    )  # fmt: skip


def _moved(column: str, source: str, what: str) -> Metric:
    return Metric(
        f"total_{column}", "MB", source, f"`{column}` at the end − at the start",
        f"{what} during the block (1 MB = 2^20 bytes).", by.total(column), "lower",
        essential=True,
    )  # fmt: skip


# fmt: off
METRICS: tuple[Metric, ...] = (
    Metric("cpu_avg_utilization_pct", "%", "cpu",
           "busy time / (busy + idle time) of the CPUs, from the kernel's counters",
           "Average utilisation of the CPUs that the job may use, over the whole block.",
           by.cpu_average_pct, "higher", essential=True),
    _over(20),
    _over(40),
    _over(80),
    Metric("cpu_avg_utilization_at100_pct", "%", "cpu",
           f"time with `{SHARE_COLUMN}`, rounded to 0.1, ≥ 100 / duration",
           "Share of the time in which every CPU was fully busy.", by.share_above(100.0),
           essential=True),
    Metric("max_t_cpu_pct_per_cpu_avg", "%", "cpu", "max over time of `cpu_pct_per_cpu_avg`",
           "Highest mean utilisation of the CPUs in any interval.", by.peak("cpu_pct_per_cpu_avg"),
           essential=True),
    Metric("max_t_cpu_pct_per_cpu_max", "%", "cpu", "max over time of `cpu_pct_per_cpu_max`",
           "Highest utilisation of the busiest CPU in any interval.",
           by.peak("cpu_pct_per_cpu_max"), essential=True),
    Metric("max_t_cpu_pct_per_cpu_min", "%", "cpu", "max over time of `cpu_pct_per_cpu_min`",
           "Highest utilisation of the least busy CPU in any interval.",
           by.peak("cpu_pct_per_cpu_min"), essential=True),
    Metric("node_cpu_hours", "CPU h", "cpu", "duration × CPUs the job owns / 3600",
           "CPU-hours that the job held, used or not.", by.cpu_hours, "lower", essential=True),
    Metric("node_used_cpu_hours", "CPU h", "cpu", "`node_cpu_hours` × utilisation",
           "CPU-hours that were busy.", by.used_cpu_hours, "lower", essential=True),
    Metric("node_unused_cpu_hours", "CPU h", "cpu", "`node_cpu_hours` × (1 − utilisation)",
           "CPU-hours that the job held and that were idle.", by.unused_cpu_hours, "lower",
           essential=True),
    Metric("max_t_mem_percent", "%", "memory", "max over time of `mem_percent`",
           "Peak share of the memory in use.", by.peak("mem_percent"), "lower", essential=True),
    Metric("max_t_disk_usage_percent", "%", "disk", "max over time of `disk_usage_percent`",
           "Peak fill of the root file system.", by.peak("disk_usage_percent"), "lower",
           essential=True),
    _moved("disk_io_read_mb", "disk", "Read from the node's disks"),
    _moved("disk_io_write_mb", "disk", "Written to the node's disks"),
    _moved("net_io_lo_sent_mb", "network", "Sent over the loopback interface"),
    _moved("net_io_ext_sent_mb", "network", "Sent over the other interfaces"),
    _moved("net_io_lo_recv_mb", "network", "Received over the loopback interface"),
    _moved("net_io_ext_recv_mb", "network", "Received over the other interfaces"),
    Metric("duration_sec", "s", "clock", "monotonic clock, end − start",
           "How long the block took.", lambda f: f.duration(), "lower", essential=True),
    Metric("node_count", "", "launcher", "as the launcher says",
           "Number of nodes of the job.", by.fact("node_count"), essential=True),
    Metric("iowait_pct", "%", "cpu", "iowait time / (busy + idle time) of the CPUs",
           "Share of the CPU time that was idle while a disk request was outstanding.",
           by.ratio_pct("cpu_iowait_sec", "cpu_ticks_sec"), "lower"),
    Metric("cpu_steal_pct", "%", "cpu", "steal time / (busy + idle time) of the CPUs",
           "Share of the CPU time in which a CPU of this virtual machine had work and its host ran "
           "others; utilisation counts it as busy, the job's own CPU time does not hold it.",
           by.ratio_pct("cpu_steal_sec", "cpu_ticks_sec"), "lower"),
    Metric("max_t_swap_percent", "%", "memory", "max over time of `swap_percent`",
           "Peak share of the swap space in use; absent without swap.",
           by.peak("swap_percent"), "lower"),
    Metric("cpu_limit_cores", "CPUs", "limits",
           "least of affinity, control group's quota and scheduler's allocation",
           "CPUs that the job may use; utilisation and hours are of these.",
           by.peak("cpu_limit_cores")),
    Metric("mem_limit_mb", "MB", "limits",
           "least of the node's memory, control group's limit and scheduler's allocation",
           "Memory that the job may use.", by.peak("mem_limit_mb")),
    Metric("host_cpu_avg_utilization_pct", "%", "cpu",
           "busy time / (busy + idle time) of all the node's CPUs",
           "Average utilisation of the whole node, where the job does not own all of it.",
           by.ratio_pct("host_cpu_busy_sec", "host_cpu_ticks_sec")),
    Metric("job_cpu_avg_cores", "CPUs", "processes", "`job_cpu_sec` / duration",
           "CPUs that the job's own processes kept busy on average, ended ones included.",
           by.per_duration("job_cpu_sec"), essential=True),
    Metric("job_max_cpu_cores", "CPUs", "processes", "max over time of `job_cpu_cores`",
           "Most CPUs that the job's own processes kept busy in any interval.",
           by.highest(by.peak("job_cpu_cores"), by.per_duration("job_cpu_sec"))),
    Metric("job_cpu_hours", "CPU h", "processes", "`job_cpu_sec` / 3600",
           "CPU time of the job's own processes, ended ones included.",
           by.hours("job_cpu_sec"), "lower"),
    Metric("job_system_pct", "%", "processes", "`job_system_sec` / `job_cpu_sec`",
           "Share of that CPU time in which the kernel worked for them: much with small reads and "
           "writes, little where they compute.",
           by.ratio_pct("job_system_sec", "job_cpu_sec")),
    Metric("job_max_mem_mb", "MB", "processes",
           "max over time of `job_mem_mb`, and the kernel's peak of one process",
           "Peak memory of the job's own processes together.",
           by.highest(by.peak("job_mem_mb"), by.peak("job_mem_peak_mb")), "lower", essential=True),
    Metric("others_cpu_avg_cores", "CPUs", "cpu, processes",
           "busy CPUs of the node − `job_cpu_avg_cores`, at least 0",
           "CPUs of the node that others kept busy: other processes, the kernel, the host of a "
           "virtual machine. Below a tenth of a CPU it may be noise.", by.others_cpu_cores),
    Metric("idle_cpu_avg_cores", "CPUs", "cpu, processes",
           "CPUs of the node − busy ones", "Idle CPUs of the node, on average.",
           by.idle_cpu_cores),
    Metric("others_max_mem_mb", "MB", "memory, processes", "max over time of `others_mem_mb`",
           "Most memory in use on the node besides the job's; the kernel's estimate.",
           by.peak("others_mem_mb")),
    Metric("job_io_read_mb", "MB", "processes", "`job_io_read_mb` at the end − at the start",
           "Read from disks by the job's own processes, ended ones included.",
           by.total("job_io_read_mb"), "lower"),
    Metric("job_io_write_mb", "MB", "processes", "`job_io_write_mb` at the end − at the start",
           "Written to disks by the job's own processes, ended ones included.",
           by.total("job_io_write_mb"), "lower"),
    Metric("job_read_calls", "", "processes", "`job_read_calls` at the end − at the start",
           "System calls of the job's own processes that read, from files and from elsewhere.",
           by.total("job_read_calls"), "lower"),
    Metric("job_write_calls", "", "processes", "`job_write_calls` at the end − at the start",
           "System calls of the job's own processes that write, to files and to elsewhere.",
           by.total("job_write_calls"), "lower"),
    Metric("job_calls_mb", "MB", "processes", "`job_calls_mb` at the end − at the start",
           "What these calls read and wrote, from files in memory and pipes too.",
           by.total("job_calls_mb"), "lower"),
    Metric("job_mem_growth_mb_per_min", "MB/min", "processes",
           "slope of the straight line through `job_mem_mb`",
           "How fast the memory of the job's own processes grew over the block; from 5 s on.",
           by.growth_per_min("job_mem_mb"), is_signed=True),
    Metric("job_threads_max", "", "processes", "max over time of `job_threads`",
           "Most threads of the job's own processes at any sample.", by.peak("job_threads")),
    Metric("job_processes_avg", "", "processes", "time-weighted mean of `job_processes`",
           "Processes of the job, on average.", by.mean("job_processes")),
    Metric("job_ran_beside_pct", "%", "processes", "`job_ran_beside_sec` / `job_ran_sec`",
           "Share of the computing that others than the busiest thread of each process did: "
           "much where threads take turns under Python's lock, none with one busy thread.",
           by.ratio_pct("job_ran_beside_sec", "job_ran_sec")),
    Metric("job_ran_apart_pct", "%", "processes", "`job_ran_apart_sec` / `job_ran_sec`",
           "Share of the computing that others than the busiest process did at the time; none "
           "where a shell waits for one program.",
           by.ratio_pct("job_ran_apart_sec", "job_ran_sec")),
    Metric("job_looks", "", "processes", "`job_looks` at the end − at the start",
           "Looks at the states of the job's threads, while it used less than a CPU.",
           by.total("job_looks")),
    Metric("job_blocked_pct", "%", "processes", "`job_blocked_looks` / `job_looks`",
           "Share of these looks that found a thread which the kernel blocked (state `D`), as it "
           "does while it waits for a disk or a network file system.",
           by.ratio_pct("job_blocked_looks", "job_looks"), "lower"),
    Metric("job_runnable_threads_avg", "", "processes",
           "`job_cpu_avg_cores` / (1 − `job_run_delay_pct` / 100)",
           "Threads of the job that ran or waited for a CPU, on average.", by.runnable_threads),
    Metric("job_run_delay_pct", "%", "processes",
           "`job_run_delay_sec` / (`job_ran_sec` + `job_run_delay_sec`)",
           "Share of the time in which the job's threads were ready to run, but waited for a busy "
           "CPU.", by.run_delay_pct, "lower"),
    Metric("job_affinity_cpus", "CPUs", "processes", "time-weighted mean of `job_affinity_cpus`",
           "CPUs on which the job's threads that waited for one may run, where their own affinity "
           "(`taskset`, `numactl`) allows fewer than the job may use; absent at 90% or more.",
           by.affinity_cpus),
    Metric("job_quota_cores", "CPUs", "processes", "time-weighted mean of `job_quota_cores`",
           "CPU quota of control groups that the job's processes joined (`cgexec`, "
           "`systemd-run --scope`), where they waited for a CPU and it is less than the job may "
           "use.", by.mean("job_quota_cores")),
    Metric("job_voluntary_switches", "", "processes",
           "`job_voluntary_switches` at the end − at the start",
           "How often the job's threads gave up their CPU to wait; children and commands count "
           "when they end.", by.total("job_voluntary_switches")),
    Metric("job_involuntary_switches", "", "processes",
           "`job_involuntary_switches` at the end − at the start",
           "How often the job's threads lost their CPU to others; children and commands count when "
           "they end.", by.total("job_involuntary_switches")),
    Metric("cpu_throttled_pct", "%", "cgroup", "`cpu_throttled_sec` / duration",
           "Share of the time in which the CPU quota held the job back; absent without a quota.",
           by.time_share_pct("cpu_throttled_sec"), "lower"),
    Metric("max_t_cgroup_mem_percent", "%", "cgroup", "max over time of `cgroup_mem_percent`",
           "Peak memory of the job's control group, without idle cache, in per cent of its limit.",
           by.peak("cgroup_mem_percent"), "lower"),
    Metric("max_t_cgroup_held_mb", "MB", "cgroup", "max over time of `cgroup_held_mb`",
           "Peak memory of the control group with the job's limit, without page cache.",
           by.peak("cgroup_held_mb"), "lower"),
    Metric("max_t_cgroup_tmpfs_mb", "MB", "cgroup", "max over time of `cgroup_tmpfs_mb`",
           "Files in memory (tmpfs, `/dev/shm`) that this group got since the start.",
           by.peak("cgroup_tmpfs_mb"), "lower"),
    Metric("oom_kills", "", "cgroup", "`oom_kills` at the end − at the start",
           "Processes of the job that the kernel killed for lack of memory.",
           by.total("oom_kills"), "lower"),
    Metric("cpu_stall_pct", "%", "pressure", "`cpu_stall_sec` / duration",
           "Share of the time in which some task waited for a CPU.",
           by.time_share_pct("cpu_stall_sec"), "lower"),
    Metric("mem_stall_pct", "%", "pressure", "`mem_stall_sec` / duration",
           "Share of the time in which some task waited for memory.",
           by.time_share_pct("mem_stall_sec"), "lower"),
    Metric("io_stall_pct", "%", "pressure", "`io_stall_sec` / duration",
           "Share of the time in which some task waited for a disk.",
           by.time_share_pct("io_stall_sec"), "lower"),
    Metric("gpu_avg_utilization_pct", "%", "gpu", "time-weighted mean of `gpu_utilization_pct`",
           "Average utilisation of its GPUs by the job; by all where others cannot be told apart.",
           by.mean("gpu_utilization_pct"), "higher", essential=True),
    Metric("max_t_gpu_mem_percent", "%", "gpu", "max over time of `gpu_mem_percent`",
           "Peak share of its GPUs' memory that the job used.", by.peak("gpu_mem_percent"),
           "lower"),
    Metric("max_t_gpu_mem_mb", "MB", "gpu", "max over time of `gpu_mem_mb`",
           "Peak memory that the job used on the fullest of its GPUs.", by.peak("gpu_mem_mb"),
           "lower"),
    Metric("gpu_others_avg_utilization_pct", "%", "gpu",
           "time-weighted mean of `gpu_others_utilization_pct`",
           "Average utilisation of the job's GPUs by others.",
           by.mean("gpu_others_utilization_pct"), "lower"),
    Metric("max_t_gpu_others_mem_percent", "%", "gpu", "max over time of `gpu_others_mem_percent`",
           "Peak share of the memory of the job's GPUs that others used.",
           by.peak("gpu_others_mem_percent"), "lower"),
    Metric("node_gpu_hours", "GPU h", "gpu", "duration × GPUs the job owns / 3600",
           "GPU-hours that the job held, used or not.", by.gpu_hours, "lower"),
    Metric("node_unused_gpu_hours", "GPU h", "gpu", "`node_gpu_hours` × (1 − utilisation)",
           "GPU-hours that the job held and did not use.", by.unused_gpu_hours, "lower"),
    Metric("gpu_energy_wh", "Wh", "gpu", "sum of the GPUs' energy counters, end − start",
           "Energy that the job's GPUs used, from their own counters.",
           by.gpu_energy_wh, "lower"),
    Metric("node_energy_wh", "Wh", "energy", "energy of the CPUs + `gpu_energy_wh`",
           "Energy of CPU packages, their memory and the job's GPUs, as far as they have counters.",
           by.node_energy_wh, "lower"),
    Metric("node_carbon_g", "g", "carbon", "`carbon_g` at the end − at the start",
           "CO2 equivalent that the node emitted: CodeCarbon's estimate, only when asked for.",
           by.total("carbon_g"), "lower"),
    Metric("node_cost", "", "price", "price per node-hour × duration / 3600",
           "Cost of the node, in the currency of the given price.",
           by.node_cost, "lower", essential=True),
    Metric("node_unused_cost", "", "price",
           "`node_cost` × (1 − utilisation of the GPUs, without GPUs of the CPUs)",
           "Cost of the unused capacity.", by.unused_cost, "lower"),
    Metric("perf_overhead_pct", "%", "mlflow-perf", "CPU time of mlflow-perf / duration",
           "CPU time of mlflow-perf itself until the end of the block, with importing MLflow, as a "
           "share of one core; not part of the job's CPU time. `mlflow-perf run` imports MLflow "
           "after the command has ended, and that is left out.",
           by.fact("perf_overhead_pct"), "lower", essential=True),
    Metric("perf_mem_mb", "MB", "mlflow-perf", "memory that mlflow-perf added, MLflow included",
           "Memory of mlflow-perf itself, in the job's process or beside its command; not part of "
           "the job's memory, but the node needs it too. What a command's Python processes need to "
           "sample themselves is part of the job's.", by.fact("perf_mem_mb"), "lower"),
    Metric("perf_mem_beside_mb", "MB", "mlflow-perf", "memory of the wrappers at the command's end",
           "Memory of `mlflow-perf run` while its command ran; `perf_mem_mb` also counts MLflow, "
           "which is loaded for sending.", by.fact("perf_mem_beside_mb"), "lower"),
)
# fmt: on
"""Every metric of a node, in the order in which it is shown."""


def make_gpu_metrics(gpu: int | str) -> tuple[Metric, ...]:
    """Return the metrics of one GPU of the job: of its number, or of `<i>` for people."""
    name = f"gpu{gpu}"
    return (
        Metric(f"{name}_avg_utilization_pct", "%", "gpu",
               f"time-weighted mean of `{name}_utilization_pct`",
               "Average utilisation of this GPU by the job.", by.mean(f"{name}_utilization_pct"),
               "higher"),
        Metric(f"{name}_max_t_mem_percent", "%", "gpu", f"max over time of `{name}_mem_percent`",
               "Peak share of this GPU's memory that the job used.",
               by.peak(f"{name}_mem_percent"), "lower"),
        Metric(f"{name}_energy_wh", "Wh", "gpu", "this GPU's energy counter, end − start",
               "Energy that this GPU used.", by.total(f"{name}_energy_wh"), "lower"),
    )  # fmt: skip
