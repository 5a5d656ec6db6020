"""What measuring costs: CPU per sample, a job's slowdown, memory. Imports the sampler."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path

from mlflow_perf.readers import Reader, default_readers
from mlflow_perf.sampling.sampler import PerformanceMetricsCollector

__all__ = ["measure_overhead"]

_SAMPLES = 200
_SLICES = 15
_SLICE_SEC = 0.1
_FASTEST_SEC = 0.05


def measure_overhead() -> dict[str, float]:
    """Return what measuring costs on this machine, now.

    Returns:
        `cpu_per_sample_us`: CPU time of one sample of all sources; `core_share_pct`: the same at
        one sample per second, as a share of a core; `start_ms` and `stop_ms`: CPU time of starting
        and stopping; `slowdown_pct`: what a pure-Python loop loses at 20 samples per second, the
        most that can be asked for; `memory_mb`: resident memory that sampling added. The
        slowdown is within the noise of a shared machine, some per cent, below zero too.
    """
    before_mb = _resident_mb()
    start_ms, stop_ms = _start_and_stop()
    memory_mb = max(0.0, _resident_mb() - before_mb)
    sample_us = _sample_us(default_readers())
    return {
        "cpu_per_sample_us": sample_us,
        "core_share_pct": sample_us / 1e4,
        "start_ms": start_ms,
        "stop_ms": stop_ms,
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


def _start_and_stop() -> tuple[float, float]:
    starts, stops = [], []
    for _ in range(5):
        collector = PerformanceMetricsCollector(interval=1.0)
        starts.append(_cpu_ms(collector.start))
        stops.append(_cpu_ms(collector.finalize))
    return statistics.median(starts), statistics.median(stops)


def _sample_us(readers: list[Reader]) -> float:
    def sample() -> None:
        report: dict[str, float] = {}
        for reader in readers:
            reader.read(report)

    costs = [_cpu_ms(sample) for _ in range(_SAMPLES)]
    for reader in readers:
        reader.close()
    return 1e3 * statistics.median(costs)


def _loops(seconds: float) -> float:
    """Return how fast a pure-Python loop runs: loops per second."""
    done, begin = 0, time.monotonic()
    while (passed := time.monotonic() - begin) < seconds:
        for _ in range(1000):
            done += 1
    return done / passed


def _watched_loops() -> float:
    collector = PerformanceMetricsCollector(interval=_FASTEST_SEC)
    collector.start()
    speed = _loops(_SLICE_SEC)
    collector.finalize()
    return speed


def _slowdown_pct() -> float:
    """Return the loss of speed from slices in turns, without and with the sampler."""
    free, watched = [], []
    for _ in range(_SLICES):
        free.append(_loops(_SLICE_SEC))
        watched += [_watched_loops(), _watched_loops()]
        free.append(_loops(_SLICE_SEC))
    return 100.0 * (1 - statistics.median(watched) / statistics.median(free))
