"""The figures of one node on which judgements are based."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from functools import cached_property
from types import MappingProxyType
from typing import Any

_GPU_KEY = re.compile(r"gpu(\d+)_(.+)")
_GPU_USED_PCT = 0.5
_GPU_HELD_MB = 64.0  # a process that computes on a GPU holds 100 MB and more; an idle one has 4
_MANY_GPU_OTHERS_PCT = 20.0
_HARDLY_IDLE_CORES = 0.5
_NO_FACTS: Mapping[str, Any] = MappingProxyType({})

TOO_SHORT_SEC = 1.0
"""A block below that has too few samples for a peak of its CPUs or a verdict."""

BEYOND_REASON = 1e18
"""No figure of a job is as large: sums and products of damaged ones would overflow."""


def read_positive(value: Any) -> float:
    """Return a positive number below `BEYOND_REASON` as it is, and 0.0 for anything else."""
    usable = isinstance(value, (int, float)) and 0 < value < BEYOND_REASON
    return float(value) if usable else 0.0


def ramp(value: float, low: float, high: float) -> float:
    """Return 0 up to `low`, 1 from `high` on, and a straight line between them.

    Where a rule would say "at least x", a ramp around x keeps a small change of a figure from
    changing the verdict.
    """
    return min(1.0, max(0.0, (value - low) / (high - low)))


def is_held_by_affinity(used: float, cpus: float, cores: float) -> bool:
    """Return whether a job was kept on fewer CPUs than it owns; used more, it was not."""
    return 0 < cpus < cores and used <= 1.1 * cpus


def is_held_by_quota(used: float, quota: float, cores: float) -> bool:
    """Return whether a job used up a quota that is less than the CPUs that it owns."""
    return 0 < quota < cores and used >= 0.8 * quota


class Usage:
    """The figures of a node; a missing figure is 0.0.

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
    def others_cores(self) -> float:
        """CPUs that others kept busy of those that the job could use."""
        return self._others_beside + self.hidden_cores

    @property
    def hidden_cores(self) -> float:
        """CPUs that others kept busy besides those in `node_busy_pct`, which is a quota's own.

        On a node without an idle CPU they keep a job from its share of CPU time.
        """
        is_quota, is_known = "cpu_throttled_pct" in self, "idle_cpu_avg_cores" in self
        if not (is_quota and is_known and self["idle_cpu_avg_cores"] < _HARDLY_IDLE_CORES):
            return 0.0
        return max(0.0, self["others_cpu_avg_cores"] - self._others_beside)

    @property
    def _others_beside(self) -> float:
        return max(0.0, self.node_busy_pct / 100.0 * self.cores - self.used_cores)

    @property
    def affinity_cpus(self) -> float:
        """CPUs that the affinity of the job's own processes allows; 0.0 where it is no limit."""
        cpus = self["job_affinity_cpus"]
        return cpus if is_held_by_affinity(self.used_cores, cpus, self.cores) else 0.0

    @property
    def own_quota(self) -> float:
        """The CPU quota that the job gave to its own processes; 0.0 where it is no limit."""
        quota = self["job_quota_cores"]
        return quota if is_held_by_quota(self.peak_cores or 0.0, quota, self.cores) else 0.0

    @property
    def allowed_cores(self) -> float:
        """CPUs that the job could use at most, by its own affinity or quota; 0.0 if unknown."""
        limits = (self.cores, self.affinity_cpus, self.own_quota)
        return min((limit for limit in limits if limit), default=0.0)

    @property
    def busy_pct(self) -> float:
        """How busy the job kept the CPUs that it owns, in per cent."""
        return 100.0 * self.used_cores / self.cores if self.cores else self.node_busy_pct

    @property
    def peak_cores(self) -> float | None:
        """Most cores that were busy in any interval, with the job if known; None if unknown."""
        peak = max(self["job_max_cpu_cores"], self["job_cpu_avg_cores"])
        if peak or "job_cpu_avg_cores" in self:
            return peak
        busy_pct = max(self["max_t_cpu_pct_per_cpu_avg"], self.node_busy_pct)
        known = "cpu_avg_utilization_pct" in self and self.cores > 0
        return busy_pct / 100.0 * self.cores if known else None

    @property
    def stolen_pct(self) -> float:
        """Share of the CPUs' working time that the host took for other machines, in per cent."""
        # For a job with a share of CPU time, `node_busy_pct` is the job's own and includes no
        # steal.
        wanted = max(self.node_busy_pct, self["cpu_steal_pct"] + self.busy_pct)
        return 100.0 * self["cpu_steal_pct"] / wanted if wanted else 0.0

    @property
    def gpu_others_pct(self) -> float:
        """How busy others kept the job's GPUs, in per cent; 0.0 where it is little or unknown."""
        others = self["gpu_others_avg_utilization_pct"]
        return others if others >= _MANY_GPU_OTHERS_PCT else 0.0

    @property
    def mem_pct(self) -> float:
        """Peak memory of the job as a share of its limit; the node's share if that is unknown."""
        if self.knows_own_memory:
            return 100.0 * self["job_max_mem_mb"] / self.mem_limit_mb
        return self["max_t_mem_percent"]

    @property
    def knows_own_io(self) -> bool:
        """Whether the job's own reads and writes are known."""
        return "job_io_read_mb" in self or "job_io_write_mb" in self

    @property
    def knows_own_memory(self) -> bool:
        """Whether the job's own memory and its limit are known."""
        return self["job_max_mem_mb"] > 0 and self.mem_limit_mb > 0

    @property
    def net_mb_s(self) -> float:
        """Mean rate of the node's network traffic without loopback, sent and received."""
        duration = self["duration_sec"]
        moved = self["total_net_io_ext_sent_mb"] + self["total_net_io_ext_recv_mb"]
        return moved / duration if duration > 0 else 0.0

    @property
    def holds_gpu_memory(self) -> bool:
        """Whether the job held memory of a GPU: without it, it would fail."""
        return self["max_t_gpu_mem_mb"] >= _GPU_HELD_MB

    @cached_property
    def gpu_numbers(self) -> frozenset[str]:
        """The numbers of the GPUs that have figures of their own."""
        return frozenset(found[1] for key in self._summary if (found := _GPU_KEY.fullmatch(key)))

    @property
    def knows_gpu_use(self) -> bool:
        """Whether anything says what the GPUs did."""
        totals = ("gpu_avg_utilization_pct", "max_t_gpu_mem_mb")
        return bool(self.gpu_numbers) or any(key in self for key in totals)

    def count_gpus(self) -> tuple[int, int]:
        """Return how many GPUs computed for the job or held memory of it, and how many it owned.

        All that it owned count where nothing says what they did: it may need them.
        """
        gpus = self.gpu_numbers
        if not gpus:
            hours = self["duration_sec"] / 3600.0
            held = self["node_gpu_hours"]
            has_some = held > 0 or "gpu_avg_utilization_pct" in self
            owned = max(round(held / hours) if hours > 0 else 0, int(has_some))
            is_used = (
                not self.knows_gpu_use
                or self["gpu_avg_utilization_pct"] >= _GPU_USED_PCT
                or self.holds_gpu_memory
            )
            return owned * is_used, owned
        least_pct = math.inf
        if self.holds_gpu_memory:  # in MB, that of the fullest alone is known: they are alike
            fullest_pct = max(self[f"gpu{gpu}_max_t_mem_percent"] for gpu in gpus)
            least_pct = fullest_pct * _GPU_HELD_MB / self["max_t_gpu_mem_mb"]
        used = sum(
            self[f"gpu{gpu}_avg_utilization_pct"] >= _GPU_USED_PCT
            or self[f"gpu{gpu}_max_t_mem_percent"] >= least_pct
            for gpu in gpus
        )
        return used, len(gpus)
