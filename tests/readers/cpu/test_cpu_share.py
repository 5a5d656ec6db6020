"""The CPU columns of a job that owns a share of CPU time, or some of the node's CPUs."""

from __future__ import annotations

import pytest
from tests.readers.trees import read

from mlflow_perf.readers.cpu.cpu_share import CpuShareReader
from mlflow_perf.testing import FakeClock, FakeReader

HOST = {"cpu_pct_per_cpu_avg": 90.0, "cpu_busy_sec": 50.0, "cpu_ticks_sec": 60.0,
        "cpu_limit_cores": 8.0}  # fmt: skip


class Used:
    """A counter of CPU time that a test sets; None for unknown."""

    def __init__(self) -> None:
        self.now: float | None = 100.0
        self.closed = False

    def seconds(self) -> float | None:
        return self.now

    def close(self) -> None:
        self.closed = True


def test_a_share_is_measured_against_the_jobs_own_cpu_time() -> None:
    """Two cores for ten seconds are twenty; five used are 25%, whatever the CPUs did."""
    used, clock = Used(), FakeClock()
    reader = CpuShareReader(FakeReader([HOST]), cores=2.0, used=used, clock=clock.monotonic)
    clock.advance(10.0)
    used.now = 105.0
    report = read(reader)
    assert report["cpu_pct_per_cpu_avg"] == report["cpu_pct_per_cpu_max"] == 25.0
    assert (report["cpu_busy_sec"], report["cpu_ticks_sec"]) == (5.0, 20.0)
    assert report["cpu_limit_cores"] == 2.0
    assert report["host_cpu_pct_per_cpu_avg"] == 90.0
    assert report["host_cpu_cores"] == 8.0
    reader.close()
    assert used.closed


def test_cpu_time_that_is_unknown_for_a_while_comes_later() -> None:
    """While the counter gives nothing, nothing counts as used; its growth counts afterwards."""
    used, clock = Used(), FakeClock()
    reader = CpuShareReader(FakeReader([HOST]), cores=1.0, used=used, clock=clock.monotonic)
    clock.advance(10.0)
    used.now = None
    assert read(reader)["cpu_busy_sec"] == 0.0
    clock.advance(10.0)
    used.now = 104.0
    assert read(reader)["cpu_busy_sec"] == 4.0


def test_more_than_the_share_is_all_of_it() -> None:
    """A burst over the quota is 100%, and busy time is never more than the share."""
    used, clock = Used(), FakeClock()
    reader = CpuShareReader(FakeReader([HOST]), cores=0.5, used=used, clock=clock.monotonic)
    clock.advance(2.0)
    used.now = 103.0
    report = read(reader)
    assert report["cpu_pct_per_cpu_avg"] == 100.0
    assert report["cpu_busy_sec"] == report["cpu_ticks_sec"] == 1.0


def test_iowait_and_steal_are_the_cpus_in_proportion() -> None:
    """A tenth of the CPUs' time in iowait is a tenth of the share."""
    used, clock = Used(), FakeClock()
    cpus = {"cpu_ticks_sec": 80.0, "cpu_iowait_sec": 8.0, "cpu_steal_sec": 0.0}
    reader = CpuShareReader(FakeReader([cpus]), cores=2.0, used=used, clock=clock.monotonic)
    clock.advance(10.0)
    report = read(reader)
    assert report["cpu_iowait_sec"] == pytest.approx(2.0)
    assert report["cpu_steal_sec"] == 0.0


def test_cpus_of_ones_own_keep_their_columns() -> None:
    """A job with whole CPUs has their columns, with the host's columns beside them."""
    own = FakeReader([{"cpu_pct_per_cpu_avg": 10.0}])
    host = FakeReader([HOST])
    reader = CpuShareReader(own, host)
    report = read(reader)
    assert report["cpu_pct_per_cpu_avg"] == 10.0
    assert report["host_cpu_pct_per_cpu_avg"] == 90.0
    reader.close()
    assert own.closed
    assert host.closed
