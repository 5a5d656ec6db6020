"""How busy the CPUs are that the job may use, from `/proc/stat`."""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Sequence
from pathlib import Path

from mlflow_perf.errors import SourceUnavailableError
from mlflow_perf.model.columns import CPU_COLUMNS
from mlflow_perf.readers.procfile import ProcFile
from mlflow_perf.records import Column

_CpuTimes = dict[bytes, tuple[int, int, int, int]]
"""CPU name → (busy, total, iowait, steal) in clock ticks since boot."""


class CpuReader:
    """Utilisation of the CPUs between two reads, and their busy and total time since boot.

    Busy is what psutil calls busy: everything but idle and iowait, with guest time counted once.
    Steal is a part of it: the CPU had work while the hypervisor ran another machine. The first read
    begins the first interval and has no utilisation. Until the kernel has counted its first tick of
    10 ms, utilisation is this process's own CPU time.

    Args:
        proc: Where procfs is mounted.
        cpus: Numbers of the CPUs that the job may use; None for all.
        ticks_per_sec: The kernel's clock ticks in a second.

    Raises:
        SourceUnavailableError: When there is no `/proc/stat`, or it shows none of the CPUs.
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
        self._file = ProcFile(f"{proc}/stat")
        self._wanted = None if cpus is None else {b"cpu%d" % n for n in cpus}
        self._tick = 1.0 / (ticks_per_sec or os.sysconf("SC_CLK_TCK"))
        self._before = self._times()
        self._shares: list[float] = []
        self._sum = [0, 0, 0, 0]
        self._first_clocks: tuple[float, float] | None = None
        if not self._before:
            raise SourceUnavailableError(f"{self._file.path} names none of the job's CPUs.")

    @property
    def count(self) -> int:
        """How many CPUs there were at the newest reading."""
        return len(self._before)

    def _times(self) -> _CpuTimes:
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
        now, before, total = self._times(), self._before, self._sum
        shares = []
        # Summed per CPU: a CPU that goes offline and comes back at 0 takes nothing away, and
        # neither does the iowait or idle of a CPU, which the kernel lets slip back now and then.
        for name, values in now.items():
            old = before.get(name)
            if old is None:
                continue
            for i in (0, 1, 2, 3):
                gain = values[i] - old[i]
                if gain > 0:
                    total[i] += gain
            if values[1] > old[1]:
                share = 100.0 * (values[0] - old[0]) / (values[1] - old[1])
                shares.append(min(100.0, max(0.0, share)))
        self._before = now
        if self._first_clocks is None:
            self._first_clocks = time.monotonic(), time.process_time()
            shares = []
        elif not (shares := shares or self._shares):
            clocks = time.monotonic(), time.process_time()
            elapsed, used = (b - a for a, b in zip(self._first_clocks, clocks, strict=True))
            # This process's CPU time, on as few CPUs as it fits on.
            cores = used / elapsed if elapsed > 0 else 0.0
            shares = [100.0 * min(1.0, max(0.0, cores - n)) for n in range(len(now))]
        else:
            self._shares = shares
        if shares:
            report["cpu_pct_per_cpu_avg"] = sum(shares) / len(shares)
            report["cpu_pct_per_cpu_min"] = min(shares)
            report["cpu_pct_per_cpu_max"] = max(shares)
        report["cpu_busy_sec"] = total[0] * self._tick
        report["cpu_ticks_sec"] = total[1] * self._tick
        report["cpu_iowait_sec"] = total[2] * self._tick
        report["cpu_steal_sec"] = total[3] * self._tick
        report["cpu_limit_cores"] = float(len(now))

    def close(self) -> None:
        """Close `/proc/stat`."""
        self._file.close()
