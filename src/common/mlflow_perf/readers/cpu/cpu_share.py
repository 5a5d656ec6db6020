"""How busy the CPUs are that the job owns, where it owns less than the whole node."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Protocol

from mlflow_perf.model.columns import CPU_COLUMNS, HOST_CPU_COLUMNS
from mlflow_perf.readers.base import Reader
from mlflow_perf.records import Column


class CpuTime(Protocol):
    """A counter of a job's CPU time."""

    def seconds(self) -> float | None:
        """Return the CPU time as a growing sum, in seconds; None when unknown now."""
        ...

    def close(self) -> None:
        """Release descriptors."""
        ...


_HOST = (
    ("host_cpu_pct_per_cpu_avg", "cpu_pct_per_cpu_avg"),
    ("host_cpu_busy_sec", "cpu_busy_sec"),
    ("host_cpu_ticks_sec", "cpu_ticks_sec"),
    ("host_cpu_cores", "cpu_limit_cores"),
)
_WAITS = ("cpu_iowait_sec", "cpu_steal_sec")
"""Counted only for whole CPUs; a share of CPU time gets the same fraction of itself."""


class CpuShareReader:
    """The CPU columns for the job's share, with columns for the whole host.

    A job that owns some CPUs gets their values. A job that owns a share of CPU time (a quota, or an
    allocation that no affinity enforces) gets its own CPU time against that share. Least busy, mean
    and busiest are the same then, since no single CPU belongs to the job.

    Args:
        owned: Reader of the CPUs that the job may run on.
        host: Reader of all CPUs; None where they are the same.
        cores: The share of CPU time, in CPUs; None where the job has the CPUs to itself.
        used: The CPU time that counts against that share.
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
        """Put the values of the job's share, and those of the host, into the report."""
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
            self._share.cpu_time.close()


class _Share:
    """A job's CPU time against the share that it owns."""

    def __init__(self, cores: float, cpu_time: CpuTime, clock: Callable[[], float]) -> None:
        self.cpu_time = cpu_time
        self._cores, self._clock = cores, clock
        self._at, self._used = clock(), cpu_time.seconds()
        self._busy = self._whole = 0.0
        self._waits = dict.fromkeys(_WAITS, 0.0)
        self._before = dict.fromkeys(("cpu_ticks_sec", *_WAITS), 0.0)
        self._percent: float | None = None

    def read(self, cpus: dict[str, float]) -> dict[str, float]:
        """Return the CPU columns of the share, given those of the CPUs it is a share of."""
        at, used = self._clock(), self.cpu_time.seconds()
        whole = self._cores * max(0.0, at - self._at)
        gain = 0.0 if used is None or self._used is None else max(0.0, used - self._used)
        self._at, self._used = at, self._used if used is None else used
        self._busy += gain
        self._whole += whole
        if whole > 0:
            self._percent = min(100.0, 100.0 * gain / whole)
        now = {name: cpus.get(name, 0.0) for name in self._before}
        passed = now["cpu_ticks_sec"] - self._before["cpu_ticks_sec"]
        if passed > 0:
            for name in _WAITS:
                waited = max(0.0, now[name] - self._before[name])
                self._waits[name] += min(1.0, waited / passed) * whole
            self._before = now
        report = {
            "cpu_busy_sec": min(self._busy, self._whole),
            "cpu_ticks_sec": self._whole,
            **self._waits,
            "cpu_limit_cores": self._cores,
        }
        if self._percent is not None:
            for name in ("cpu_pct_per_cpu_avg", "cpu_pct_per_cpu_min", "cpu_pct_per_cpu_max"):
                report[name] = self._percent
        return report
