"""Limits that change while a job runs: each moment is measured against its own limits."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.readers import trees
from tests.readers.trees import EIGHT, alike_cpus, put, put_all

from mlflow_perf.errors import SourceUnavailableError
from mlflow_perf.model.summary import summarise
from mlflow_perf.readers.cgroup.limits import LimitsReader, Owned
from mlflow_perf.readers.cgroup.rebuilt import CurrentLimits, RebuiltReader
from mlflow_perf.readers.cpu.cpu import CpuReader
from mlflow_perf.readers.job import JobSources
from mlflow_perf.records import Column, Kind
from mlflow_perf.sampling.sampler import PerformanceReportingThread
from mlflow_perf.testing import FakeClock

COLUMNS = (Column("work", Kind.COUNTER, ""), Column("cores", Kind.GAUGE, ""))


class Counting:
    """A reader with a counter that starts at a given number and grows by one per read."""

    name = "counting"
    columns: Sequence[Column] = COLUMNS

    def __init__(self, cores: float, zero: float) -> None:
        self.cores, self.value, self.closed = cores, zero, False

    def read(self, report: dict[str, float]) -> None:
        self.value += 1
        report.update(work=self.value, cores=self.cores)

    def close(self) -> None:
        self.closed = True


@given(st.lists(st.tuples(st.sampled_from([1.0, 2.0, 4.0]), st.integers(0, 1000)), min_size=1))
def test_counters_go_on_whatever_the_next_reader_counts_from(
    steps: list[tuple[float, int]],
) -> None:
    """Each read adds the growth since the last one, whatever the inner counter starts from."""
    made: list[Counting] = []
    now, zero = [Owned(steps[0][0], None)], [0.0]

    def make(limits: Owned) -> Counting:
        made.append(Counting(limits.cores, zero[0]))
        return made[-1]

    clock = iter(range(0, 10**9, 60))
    limits = CurrentLimits(lambda: now[0], clock=lambda: float(next(clock)))
    reader = RebuiltReader(make, limits, COLUMNS)
    for place, (cores, start) in enumerate(steps, 1):
        report: dict[str, float] = {}
        now[0], zero[0] = Owned(cores, None), float(start)
        reader.read(report)
        assert report["work"] == place
    assert all(one.closed for one in made[:-1])
    assert report["cores"] == steps[max(0, len(steps) - 2)][0]
    reader.close()


def test_the_limits_survive_the_end_of_the_process() -> None:
    """A process that ended has no affinity; its limits stay as they were."""
    answers = iter([Owned(2.0, frozenset({0, 1})), Owned(64.0, None)])
    ticks = iter([0.0, 11.0, 11.0])
    limits = CurrentLimits(lambda: next(answers), clock=lambda: next(ticks))
    assert limits.now().cores == 2.0


def test_limits_are_looked_up_now_and_then_only() -> None:
    """Twenty reads in as many seconds ask twice: at the start and after ten seconds."""
    asked: list[int] = []
    now = [0.0]

    def look_up() -> Owned:
        asked.append(1)
        return Owned(1.0, None, mem_mb=1.0)

    limits = CurrentLimits(look_up, clock=lambda: now[0])
    for second in range(20):
        now[0] = float(second)
        limits.now()
    assert len(asked) == 2


def test_a_source_that_is_gone_with_its_limit_is_absent() -> None:
    """While a reader's source is missing, its values are left out; later they continue."""
    now = [Owned(1.0, None)]

    def make(limits: Owned) -> Counting:
        if limits.cores > 1:
            raise SourceUnavailableError("no quota")
        return Counting(limits.cores, 0.0)

    ticks = iter(range(0, 10**6, 60))
    reader = RebuiltReader(make, CurrentLimits(lambda: now[0], clock=lambda: next(ticks)), COLUMNS)
    reports: list[dict[str, float]] = []
    for cores in (1.0, 2.0, 2.0, 1.0, 1.0):
        reports.append({})
        now[0] = Owned(cores, None)
        reader.read(reports[-1])
    assert [r.get("work") for r in reports] == [1.0, 2.0, None, None, 3.0]


def simulate(tmp_path: Path, change: Callable[[Path], None]) -> dict[str, float]:
    """Return the summary of 40 s in a container of 1.5 CPUs that uses 0.75; halfway `change`."""
    proc, group = trees.docker_v2(tmp_path), tmp_path / "sys/fs/cgroup"
    put(proc / "stat", alike_cpus(0, 0))

    class WorkingClock(FakeClock):
        """A clock on which the job works while the sampler waits."""

        def wait(self, event: threading.Event, timeout_sec: float) -> bool:
            ended = super().wait(event, timeout_sec)
            put_all(group, {"cpu.stat": f"usage_usec {int(5e6 + 0.75e6 * self.elapsed)}"})
            busy, idle = int(75 * self.elapsed / 8), int(self.elapsed * 100)
            put(proc / "stat", alike_cpus(busy, idle))
            if self.elapsed == 20.0:
                change(group)
            return ended

    clock = WorkingClock(stop_after=40.0)
    sources = JobSources(proc=proc, root=tmp_path, environ={}, cpus=EIGHT, clock=clock.monotonic)
    readers = [sources.cpu(), LimitsReader(sources.limits.now)]
    reports: list[dict[str, float]] = []
    thread = PerformanceReportingThread(
        1.0, callback_on_loop=reports.append, readers=readers, clock=clock
    )
    thread.start()
    thread.join()
    return summarise(reports)


def test_a_container_resized_in_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From 1.5 to 3 CPUs halfway: hours and utilisation are of each for as long as it held."""
    monkeypatch.setattr("mlflow_perf.readers.cgroup.rebuilt._LOOK_EVERY_SEC", 1.0)

    def resize(group: Path) -> None:
        put_all(group, {"cpu.max": "300000 100000", "memory.max": "2147483648"})

    metrics = simulate(tmp_path, resize)
    assert metrics["cpu_limit_cores"] == 3.0
    assert metrics["mem_limit_mb"] == 2048.0
    held = 20 * 1.5 + 20 * 3.0
    assert metrics["node_cpu_hours"] == pytest.approx(held / 3600, rel=0.05)
    assert metrics["cpu_avg_utilization_pct"] == pytest.approx(100 * 30 / held, rel=0.05)


def test_an_unchanged_job_keeps_its_reader(tmp_path: Path) -> None:
    """A look-up that finds the same limits rebuilds nothing."""
    put(tmp_path / "stat", alike_cpus(0, 0))
    ticks = iter(range(0, 10**6, 60))
    limits = CurrentLimits(lambda: Owned(8.0, None), clock=lambda: float(next(ticks)))
    reader = RebuiltReader(lambda _: CpuReader(tmp_path), limits, CpuReader.columns)
    first = reader.inner
    for _ in range(3):
        reader.read({})
    assert reader.inner is first
    reader.close()
