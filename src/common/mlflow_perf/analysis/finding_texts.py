"""Writes findings as sentences: the evidence with the job's own figures, and a recommendation."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from mlflow_perf.analysis.memory_trend import MemoryTrend
from mlflow_perf.analysis.span import Span
from mlflow_perf.analysis.time_shares import average_demand, summarise_time
from mlflow_perf.analysis.usage import Usage
from mlflow_perf.analysis.wanted_cpus import (
    FULL_PCT,
    SERIAL_PEAK,
    count_wanted_cpus,
    is_serial,
    waits_beside_idle,
)
from mlflow_perf.core.format import duration as format_duration
from mlflow_perf.core.format import format_count, one_decimal

__all__ = ["SENTENCES", "Facts"]

_ONE_BUSY = 0.75
_STOP_SEC = 5.0
_STOP_INTERVALS = 5
_LIFT = "let it use more (taskset, numactl, sched_setaffinity)"


@dataclass(frozen=True)
class Facts:
    """What the sentences are made of.

    Attributes:
        usage: The node's figures.
        spans: The job's time.
        totals: Kind of finding → its share of the time.
        trend: How the job's memory grew.
    """

    usage: Usage
    spans: Sequence[Span]
    totals: Mapping[str, float]
    trend: MemoryTrend

    @property
    def used(self) -> str:
        """How many of its CPUs the job used on average."""
        usage = self.usage
        if not usage.cores:
            return f"{usage.busy_pct:.0f}% of the CPUs"
        cores = one_decimal(usage.cores)
        return f"{one_decimal(usage.used_cores)} of {cores} CPU{'' if cores == '1' else 's'}"

    @property
    def busy(self) -> str:
        """How busy the CPUs were, and with the job where others had a part of it."""
        own = self.usage.busy_pct
        everyone = max(own, self.usage.node_busy_pct)
        own_part = f", {own:.0f}% with the job" if everyone - own >= 5 else ""
        return f"{everyone:.0f}% busy{own_part}"

    @property
    def gpus(self) -> str:
        """How busy the GPUs were, and with whom where others had a part of it."""
        own, others = self.usage["gpu_avg_utilization_pct"], self.usage.gpu_others_pct
        return f"{own:.0f}% busy" + (
            f" with the job and {others:.0f}% with others" if others else ""
        )

    @property
    def allowed(self) -> str:
        """How many of the CPUs the affinity of the job's own processes allows; empty if all."""
        usage = self.usage
        if not usage.affinity_cpus:
            return ""
        return f"{one_decimal(usage.affinity_cpus)} of {format_count(usage.cores, 'CPU')}"

    @property
    def wanted_cpus(self) -> int:
        """How many CPUs the job can use, as `advise` says."""
        return count_wanted_cpus(self.usage)


def describe_serial(facts: Facts) -> tuple[str, str]:
    usage = facts.usage
    if usage.used_cores > SERIAL_PEAK and "job_max_cpu_cores" not in usage:
        # Another system's record has the mean alone.
        return f"The job used {facts.used} on average", "run more of it in parallel"
    kept = "kept one CPU busy" if usage.used_cores >= _ONE_BUSY else "computed on one CPU at a time"
    text = f"The job {kept} ({facts.used})"
    do = "run it in parallel"
    # By the time that they computed: a moment of switches at the end says nothing of the job.
    computed = sum(span.used * span.seconds for span in facts.spans)
    in_turns = sum(span.takes_turns * span.used * span.seconds for span in facts.spans)
    if in_turns > 0.5 * computed:
        text = (
            f"The job's threads took turns on one CPU ({facts.used}), as Python's "
            "threads do under its lock (GIL)"
        )
        do = "use processes instead of threads"
        if usage.node_busy_pct > FULL_PCT:
            text += ", or as all threads do where others keep the other CPUs busy"
            do += " if it is the lock"
    wanted = facts.wanted_cpus
    if wanted == 1:
        return text, f"{do}, or ask for one CPU"
    peak = usage.peak_cores or 0.0
    if peak > SERIAL_PEAK:
        text += f" for most of its computing, {one_decimal(peak)} at its peak"
    return text, f"{do}; at times it can use {wanted} CPUs"


def describe_saturated(facts: Facts) -> tuple[str, str]:
    usage = facts.usage
    text = f"The CPUs were {facts.busy} ({facts.used})"
    if facts.allowed:
        text = f"The job kept the CPUs busy that its own affinity allows ({facts.used})"
    if "gpu_avg_utilization_pct" in usage:
        text += f" while the GPUs were {facts.gpus}"
    is_free = usage.allowed_cores > 1
    cannot = facts.wanted_cpus <= 1 if is_free else is_serial(usage)
    more = "more cores cannot" if cannot else "more cores may"
    return text, f"less work per item would make it faster, {more}"


def describe_contended(facts: Facts) -> tuple[str, str]:
    usage = facts.usage
    throttled, stolen = usage["cpu_throttled_pct"], usage.stolen_pct
    if usage.own_quota:
        text = (
            f"The quota of a control group that the job itself joined, {usage.own_quota:.2g} of "
            f"{format_count(usage.cores, 'CPU')}, held it back "
            f"({one_decimal(usage.used_cores)} used)"
        )
        return text, "raise that quota or start fewer threads"
    if throttled >= 5:
        limit = format_count(usage.cores, "CPU")
        text = f"The CPU quota held the job back for {throttled:.0f}% of the time"
        return f"{text} (limit {limit})", "raise the limit or start fewer threads"
    if stolen >= 50 * facts.totals["contended"]:
        text = f"This machine's host ran others for {stolen:.0f}% of the time in which its CPUs "
        text += f"had work (steal); the job got {facts.used}"
        return text, "ask for dedicated CPUs, or for another host"
    delay, hedge = usage["job_run_delay_pct"], ""
    if "job_run_delay_pct" not in usage:
        delay, hedge = usage["cpu_stall_pct"], "probably "
    text = (
        f"The job {hedge}waited for a CPU {delay:.0f}% of the time in which it had work: it got "
        f"{facts.used}, others {one_decimal(usage.others_cores)}"
    )
    if facts.allowed:
        return f"{text}; its own affinity allows {facts.allowed}", _LIFT
    if waits_beside_idle(usage, summarise_time(usage).demand):
        text += (
            ", and CPUs were idle: its own affinity or quota may hold its threads, or many ran at "
            "once for moments"
        )
        return text, "look at what limits its threads; more CPUs alone may not help"
    return text, "others use this node, ask for CPUs of its own"


def describe_oversubscribed(facts: Facts) -> tuple[str, str]:
    usage = facts.usage
    count, threads = round(average_demand(facts.spans)), "at times more threads"
    if facts.spans[0].run_delay is None:
        threads = "more threads"
    elif count > (usage.affinity_cpus or usage.cores):
        threads = format_count(count, "thread")
    if facts.allowed:
        text = f"The job had {threads} to run on {facts.allowed}, which its own affinity allows "
        text += f"({one_decimal(usage.used_cores)} used)"
        return text, f"start {max(1, round(usage.affinity_cpus))} at a time, or {_LIFT}"
    cpus = format_count(usage.cores, "CPU")
    text = f"The job had {threads} to run on {cpus} ({facts.used} used)"
    do = f"start {max(1, round(usage.cores))} at a time"
    return text, do if is_serial(usage) else f"{do}, or ask for more CPUs"


def find_stop(spans: Sequence[Span]) -> Span | None:
    """Return the span in which a job was stopped with its sampler, if it holds most of the waiting.

    A sampler that is stopped takes no sample: the time is one span, many times as long as the
    others, in which the job did not compute. Beside one that is late on a full machine it does.
    """
    longest = max(spans, key=lambda span: span.seconds)
    usual_sec = median(span.seconds for span in spans)
    is_stop = longest.seconds >= max(_STOP_SEC, _STOP_INTERVALS * usual_sec) and longest.used < 0.02
    waited_sec = sum(span.seconds * max(0.0, 1.0 - span.used) for span in spans)
    return longest if is_stop and longest.seconds >= waited_sec / 2 else None


def describe_waiting(facts: Facts) -> tuple[str, str]:
    # Rounded as the finding's share, which other places print: 87.496 is 87.5, and 88 as that is.
    share = 100 * round(min(1.0, facts.totals["waiting"]), 4)
    text = (
        f"For {share:.0f}% of the time the job neither computed ({facts.used} used) nor waited for "
        "a CPU, a disk or memory"
    )
    stop = find_stop(facts.spans)
    if stop is None:
        return text, "find what it waits for: a sleep, a lock, a process or a remote service"
    begin, end = (format_duration(sec) for sec in (stop.start_sec, stop.start_sec + stop.seconds))
    text += f"; from {begin} to {end} not even mlflow-perf ran"
    do = "find what stopped it: SIGSTOP (Ctrl-Z, a scheduler that suspends jobs), a paused "
    return text, f"{do}container, or a call that kept Python's lock while it waited"


def describe_disk(facts: Facts) -> tuple[str, str]:
    usage, span = facts.usage, facts.spans[0]
    seconds = max(usage["duration_sec"], 1e-9)
    calls = usage["job_read_calls"] + usage["job_write_calls"]
    keys = ("job_io_read_mb", "job_io_write_mb")
    who = "The job"
    if not span.own_io:
        keys, who = ("total_disk_io_read_mb", "total_disk_io_write_mb"), "The node"
    moved = sum(usage[key] for key in keys)
    rate = f"{one_decimal(moved / seconds)} MB/s moved"
    called = usage["job_calls_mb"] or moved
    if calls / seconds >= 500 and called * 1024 / calls < 64:
        text = f"The job made {calls:,.0f} reads and writes of {called * 1024 / calls:.1f} KB each"
        return f"{text} ({rate})", "use fewer, larger files and requests"
    stall = span.blocked * max(usage["io_stall_pct"], usage["iowait_pct"] * max(usage.cores, 1))
    text = f"{who} waited for disks {min(100.0, stall):.0f}% of the time ({rate}, CPUs "
    text += f"{facts.busy})"
    return text, "use faster or local storage, or fewer, larger requests"


def describe_network(facts: Facts) -> tuple[str, str]:
    text = f"The node's network moved {one_decimal(facts.usage.net_mb_s)} MB/s while the job used "
    return text + facts.used, "if this is the job's data, bring it nearer, or move less of it"


def describe_memory(facts: Facts) -> tuple[str, str]:
    usage = facts.usage
    if usage["oom_kills"] >= 1:
        killed = format_count(round(usage["oom_kills"]), "process")
        text = f"The kernel killed {killed} for lack of memory "
        return f"{text}(peak {usage.mem_pct:.0f}% of what the job may use)", "ask for more memory"
    if usage["mem_stall_pct"] >= 5:
        text = f"The job waited for memory {usage['mem_stall_pct']:.0f}% of the time "
        return f"{text}(peak {usage.mem_pct:.0f}% of what it may use)", "ask for more memory"
    text = f"Memory peaked at {usage.mem_pct:.0f}% of what the job may use"
    return text, "ask for more before the kernel kills it"


def describe_memory_growth(facts: Facts) -> tuple[str, str]:
    trend = facts.trend
    until = "until the end, when it was released" if trend.is_released else "and was still growing"
    text = (
        f"Memory grew from {trend.first_mb:,.0f} to {trend.last_mb:,.0f} MB, "
        f"by {trend.mb_per_min:,.0f} MB a minute, {until}"
    )
    if trend.limit_mb:
        left = max(0.0, trend.limit_mb - trend.last_mb) / trend.mb_per_min * 60
        text += f"; at this rate it would reach {trend.limit_mb:,.0f} MB in {format_duration(left)}"
    return text, "look for what is kept, or ask for more memory before it runs longer"


def describe_gpu(facts: Facts) -> tuple[str, str]:
    text = f"The GPUs were {facts.gpus} and the CPUs {facts.busy}"
    if facts.usage.gpu_others_pct:
        return text, "a GPU of its own would make it faster"
    return text, "more or faster GPUs would make it faster"


def describe_contended_gpu(facts: Facts) -> tuple[str, str]:
    own, others = (facts.usage[f"gpu_{whose}avg_utilization_pct"] for whose in ("", "others_"))
    text = f"The GPUs were {own:.0f}% busy with the job and {others:.0f}% with others"
    return text, "others use them, ask for a GPU of its own"


def describe_idle(facts: Facts) -> tuple[str, str]:
    usage = facts.usage
    if "gpu_avg_utilization_pct" in usage:
        # Without the GPU whose memory it holds, the job would fail as it is.
        other = "compute on CPUs alone" if usage.holds_gpu_memory else "ask for none"
        return f"The GPUs were {facts.gpus}", f"feed them faster, or {other}"
    text = f"The node's CPUs were {usage.busy_pct:.0f}% busy ({facts.used})"
    return text, "ask for less, or find out what it waits for"


def describe_balanced(facts: Facts) -> tuple[str, str]:
    usage = facts.usage
    parts = [f"CPUs {facts.busy}"]
    if usage.knows_own_memory or "max_t_mem_percent" in usage:
        parts.append(f"memory peak {usage.mem_pct:.0f}%")
    if "gpu_avg_utilization_pct" in usage:
        parts.append(f"GPUs {facts.gpus}")
    if "io_stall_pct" in usage:
        parts.append(f"the node's disks waited for {usage['io_stall_pct']:.0f}%")
    return f"No single resource held the job back ({', '.join(parts)})", ""


SENTENCES: Mapping[str, Callable[[Facts], tuple[str, str]]] = {
    "serial": describe_serial,
    "saturated": describe_saturated,
    "contended": describe_contended,
    "contended_gpu": describe_contended_gpu,
    "oversubscribed": describe_oversubscribed,
    "waiting": describe_waiting,
    "disk": describe_disk,
    "network": describe_network,
    "memory": describe_memory,
    "memory_growth": describe_memory_growth,
    "gpu": describe_gpu,
    "idle": describe_idle,
    "balanced": describe_balanced,
}
"""Kind of finding → what makes its evidence and what to do."""
