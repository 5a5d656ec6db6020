"""Decides which resource held a node's job back: one table of rules over the node's summary."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from mlflow_perf.core.format import one_decimal

__all__ = [
    "BOTTLENECKS",
    "RULES",
    "Rule",
    "Usage",
    "Verdict",
    "decide_verdict",
    "match_rules",
    "read_positive",
]

BOTTLENECKS = ("cpu", "memory", "disk", "network", "gpu", "throttled", "idle", "balanced")
"""Every value that `Verdict.bottleneck` can have."""

_CPU_KEYS = {"cpu_avg_utilization_pct", "job_cpu_avg_cores"}
_NO_FACTS: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True)
class Verdict:
    """What held a job back.

    Attributes:
        bottleneck: One of `BOTTLENECKS`.
        advice: One sentence: the evidence, and what to do about it.
    """

    bottleneck: str
    advice: str


def read_positive(value: Any) -> float:
    """Return a positive finite number as it is, and 0.0 for anything else."""
    usable = isinstance(value, (int, float)) and math.isfinite(value) and value > 0
    return float(value) if usable else 0.0


class Usage:
    """The figures of a node that the rules ask for; a missing figure is 0.0.

    Args:
        summary: Metric key → value of one node.
        node: Facts of the node; `cpu_count` replaces a missing `cpu_limit_cores`.
    """

    def __init__(self, summary: Mapping[str, float], node: Mapping[str, Any] = _NO_FACTS) -> None:
        self._summary = summary
        self.cores = self["cpu_limit_cores"] or read_positive(node.get("cpu_count"))
        self.mem_limit_mb = self["mem_limit_mb"]

    def __getitem__(self, key: str) -> float:
        return read_positive(self._summary.get(key))

    def __contains__(self, key: str) -> bool:
        return key in self._summary

    @property
    def node_busy_pct(self) -> float:
        """How busy the job's CPUs were with the work of all processes, in per cent."""
        return self["cpu_avg_utilization_pct"]

    @property
    def used_cores(self) -> float:
        """Cores that the job kept busy on average; all busy cores if the job's are unknown."""
        if "job_cpu_avg_cores" in self:
            return self["job_cpu_avg_cores"]
        return self.node_busy_pct / 100.0 * self.cores

    @property
    def busy_pct(self) -> float:
        """How busy the job kept the CPUs that it owns, in per cent."""
        return 100.0 * self.used_cores / self.cores if self.cores else self.node_busy_pct

    @property
    def stolen_pct(self) -> float:
        """Share of the CPUs' working time that the host took for other machines, in per cent."""
        # For a job with a share of CPU time, `node_busy_pct` is the job's own and includes no
        # steal.
        wanted = max(self.node_busy_pct, self["cpu_steal_pct"] + self.busy_pct)
        return 100.0 * self["cpu_steal_pct"] / wanted if wanted else 0.0

    @property
    def mem_pct(self) -> float:
        """Peak memory of the job as a share of its limit; the node's share if that is unknown."""
        peak = self["job_max_mem_mb"]
        if peak and self.mem_limit_mb:
            return 100.0 * peak / self.mem_limit_mb
        return self["max_t_mem_percent"]

    @property
    def disk_mb_s(self) -> float:
        """Mean rate of the job's reads and writes; of the node's disks if that is unknown."""
        if self.knows_own_io:
            return self._rate("job_io_read_mb", "job_io_write_mb")
        return self._rate("total_disk_io_read_mb", "total_disk_io_write_mb")

    @property
    def knows_own_io(self) -> bool:
        """Whether the job's own reads and writes are known."""
        return "job_io_read_mb" in self or "job_io_write_mb" in self

    @property
    def touches_disks(self) -> bool:
        """Whether the job can be the one that the node's disk stalls held back."""
        return not self.knows_own_io or self.disk_mb_s >= 0.05 or self.busy_pct >= 10

    @property
    def is_contended(self) -> bool:
        """Whether other processes on the node kept the job waiting for a CPU."""
        return (
            self["cpu_stall_pct"] >= 25
            and self.node_busy_pct >= 80
            and self.used_cores >= 0.1
            and self.busy_pct < 85
        )

    @property
    def net_mb_s(self) -> float:
        """Mean rate of the network traffic without loopback, sent and received."""
        return self._rate("total_net_io_ext_sent_mb", "total_net_io_ext_recv_mb")

    def _rate(self, *keys: str) -> float:
        duration = self["duration_sec"]
        return sum(self[key] for key in keys) / duration if duration > 0 else 0.0


@dataclass(frozen=True)
class Rule:
    """One row of the table.

    Attributes:
        bottleneck: The verdict if the rule holds.
        holds: Whether the rule holds for a node.
        evidence: The node's figures, as the first half of a sentence.
        do: What to do, as its second half.
        when: The condition in words, for the documentation.
    """

    bottleneck: str
    holds: Callable[[Usage], bool]
    evidence: Callable[[Usage], str]
    do: str
    when: str


def _cores(usage: Usage) -> str:
    if not usage.cores:
        return f"{usage.busy_pct:.0f}% of the CPUs"
    return f"{one_decimal(usage.used_cores)} of {one_decimal(usage.cores)} CPUs"


def _full_cpus(usage: Usage) -> str:
    text = f"The CPUs were {usage.busy_pct:.0f}% busy ({_cores(usage)})"
    if "gpu_avg_utilization_pct" in usage:
        text += f" while the GPUs were {usage['gpu_avg_utilization_pct']:.0f}% busy"
    return text


def _is_stolen(usage: Usage) -> bool:
    # With less steal than 0.2 cores, or a job that mostly sleeps, the job would not end sooner.
    felt = usage["cpu_steal_pct"] / 100 * max(usage.cores, 1) >= 0.2
    return felt and usage.stolen_pct >= 25 and usage.used_cores >= 0.1 and usage.busy_pct < 85


def _is_serial(usage: Usage) -> bool:
    # A parallel job that is crowded onto one CPU has used more CPUs at some time.
    crowded = usage.is_contended and usage["job_max_cpu_cores"] >= 1.3
    # Steal below 25% is added to the job's use of its one CPU; above, steal is the verdict.
    stolen = usage.stolen_pct if usage.stolen_pct < 25 else 0.0
    wanted = usage.used_cores / (1 - stolen / 100)
    return usage.cores >= 1.5 and 0.85 <= wanted <= 1.15 and not crowded


def _waits_for_disks(usage: Usage) -> bool:
    # On a full machine the kernel reports only 15% of disk stalls for a job that only syncs: it
    # counts the rest of each wait as one for a CPU.
    syncs = usage.knows_own_io and usage.disk_mb_s >= 0.5 and usage.busy_pct < 30
    return usage.touches_disks and usage["io_stall_pct"] >= (10 if syncs else 20)


_FULL_CPUS_DO = "more cores, or less work per item, would make it faster"
_SLOW_DISKS_DO = "use faster or local storage, or fewer, larger requests"

# fmt: off
RULES: tuple[Rule, ...] = (
    Rule("memory", lambda u: u["oom_kills"] >= 1,
         lambda u: f"The kernel killed {u['oom_kills']:.0f} process(es) for want of memory "
                   f"(peak {u.mem_pct:.0f}% of what the job may use)",
         "ask for more memory",
         "`oom_kills` ≥ 1"),
    Rule("throttled", lambda u: u["cpu_throttled_pct"] >= 10,
         lambda u: f"The CPU quota held the job back for {u['cpu_throttled_pct']:.0f}% of the time "
                   f"(limit {one_decimal(u.cores)} CPUs)",
         "raise the limit or start fewer threads",
         "`cpu_throttled_pct` ≥ 10"),
    Rule("memory", lambda u: u["mem_stall_pct"] >= 10,
         lambda u: f"The job waited for memory {u['mem_stall_pct']:.0f}% of the time "
                   f"(peak {u.mem_pct:.0f}% of what it may use)",
         "ask for more memory",
         "`mem_stall_pct` ≥ 10"),
    Rule("memory", lambda u: u.mem_pct >= 95,
         lambda u: f"Memory peaked at {u.mem_pct:.0f}% of what the job may use",
         "ask for more before the kernel kills it",
         "peak memory ≥ 95% of the limit (of the node where the job's own is unknown)"),
    Rule("gpu", lambda u: u["gpu_avg_utilization_pct"] >= 80,
         lambda u: f"The GPUs were {u['gpu_avg_utilization_pct']:.0f}% busy and the CPUs "
                   f"{u.busy_pct:.0f}%",
         "more or faster GPUs would make it faster",
         "`gpu_avg_utilization_pct` ≥ 80"),
    Rule("cpu", lambda u: "gpu_avg_utilization_pct" in u and u["gpu_avg_utilization_pct"] < 40
                          and u.busy_pct >= 60,
         _full_cpus, _FULL_CPUS_DO,
         "GPUs less than 40% busy while the CPUs are at least 60% busy"),
    Rule("cpu", lambda u: u.busy_pct >= 85, _full_cpus, _FULL_CPUS_DO,
         "CPUs at least 85% busy with the job"),
    Rule("cpu", _is_serial,
         lambda u: f"The job kept one CPU busy ({_cores(u)})",
         "run it in parallel, or ask for one CPU",
         "0.85 to 1.15 cores busy where the job has more, and no sign that others took the "
         "rest"),
    Rule("disk", _waits_for_disks,
         lambda u: f"The job waited for disks {u['io_stall_pct']:.0f}% of the time "
                   f"({one_decimal(u.disk_mb_s)} MB/s moved, CPUs {u.busy_pct:.0f}% busy)",
         _SLOW_DISKS_DO,
         "`io_stall_pct` ≥ 20; ≥ 10 where the job is known to move ≥ 0.5 MB/s with its CPUs less "
         "than 30% busy"),
    Rule("disk", lambda u: u.touches_disks and u["iowait_pct"] / 100 * max(u.cores, 1) >= 0.3,
         lambda u: f"CPUs were idle for want of disks {u['iowait_pct']:.0f}% of the time "
                   f"({one_decimal(u.disk_mb_s)} MB/s moved)",
         _SLOW_DISKS_DO,
         "`iowait_pct` × cores ≥ 0.3 cores"),
    Rule("disk", lambda u: u.disk_mb_s >= 100 and u.busy_pct < 50,
         lambda u: f"The disks moved {one_decimal(u.disk_mb_s)} MB/s while the CPUs were "
                   f"{u.busy_pct:.0f}% busy",
         "use faster storage, or read less",
         "disks ≥ 100 MB/s while the CPUs are less than 50% busy"),
    Rule("cpu", _is_stolen,
         lambda u: f"This machine's host ran others for {u.stolen_pct:.0f}% of the time in which "
                   f"its CPUs had work (steal); the job got {_cores(u)}",
         "ask for dedicated CPUs, or for another host",
         "`cpu_steal_pct` ≥ 25% of the time in which the CPUs had work, and ≥ 0.2 cores; the job's "
         "own share below 85%"),
    Rule("cpu", lambda u: u.is_contended,
         lambda u: f"The job waited for a CPU {u['cpu_stall_pct']:.0f}% of the time on CPUs that "
                   f"were {u.node_busy_pct:.0f}% busy, {u.busy_pct:.0f}% with the job",
         "others use this node, ask for CPUs of its own",
         "`cpu_stall_pct` ≥ 25 on CPUs ≥ 80% busy, the job's own share below 85%"),
    Rule("network", lambda u: u.net_mb_s >= 80 or (u.net_mb_s >= 10 and u.busy_pct < 30),
         lambda u: f"The network moved {one_decimal(u.net_mb_s)} MB/s while the CPUs were "
                   f"{u.busy_pct:.0f}% busy",
         "bring the data nearer, or move less of it",
         "network ≥ 80 MB/s, or ≥ 10 MB/s while the CPUs are less than 30% busy"),
    Rule("cpu", lambda u: u.busy_pct >= 70, _full_cpus, _FULL_CPUS_DO,
         "CPUs at least 70% busy with the job"),
    Rule("idle", lambda u: u.busy_pct < 25 and u["gpu_avg_utilization_pct"] < 25,
         lambda u: f"The job used {_cores(u)} on average and waited for no disk, memory or network "
                   "that we can see",
         "ask for less, or find out what it waits for",
         "CPUs and GPUs less than 25% busy"),
)
# fmt: on
"""The rules in the order in which they are asked; the first that holds is the verdict."""


def match_rules(usage: Usage) -> Iterator[Rule]:
    """Yield the rules that hold for a node, in the order of the table."""
    return (rule for rule in RULES if rule.holds(usage))


def decide_verdict(summary: Mapping[str, float], node: Mapping[str, Any] = _NO_FACTS) -> Verdict:
    """Return what held the job on one node back, with the evidence.

    Args:
        summary: Metric key → value of the node; any key may be missing.
        node: Facts of the node, such as `cpu_count`.
    """
    usage = Usage(summary, node)
    rule = next(match_rules(usage), None)
    if (rule is None or rule.bottleneck == "idle") and not _CPU_KEYS & summary.keys():
        return Verdict("balanced", "The node reported no CPU figures: there is no verdict.")
    if rule is not None:
        return Verdict(rule.bottleneck, f"{rule.evidence(usage)}: {rule.do}.")
    own, everyone = usage.busy_pct, usage.node_busy_pct or usage.busy_pct
    own_part = f", {own:.0f}% with the job" if everyone - own >= 5 else ""
    parts = [f"CPUs {everyone:.0f}% busy{own_part}", f"memory peak {usage.mem_pct:.0f}%"]
    if "gpu_avg_utilization_pct" in usage:
        parts.append(f"GPUs {usage['gpu_avg_utilization_pct']:.0f}% busy")
    if "io_stall_pct" in usage:
        parts.append(f"disks waited for {usage['io_stall_pct']:.0f}%")
    return Verdict("balanced", f"No single resource held the job back ({', '.join(parts)}).")
