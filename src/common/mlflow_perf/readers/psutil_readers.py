"""The node's sources through psutil: for platforms without procfs, and as the tests' reference."""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import Any

import psutil as _psutil

from mlflow_perf.errors import SourceUnavailableError
from mlflow_perf.model.columns import (
    CPU_COLUMNS,
    DISK_IO_COLUMNS,
    DISK_USAGE_COLUMNS,
    MEMORY_COLUMNS,
    NETWORK_COLUMNS,
)
from mlflow_perf.records import MB, Column


class _PsutilReader:
    """What the readers have in common.

    Args:
        psutil: The module, or a recorded stand-in for it.
    """

    def __init__(self, psutil: ModuleType | Any = _psutil) -> None:
        self._psutil = psutil

    def close(self) -> None:
        """Do nothing: psutil keeps no descriptor."""


class PsutilCpuReader(_PsutilReader):
    """Utilisation of all CPUs between two reads, and their busy and total time."""

    name = "cpu"
    columns: Sequence[Column] = CPU_COLUMNS

    def __init__(self, psutil: ModuleType | Any = _psutil) -> None:
        super().__init__(psutil)
        self._before = self._times()
        self._was_read = False
        self._shares: list[float] = []
        self._busy = self._ticks = 0.0

    def _times(self) -> list[tuple[float, float]]:
        """Return the busy and the total time of each CPU."""
        found = []
        for times in self._psutil.cpu_times(percpu=True):
            fields = times._asdict()
            # Linux counts guest time within user time as well.
            total = sum(fields.values()) - fields.get("guest", 0.0) - fields.get("guest_nice", 0.0)
            found.append((total - fields["idle"] - fields.get("iowait", 0.0), total))
        return found

    def read(self, report: dict[str, float]) -> None:
        """Put utilisation since the last read and the running sums into the report."""
        now = self._times()
        gains = [(b - ob, t - ot) for (b, t), (ob, ot) in zip(now, self._before, strict=False)]
        gains = [(max(0.0, busy), total) for busy, total in gains if total > 0]
        self._before = now
        if self._was_read:  # the first read begins the first interval
            self._shares = [min(100.0, 100.0 * b / t) for b, t in gains] or self._shares
        self._was_read = True
        self._busy += sum(busy for busy, _ in gains)
        self._ticks += sum(total for _, total in gains)
        if self._shares:
            report["cpu_pct_per_cpu_avg"] = sum(self._shares) / len(self._shares)
            report["cpu_pct_per_cpu_min"] = min(self._shares)
            report["cpu_pct_per_cpu_max"] = max(self._shares)
        report["cpu_busy_sec"] = self._busy
        report["cpu_ticks_sec"] = self._ticks
        report["cpu_limit_cores"] = float(len(now))


class PsutilMemoryReader(_PsutilReader):
    """Memory and swap in use, in per cent of the total."""

    name = "memory"
    columns: Sequence[Column] = MEMORY_COLUMNS

    def read(self, report: dict[str, float]) -> None:
        """Put the present levels into the report."""
        memory = self._psutil.virtual_memory()
        report["mem_percent"], report["host_mem_mb"] = float(memory.percent), memory.total / MB
        swap = self._psutil.swap_memory()
        if swap.total:
            report["swap_percent"] = float(swap.percent)


class PsutilDiskIoReader(_PsutilReader):
    """Bytes read and written by the disks since boot.

    Raises:
        SourceUnavailableError: When the platform counts none, as in many containers.
    """

    name = "disk_io"
    columns: Sequence[Column] = DISK_IO_COLUMNS

    def __init__(self, psutil: ModuleType | Any = _psutil) -> None:
        super().__init__(psutil)
        if psutil.disk_io_counters() is None:
            raise SourceUnavailableError("psutil finds no disk counters on this machine.")

    def read(self, report: dict[str, float]) -> None:
        """Put the counters into the report, when there are any now."""
        counters = self._psutil.disk_io_counters()
        if counters is not None:
            report["disk_io_read_mb"] = counters.read_bytes / MB
            report["disk_io_write_mb"] = counters.write_bytes / MB


class PsutilDiskUsageReader(_PsutilReader):
    """How full the root file system is."""

    name = "disk_usage"
    columns: Sequence[Column] = DISK_USAGE_COLUMNS

    def read(self, report: dict[str, float]) -> None:
        """Put the present level into the report."""
        report["disk_usage_percent"] = float(self._psutil.disk_usage("/").percent)


class PsutilNetworkReader(_PsutilReader):
    """Bytes sent and received since boot, loopback and external apart.

    Raises:
        SourceUnavailableError: When the platform counts none.
    """

    name = "network"
    columns: Sequence[Column] = NETWORK_COLUMNS

    def __init__(self, psutil: ModuleType | Any = _psutil) -> None:
        super().__init__(psutil)
        if not psutil.net_io_counters(pernic=True):
            raise SourceUnavailableError("psutil finds no network interface on this machine.")

    def read(self, report: dict[str, float]) -> None:
        """Put the counters into the report."""
        sums = {column.name: 0 for column in NETWORK_COLUMNS}
        for name, nic in self._psutil.net_io_counters(pernic=True).items():
            side = "lo" if name == "lo" or "loopback" in name.lower() else "ext"
            sums[f"net_io_{side}_sent_mb"] += nic.bytes_sent
            sums[f"net_io_{side}_recv_mb"] += nic.bytes_recv
        report.update({key: value / MB for key, value in sums.items()})
