"""How busy the CPUs are that the job may use, from `/proc/stat`.

Imports procfile and the column table.
"""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Sequence
from pathlib import Path

from mlflow_perf.errors import SourceUnavailableError
from mlflow_perf.model.columns import CPU_COLUMNS
from mlflow_perf.readers.procfile import ProcFile
from mlflow_perf.records import Column

__all__ = ["CpuReader", "CpuTimes", "utilisation"]

CpuTimes = dict[bytes, tuple[int, int, int, int]]
"""CPU name -> (busy, total, iowait, steal) in clock ticks since boot."""


def utilisation(before: CpuTimes, now: CpuTimes) -> list[float]:
    """Return the busy share, in per cent, of each CPU that moved between two readings.

    A CPU that came, went or whose counters were reset in between is left out.
    """
    shares = []
    for name, (busy, total, *_) in now.items():
        old = before.get(name)
        if old is None or total <= old[1]:
            continue
        share = 100.0 * (busy - old[0]) / (total - old[1])
        shares.append(min(100.0, max(0.0, share)))
    return shares


class _OwnTime:
    """What this process alone makes of the CPUs: for a block that is shorter than a tick."""

    def __init__(self) -> None:
        self._began, self._used = time.monotonic(), time.process_time()

    def shares(self, count: int) -> list[float]:
        """Return the busy share of each CPU in per cent, as few of them as can be."""
        elapsed, used = time.monotonic() - self._began, time.process_time() - self._used
        cores = used / elapsed if elapsed > 0 else 0.0
        return [100.0 * min(1.0, max(0.0, cores - n)) for n in range(count)]


class CpuReader:
    """Utilisation of the CPUs between two reads, and their busy and total time since boot.

    Busy is what psutil calls busy: everything but idle and iowait, guest time counted once.
    So steal is within it: the CPU had work, and the host of the virtual machine ran somebody else.
    Until the kernel has counted its first tick of 10 ms, this process's own CPU time stands for it.

    Args:
        proc: Where procfs is mounted.
        cpus: Numbers of the CPUs that the job may use; None for all.
        ticks_per_sec: The kernel's clock ticks in a second.

    Raises:
        SourceUnavailableError: When there is no `/proc/stat`, or none of the CPUs is in it.
    """

    name = "cpu"
    columns: Sequence[Column] = CPU_COLUMNS

    def __init__(
        self,
        proc: Path | str = "/proc",
        *,
        cpus: Collection[int] | None = None,
        ticks_per_sec: int | None = None,
    ) -> None:
        self._file = ProcFile(Path(proc) / "stat")
        self._wanted = None if cpus is None else {b"cpu%d" % n for n in cpus}
        self._tick = 1.0 / (ticks_per_sec or os.sysconf("SC_CLK_TCK"))
        self._before = self._times()
        self._shares: list[float] = []
        self._sum = [0, 0, 0, 0]
        self._own: _OwnTime | None = None
        if not self._before:
            raise SourceUnavailableError(f"{self._file.path} names none of the job's CPUs.")

    @property
    def count(self) -> int:
        """How many CPUs there were at the newest reading."""
        return len(self._before)

    def _times(self) -> CpuTimes:
        data = self._file.read()
        # Line 0 sums all CPUs; after the CPUs' lines comes a long one of interrupt counts.
        lines = data[: data.index(b"\nintr")].split(b"\n")[1:]
        times = {}
        wanted = self._wanted
        for line in lines:
            name, *ticks = line.split(None, 9)
            if wanted is None or name in wanted:
                user, nice, system, idle, wait, irq, soft, steal = map(int, ticks[:8])
                busy = user + nice + system + irq + soft + steal
                times[name] = (busy, busy + idle + wait, wait, steal)
        return times

    def read(self, report: dict[str, float]) -> None:
        """Put utilisation since the last read and the running sums into the report."""
        now = self._times()
        self._shares = utilisation(self._before, now) or self._shares
        self._add_up(now)
        self._before = now
        shares = self._shares
        if not shares and self._own is not None:
            shares = self._own.shares(len(now))
        elif self._own is None:
            self._own = _OwnTime()
        if shares:
            report["cpu_pct_per_cpu_avg"] = sum(shares) / len(shares)
            report["cpu_pct_per_cpu_min"] = min(shares)
            report["cpu_pct_per_cpu_max"] = max(shares)
        report["cpu_busy_sec"] = self._sum[0] * self._tick
        report["cpu_ticks_sec"] = self._sum[1] * self._tick
        report["cpu_iowait_sec"] = self._sum[2] * self._tick
        report["cpu_steal_sec"] = self._sum[3] * self._tick
        report["cpu_limit_cores"] = float(len(now))

    def _add_up(self, now: CpuTimes) -> None:
        # Summed per CPU, so that one that goes offline and comes back at 0 takes nothing away;
        # the kernel lets iowait and idle of one CPU slip back now and then.
        total = self._sum
        for name, values in now.items():
            old = self._before.get(name, values)
            for i in (0, 1, 2, 3):
                gain = values[i] - old[i]
                if gain > 0:
                    total[i] += gain

    def close(self) -> None:
        """Close `/proc/stat`."""
        self._file.close()
