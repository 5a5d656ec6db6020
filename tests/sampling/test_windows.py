"""Many windows on one sampler: each has the figures of its own span, whatever the others do."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from mlflow_perf.core.thread_list import list_threads
from mlflow_perf.sampling.windows import Window, WindowSampler
from mlflow_perf.testing import FakeClock, FakeReader


class Machine:
    """Sources that a test moves: busy time, CPU time of the job, memory."""

    def __init__(self) -> None:
        self.clock = FakeClock(now=1000.0)
        self.busy = self.job = 50.0
        self.memory, self.peak = 100.0, 400.0
        reader = FakeReader([self._show], counters=["cpu_busy_sec"])
        self.sampler = WindowSampler([reader], clock=self.clock, interval=3600.0)

    def _show(self) -> dict[str, float]:
        return {
            "cpu_busy_sec": self.busy,
            "cpu_ticks_sec": 2 * self.clock.elapsed,
            "cpu_limit_cores": 2.0,
            "job_cpu_sec": self.job,
            "job_mem_mb": self.memory,
            "job_mem_peak_mb": self.peak,
        }

    def work(self, seconds: float, cores: float) -> None:
        """Let time pass in which the job keeps some CPUs busy."""
        self.clock.advance(seconds)
        self.busy += seconds * cores
        self.job += seconds * cores


class _Resting(WindowSampler):
    """A sampler without a thread: the test takes every reading."""

    def _start_thread(self) -> None:
        pass


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    """A machine whose sampler has no thread, so that only boundaries are read."""
    monkeypatch.setattr(WindowSampler, "_start_thread", _Resting._start_thread)
    machine = Machine()
    yield machine
    machine.sampler.stop()


def close(machine: Machine, window: Window) -> dict[str, float]:
    """End a window and return its metrics."""
    machine.sampler.close(window)
    return window.metrics()


def test_a_nested_window_has_the_figures_of_its_own_span(machine: Machine) -> None:
    """The inner window counts from its start to its end; the outer one counts all of it."""
    outer = machine.sampler.open()
    machine.work(10.0, cores=0.0)
    inner = machine.sampler.open()
    machine.work(5.0, cores=2.0)
    found = close(machine, inner)
    machine.work(5.0, cores=0.0)
    whole = close(machine, outer)
    assert found["duration_sec"] == pytest.approx(5.0)
    assert found["job_cpu_avg_cores"] == pytest.approx(2.0)
    assert found["cpu_avg_utilization_pct"] == pytest.approx(100.0)
    assert found["max_t_cpu_pct_per_cpu_avg"] == pytest.approx(100.0)
    assert whole["duration_sec"] == pytest.approx(20.0)
    assert whole["job_cpu_avg_cores"] == pytest.approx(0.5)
    assert inner.started == pytest.approx(1010.0)


def test_windows_in_turn_share_nothing(machine: Machine) -> None:
    """What the first run did is not in the second one, not even in its highest value."""
    first = machine.sampler.open()
    machine.work(4.0, cores=2.0)
    close(machine, first)
    second = machine.sampler.open()
    machine.work(4.0, cores=0.25)
    found = close(machine, second)
    assert found["job_max_cpu_cores"] == pytest.approx(0.25)
    assert found["max_t_cpu_pct_per_cpu_avg"] == pytest.approx(12.5)
    assert found["job_cpu_hours"] * 3600 == pytest.approx(1.0)


def test_a_peak_of_the_process_is_a_window_s_only_where_it_grew(machine: Machine) -> None:
    """The kernel keeps the peak of a process's life; a later run with less has its own."""
    small = machine.sampler.open()
    machine.work(1.0, cores=1.0)
    assert close(machine, small)["job_max_mem_mb"] == 100.0
    large = machine.sampler.open()
    machine.work(1.0, cores=1.0)
    machine.peak = 900.0
    assert close(machine, large)["job_max_mem_mb"] == 900.0


def test_a_window_like_another_has_its_past_and_an_end_of_its_own(machine: Machine) -> None:
    """A trial that is logged after its search began when the search did."""
    search = machine.sampler.open()
    machine.work(3.0, cores=1.0)
    trial = machine.sampler.open_like(search)
    assert close(machine, trial)["duration_sec"] == pytest.approx(3.0)
    machine.work(1.0, cores=1.0)
    assert close(machine, search)["duration_sec"] == pytest.approx(4.0)
    assert trial.metrics()["duration_sec"] == pytest.approx(3.0)


def test_a_second_close_changes_nothing(machine: Machine) -> None:
    """A run may be ended twice."""
    window = machine.sampler.open()
    machine.work(1.0, cores=1.0)
    found = close(machine, window)
    machine.work(1.0, cores=1.0)
    again = close(machine, window)
    assert again["duration_sec"] == found["duration_sec"]


def test_one_thread_reads_for_all_windows_and_ends_when_there_is_none() -> None:
    """A thousand runs have one sampling thread, which does not outlive them for long."""
    sampler = WindowSampler([FakeReader([{"mem_percent": 1.0}])], interval=0.05)
    seen = threading.Event()
    windows = [sampler.open() for _ in range(3)]
    windows[0].on_row = lambda row: seen.set()
    assert seen.wait(30.0)
    names = [t.name for t in list_threads() if t.name == "mlflow-perf-sampler"]
    for window in windows:
        sampler.close(window)
    assert len(names) == 1
    assert len(windows[0].columns()["timestamp"]) >= 3
    until = time.monotonic() + 30
    while sampler._thread is not None and time.monotonic() < until:
        time.sleep(0.01)
    assert sampler._thread is None
    sampler.stop()


def test_a_listener_that_fails_costs_its_own_rows_only() -> None:
    """The other windows and the thread go on."""
    sampler = WindowSampler([FakeReader([{"mem_percent": 1.0}])], interval=0.05)
    failing, other = sampler.open(), sampler.open()
    seen = threading.Event()

    def fail(row: dict[str, float]) -> None:
        raise RuntimeError("mine")

    failing.on_row = fail
    other.on_row = lambda row: seen.set()
    assert seen.wait(30.0)
    assert vars(failing)["on_row"] is None
    sampler.stop()
