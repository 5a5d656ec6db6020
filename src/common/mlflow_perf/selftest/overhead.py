"""The cost of measuring: CPU time per sample, a job's slowdown, and memory."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path

from mlflow_perf.readers import default_readers
from mlflow_perf.sampling.sampler import PerformanceMetricsCollector

_SAMPLES = 200
_SLICES = 15
_SLICE_SEC = 0.1
_FASTEST_SEC = 0.05


def measure_overhead() -> dict[str, float]:
    """Return the cost of measuring on this machine.

    Returns:
        `cpu_per_sample_us`: CPU time of one sample of all sources; `core_share_pct`: the same at
        one sample per second, as a share of a core; `start_ms` and `stop_ms`: CPU time of starting
        and stopping; `slowdown_pct`: how much slower a pure-Python loop runs at 20 samples per
        second, the fastest setting; `memory_mb`: resident memory that sampling added. On a shared
        machine the noise of the slowdown is some per cent, so that it may be below zero.
    """
    before_mb = _resident_mb()
    starts, stops = [], []
    for _ in range(5):
        collector = PerformanceMetricsCollector(interval=1.0)
        starts.append(_cpu_ms(collector.start))
        stops.append(_cpu_ms(collector.finalize))
    memory_mb = max(0.0, _resident_mb() - before_mb)
    readers = default_readers()

    def sample() -> None:
        report: dict[str, float] = {}
        for reader in readers:
            reader.read(report)

    sample_us = 1e3 * statistics.median(_cpu_ms(sample) for _ in range(_SAMPLES))
    for reader in readers:
        reader.close()
    return {
        "cpu_per_sample_us": sample_us,
        "core_share_pct": sample_us / 1e4,
        "start_ms": statistics.median(starts),
        "stop_ms": statistics.median(stops),
        "slowdown_pct": _slowdown_pct(),
        "memory_mb": memory_mb,
    }


def _resident_mb() -> float:
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    except (OSError, ValueError):
        return 0.0
    return pages * os.sysconf("SC_PAGE_SIZE") / (1 << 20)


def _cpu_ms(step: Callable[[], object]) -> float:
    begin = time.process_time()
    step()
    return 1e3 * (time.process_time() - begin)


def _slowdown_pct() -> float:
    """Return the loss of speed, from slices with and without the sampler in turns."""

    def loops_per_second() -> float:
        done, begin = 0, time.monotonic()
        while (passed := time.monotonic() - begin) < _SLICE_SEC:
            for _ in range(1000):
                done += 1
        return done / passed

    free, sampled = [], []
    for _ in range(_SLICES):
        free.append(loops_per_second())
        for _twice in range(2):
            collector = PerformanceMetricsCollector(interval=_FASTEST_SEC)
            collector.start()
            sampled.append(loops_per_second())
            collector.finalize()
        free.append(loops_per_second())
    return 100.0 * (1 - statistics.median(sampled) / statistics.median(free))
