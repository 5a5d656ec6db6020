"""The CPU reader on recorded counters with known answers."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.readers.trees import (
    cpu_stat,
    put,
    read,
)

from mlflow_perf.errors import SourceUnavailableError
from mlflow_perf.readers.cpu.cpu import CpuReader


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    """Return an empty procfs."""
    return tmp_path / "proc"


def test_a_block_shorter_than_a_tick_has_its_own_cpu_time(
    proc: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until the first tick is counted, utilisation comes from the process's own CPU time."""
    put(proc / "stat", cpu_stat((100, 100, 0), (50, 50, 0)))
    now = {"wall": 0.0, "cpu": 5.0}
    clocks = SimpleNamespace(monotonic=lambda: now["wall"], process_time=lambda: now["cpu"])
    monkeypatch.setattr("mlflow_perf.readers.cpu.cpu.time", clocks)
    reader = CpuReader(proc, ticks_per_sec=100)
    assert "cpu_pct_per_cpu_avg" not in read(reader)
    now.update(wall=0.004, cpu=5.003)
    report = read(reader)
    assert report["cpu_pct_per_cpu_avg"] == pytest.approx(37.5)
    assert report["cpu_pct_per_cpu_max"] == pytest.approx(75.0)
    assert report["cpu_pct_per_cpu_min"] == 0.0
    assert report["cpu_ticks_sec"] == 0.0
    put(proc / "stat", cpu_stat((101, 100, 0), (50, 51, 0)))
    assert read(reader)["cpu_pct_per_cpu_avg"] == 50.0


def test_cpu_utilisation_is_the_busy_share_of_the_ticks(proc: Path) -> None:
    """Utilisation per CPU is its busy ticks over all its ticks since the last read."""
    put(proc / "stat", cpu_stat((100, 100, 0), (50, 50, 0)))
    reader = CpuReader(proc, ticks_per_sec=100)
    read(reader)
    put(proc / "stat", cpu_stat((175, 125, 0), (50, 140, 10)))
    report = read(reader)
    assert report["cpu_pct_per_cpu_max"] == 75.0
    assert report["cpu_pct_per_cpu_min"] == 0.0
    assert report["cpu_pct_per_cpu_avg"] == 37.5
    assert report["cpu_busy_sec"] == 0.75
    assert report["cpu_ticks_sec"] == 2.0
    assert report["cpu_iowait_sec"] == 0.1
    assert report["cpu_limit_cores"] == 2


def test_steal_time_is_busy_and_has_a_column_of_its_own(proc: Path) -> None:
    """Steal is time in which a CPU had work: busy, as psutil counts it, and a sum of its own."""
    put(proc / "stat", cpu_stat((0, 0, 0, 40), (0, 0, 0, 0)))
    reader = CpuReader(proc, ticks_per_sec=100)
    put(proc / "stat", cpu_stat((30, 10, 0, 100), (0, 100, 0, 0)))
    report = read(reader)
    assert report["cpu_steal_sec"] == 0.6
    assert report["cpu_busy_sec"] == 0.9
    assert report["cpu_ticks_sec"] == 2.0


def test_cpu_counts_only_the_cpus_of_the_job(proc: Path) -> None:
    """With an affinity, the other CPUs of the host do not count."""
    put(proc / "stat", cpu_stat((0, 0, 0), (0, 0, 0)))
    reader = CpuReader(proc, cpus={1}, ticks_per_sec=100)
    read(reader)
    put(proc / "stat", cpu_stat((100, 0, 0), (25, 75, 0)))
    report = read(reader)
    assert report["cpu_pct_per_cpu_avg"] == report["cpu_pct_per_cpu_max"] == 25.0
    assert report["cpu_limit_cores"] == 1


def test_cpu_that_goes_offline_takes_nothing_away(proc: Path) -> None:
    """A CPU that vanishes and comes back at zero never makes a sum fall."""
    put(proc / "stat", cpu_stat((0, 0, 0), (900, 900, 0)))
    reader = CpuReader(proc, ticks_per_sec=100)
    put(proc / "stat", cpu_stat((100, 0, 0)))
    assert read(reader)["cpu_busy_sec"] == 1.0
    put(proc / "stat", cpu_stat((200, 0, 0), (5, 5, 0)))
    report = read(reader)
    assert report["cpu_busy_sec"] == 2.0
    assert report["cpu_pct_per_cpu_avg"] == 100.0


def test_cpu_without_time_between_reads_keeps_the_last_utilisation(proc: Path) -> None:
    """Two reads within one tick report the last utilisation again."""
    put(proc / "stat", cpu_stat((0, 0, 0)))
    reader = CpuReader(proc, ticks_per_sec=100)
    assert "cpu_pct_per_cpu_avg" not in read(reader)
    put(proc / "stat", cpu_stat((30, 70, 0)))
    assert read(reader)["cpu_pct_per_cpu_avg"] == 30.0
    assert read(reader)["cpu_pct_per_cpu_avg"] == 30.0


def test_a_tick_from_before_the_first_read_makes_no_utilisation(
    proc: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between making the reader and reading it, a busy tick passed: it is not the block's."""
    monkeypatch.setattr("time.process_time", lambda: 0.0)
    put(proc / "stat", cpu_stat((100, 100, 0)))
    reader = CpuReader(proc, ticks_per_sec=100)
    put(proc / "stat", cpu_stat((101, 100, 0)))
    assert "cpu_pct_per_cpu_avg" not in read(reader)
    assert read(reader)["cpu_pct_per_cpu_avg"] == 0.0
    put(proc / "stat", cpu_stat((101, 101, 0)))
    assert read(reader)["cpu_pct_per_cpu_avg"] == 0.0


def test_256_cpus(proc: Path) -> None:
    """A file longer than the first buffer is read whole."""
    put(proc / "stat", cpu_stat(*[(10**9, 10**9, 10**9)] * 256))
    reader = CpuReader(proc, ticks_per_sec=100)
    read(reader)
    put(proc / "stat", cpu_stat(*[(10**9 + n, 10**9 + 256 - n, 10**9) for n in range(256)]))
    report = read(reader)
    assert report["cpu_limit_cores"] == 256
    assert report["cpu_pct_per_cpu_avg"] == pytest.approx(100 * 127.5 / 256)


def test_missing_stat_is_an_unavailable_source(proc: Path) -> None:
    """A source that is not there says so, with its path."""
    with pytest.raises(SourceUnavailableError, match="stat"):
        CpuReader(proc)
