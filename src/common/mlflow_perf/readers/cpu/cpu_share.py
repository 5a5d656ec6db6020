"""How busy the CPUs are that the job owns, where that is less than the whole node.

Imports the CPU's reader, limits and the column table.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Protocol

from mlflow_perf.model.columns import CPU_COLUMNS, HOST_CPU_COLUMNS
from mlflow_perf.readers.base import Reader
from mlflow_perf.records import Column

__all__ = ["CpuShareReader", "CpuTime"]


class CpuTime(Protocol):
    """What tells the CPU time of a job."""

    def seconds(self) -> float | None:
        """Return the CPU time as a growing sum, in seconds; None when unknown now."""
        ...

    def close(self) -> None:
        """Let go of descriptors."""
        ...


_HOST = (
    ("host_cpu_pct_per_cpu_avg", "cpu_pct_per_cpu_avg"),
    ("host_cpu_busy_sec", "cpu_busy_sec"),
    ("host_cpu_ticks_sec", "cpu_ticks_sec"),
    ("host_cpu_cores", "cpu_limit_cores"),
)
_OF_THE_CPUS = ("cpu_iowait_sec", "cpu_steal_sec")
"""What only whole CPUs have: a share of CPU time has the same part of it as they."""


class CpuShareReader:
    """The CPU's columns for what the job owns, with the host's own beside them.

    A job that owns some CPUs has their figures. One that owns a share of CPU time (a quota, or an
    allocation that no affinity enforces) has its own CPU time against that share: least busy, mean
    and busiest are one then, as no single CPU is the job's.

    Args:
        owned: Reader of the CPUs that the job may run on.
        host: Reader of all CPUs; None where they are the same.
        cores: The share of CPU time, in CPUs; None where the job has the CPUs for itself.
        used: What tells the CPU time that counts against that share.
        clock: Monotonic seconds.
    """

    name = "cpu"
    columns: Sequence[Column] = (*CPU_COLUMNS, *HOST_CPU_COLUMNS)

    def __init__(
        self,
        owned: Reader,
        host: Reader | None = None,
        *,
        cores: float | None = None,
        used: CpuTime | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._owned, self._host = owned, host
        self._share = None
        if cores is not None and used is not None:
            self._share = _Share(cores, used, clock)

    def read(self, report: dict[str, float]) -> None:
        """Put the figures of what the job owns, and those of the host, into the report."""
        own: dict[str, float] = {}
        self._owned.read(own)
        host = own
        if self._host is not None:
            host = {}
            self._host.read(host)
        for name, source in _HOST:
            if source in host:
                report[name] = host[source]
        report.update(own if self._share is None else self._share.read(own))

    def close(self) -> None:
        """Close the readers below."""
        self._owned.close()
        if self._host is not None:
            self._host.close()
        if self._share is not None:
            self._share.close()


class _Share:
    """A job's CPU time against the share that it owns."""

    def __init__(self, cores: float, time_of: CpuTime, clock: Callable[[], float]) -> None:
        self._cores, self._time, self._clock = cores, time_of, clock
        self._at, self._used = clock(), time_of.seconds()
        self._busy = self._whole = 0.0
        self._shared = dict.fromkeys(_OF_THE_CPUS, 0.0)
        self._before = dict.fromkeys(("cpu_ticks_sec", *_OF_THE_CPUS), 0.0)
        self._percent: float | None = None

    def read(self, of_cpus: dict[str, float]) -> dict[str, float]:
        now, used = self._clock(), self._time.seconds()
        whole = self._cores * max(0.0, now - self._at)
        gain = 0.0 if used is None or self._used is None else max(0.0, used - self._used)
        if whole > 0:
            self._percent = min(100.0, 100.0 * gain / whole)
        self._busy += gain
        self._whole += whole
        self._add_of_the_cpus(of_cpus, whole)
        self._at, self._used = now, self._used if used is None else used
        report = {
            "cpu_busy_sec": min(self._busy, self._whole),
            "cpu_ticks_sec": self._whole,
            **self._shared,
            "cpu_limit_cores": self._cores,
        }
        if self._percent is not None:
            for name in ("cpu_pct_per_cpu_avg", "cpu_pct_per_cpu_min", "cpu_pct_per_cpu_max"):
                report[name] = self._percent
        return report

    def _add_of_the_cpus(self, of_cpus: dict[str, float], whole: float) -> None:
        """Add the parts of time that the CPUs waited or were taken, in the share's seconds."""
        now = {name: of_cpus.get(name, 0.0) for name in self._before}
        passed = now["cpu_ticks_sec"] - self._before["cpu_ticks_sec"]
        if passed > 0:
            for name in _OF_THE_CPUS:
                gain = max(0.0, now[name] - self._before[name])
                self._shared[name] += min(1.0, gain / passed) * whole
            self._before = now

    def close(self) -> None:
        self._time.close()
