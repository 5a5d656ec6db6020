"""The shares of CPUs and memory that the job used, that others used, and that were idle."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from mlflow_perf.core.format import number


@dataclass(frozen=True)
class CpuShare:
    """The CPUs of a job and its node, in cores on average; None where a source is missing.

    Attributes:
        limit: CPUs that the job may use.
        job: CPUs that the job's own processes kept busy.
        others: CPUs of the node that others kept busy; in older documents, of the job's CPUs.
        idle: CPUs of the node that nobody used; in older documents, of the job's CPUs.
    """

    limit: float | None = None
    job: float | None = None
    others: float | None = None
    idle: float | None = None

    def __str__(self) -> str:
        """Return `your job 0.9 of 2 CPUs, others 0.6, idle 0.5`; empty without the job's own."""
        if self.job is None:
            return ""
        unit = "CPU" if self.limit == 1 else "CPUs"
        return ", ".join(part for part in (f"your job {self.used} {unit}", self.rest) if part)

    @property
    def used(self) -> str:
        """The job's part of its limit: `0.9 of 2`."""
        return _cores(self.job) + ("" if self.limit is None else f" of {_cores(self.limit)}")

    @property
    def rest(self) -> str:
        """The other parts: `others 0.6, idle 0.5`; empty where they are unknown."""
        parts = {"others": self.others, "idle": self.idle}
        return ", ".join(f"{name} {_cores(v)}" for name, v in parts.items() if v is not None)


def _cores(value: float | None) -> str:
    """Return a number of cores, rounded to a hundredth, the resolution of the kernel's clocks."""
    return number(None if value is None else round(value, 2))


def read_cpu_share(summary: Mapping[str, float]) -> CpuShare:
    """Return how the CPUs of a node were shared, from its metrics.

    Args:
        summary: Metric key → value of one node; any key may be missing.
    """
    limit, duration = summary.get("cpu_limit_cores"), summary.get("duration_sec")
    if limit is None and duration and "node_cpu_hours" in summary:
        limit = 3600.0 * summary["node_cpu_hours"] / duration
    job = summary.get("job_cpu_avg_cores")
    busy_pct = summary.get("cpu_avg_utilization_pct")
    if limit is None or busy_pct is None:
        return CpuShare(limit, job)
    busy = limit * busy_pct / 100.0
    if job is None:
        return CpuShare(limit, idle=max(0.0, limit - busy))
    # The job's processes and the node's CPUs are counted by different clocks of the kernel.
    others = summary.get("others_cpu_avg_cores", max(0.0, busy - job))
    idle = summary.get("idle_cpu_avg_cores", max(0.0, limit - job - others))
    return CpuShare(limit, job, others, idle)


def add_cpu_shares(shares: Iterable[CpuShare]) -> CpuShare:
    """Return the sum over the nodes; a part that any node lacks is missing from it."""
    every = list(shares)

    def add(values: list[float | None]) -> float | None:
        known = [value for value in values if value is not None]
        return sum(known) if known and len(known) == len(every) else None

    return CpuShare(
        add([share.limit for share in every]),
        add([share.job for share in every]),
        add([share.others for share in every]),
        add([share.idle for share in every]),
    )
