"""The limits of the job on this node: CPUs and memory.

The tightest limit wins: the process's CPU affinity, the quotas and limits of its control groups,
and the scheduler's allocation.
"""

from __future__ import annotations

import functools
import math
import platform
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from mlflow_perf.core.originals import os
from mlflow_perf.errors import SourceUnavailableError
from mlflow_perf.model.columns import LIMIT_COLUMNS
from mlflow_perf.readers.cgroup.groups import CpuQuota, Groups, find_cpu_quota, find_memory_limit
from mlflow_perf.readers.procfile import read_text
from mlflow_perf.records import MB, Column

_MEM_TOTAL = re.compile(r"^MemTotal:\s*(\d+) kB", re.MULTILINE)
_CPU_MODEL = re.compile(r"^(?:model name|Model|cpu model)\s*:\s*(.+)$", re.MULTILINE)


@dataclass(frozen=True)
class Owned:
    """What a job may use of its node.

    Attributes:
        cores: CPUs' worth of time that it may use, by the tightest limit.
        cpus: Numbers of the CPUs that it may run on; None where the platform does not show them.
        pooled: Whether `cores` is a share of CPU time, less than `cpus` together.
        quota: The control group's quota, where that is the tightest limit.
        mem_mb: Memory that it may use, in MB of 2^20 bytes; None where unknown.
    """

    cores: float
    cpus: frozenset[int] | None
    pooled: bool = False
    quota: CpuQuota | None = None
    mem_mb: float | None = None


def owned(
    pid: int | None = None,
    *,
    proc: Path | str = "/proc",
    groups: Groups | None = None,
    environ: Mapping[str, str] = os.environ,
    cpus: frozenset[int] | None = None,
) -> Owned:
    """Return the limits of the job of a process.

    Args:
        pid: The process; default: this one.
        proc: Where procfs is mounted.
        groups: The process's control groups; default: read from procfs.
        environ: Environment variables, for the scheduler's allocation.
        cpus: Numbers of the CPUs that it may run on; default: its affinity.
    """
    if groups is None:
        groups = Groups("self" if pid is None else pid, proc=proc)
    if cpus is None:
        try:
            cpus = frozenset(os.sched_getaffinity(pid or 0))
        except (AttributeError, OSError):  # another platform, or the process has ended
            cpus = None
    in_slurm = bool(environ.get("SLURM_JOB_ID"))

    def slurm(name: str) -> float | None:
        text = environ.get(name, "").strip() if in_slurm else ""
        # Per-node lists ("16(x2),8") do not say which of their entries is this node's.
        sound = text.isascii() and text.isdigit() and 0 < float(text) < math.inf
        return float(text) if sound else None

    whole = float(len(cpus) if cpus else os.cpu_count() or 1)
    quota = find_cpu_quota(groups.find("cpu"))
    allocated = slurm("SLURM_CPUS_ON_NODE") or slurm("SLURM_JOB_CPUS_PER_NODE")
    cores = min(c for c in (whole, quota and quota.cores, allocated) if c)
    memory = find_memory_limit(groups.find("memory"))
    per_cpu_mb = slurm("SLURM_MEM_PER_CPU")
    limits = (
        _host_memory_mb(proc),
        memory and memory.limit_bytes / MB,
        slurm("SLURM_MEM_PER_NODE") or (per_cpu_mb and per_cpu_mb * cores),
    )
    return Owned(
        cores=cores,
        cpus=cpus,
        pooled=cores < whole,
        quota=quota if quota is not None and quota.cores == cores < whole else None,
        mem_mb=min((limit for limit in limits if limit), default=None),
    )


def _host_memory_mb(proc: Path | str) -> float | None:
    found = _MEM_TOTAL.search(read_text(f"{proc}/meminfo") or "")
    return int(found[1]) / 1024.0 if found else None


def host_facts(proc: Path | str = "/proc") -> dict[str, int | float | str]:
    """Return the facts about this host for a document's `node` block.

    Returns:
        `mem_total_mb` (MB of 2^20 bytes), `cpu_model` and `arch`; unknown facts are missing.
    """
    facts: dict[str, int | float | str] = {"arch": platform.machine()}
    memory = _host_memory_mb(proc)
    if memory is not None:
        facts["mem_total_mb"] = round(memory, 1)
    if model := _find_cpu_model(str(proc)):
        facts["cpu_model"] = model
    return facts


@functools.cache
def _find_cpu_model(proc: str) -> str:
    # The kernel asks each CPU for its frequency to answer this: milliseconds with hundreds of them.
    found = _CPU_MODEL.search(read_text(f"{proc}/cpuinfo") or "")
    return " ".join(found[1].split()) if found else ""


class LimitsReader:
    """The memory that the job may use; the CPU reader reports the CPUs.

    Args:
        limits: Returns the present limits of the job.

    Raises:
        SourceUnavailableError: When neither the node's memory nor a limit is known.
    """

    name = "limits"
    columns: Sequence[Column] = LIMIT_COLUMNS

    def __init__(self, limits: Callable[[], Owned]) -> None:
        self._limits = limits
        if limits().mem_mb is None:
            raise SourceUnavailableError("The memory of this node is unknown.")

    def read(self, report: dict[str, float]) -> None:
        """Put the limit into the report."""
        limit = self._limits().mem_mb
        if limit is not None:
            report["mem_limit_mb"] = limit

    def close(self) -> None:
        """Do nothing: no descriptor is kept."""
