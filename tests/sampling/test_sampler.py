"""The sampler and the collector, on a clock that the test moves."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.alone import alone
from tests.interrupted import check_each_line

from mlflow_perf.errors import SettingError
from mlflow_perf.model.summary import summarise
from mlflow_perf.records import Column
from mlflow_perf.sampling.sampler import PerformanceMetricsCollector, PerformanceReportingThread
from mlflow_perf.testing import FakeClock, FakeReader

SEED_KEYS = {
    "timestamp", "cpu_pct_per_cpu_avg", "cpu_pct_per_cpu_min", "cpu_pct_per_cpu_max",
    "mem_percent", "disk_usage_percent", "disk_io_read_mb", "disk_io_write_mb",
    "net_io_lo_sent_mb", "net_io_ext_sent_mb", "net_io_lo_recv_mb", "net_io_ext_recv_mb",
}  # fmt: skip


def sample(reader: FakeReader, *, seconds: float = 3.0, **options: Any) -> list[dict[str, float]]:
    """Return the reports of a simulated run with one sample per second."""
    reports: list[dict[str, float]] = []
    thread = PerformanceReportingThread(
        callback_on_loop=reports.append,
        readers=[reader],
        clock=FakeClock(now=1000.0, stop_after=seconds),
        **options,
    )
    thread.start()
    thread.join()
    return reports


def test_a_sample_at_the_start_each_interval_and_the_end() -> None:
    """There is a report at the start, at each increment and at the end, in monotonic time."""
    reports = sample(FakeReader([{"mem_percent": float(n)} for n in range(10)]))
    assert [r["elapsed_sec"] for r in reports] == [0.0, 1.0, 2.0, 3.0]
    assert [r["mem_percent"] for r in reports] == [0.0, 1.0, 2.0, 3.0]
    assert [r["timestamp"] for r in reports] == [1000.0, 1001.0, 1002.0, 1003.0]


def test_counters_count_from_the_start_and_never_fall() -> None:
    """What the source counted before the start is not ours; a reset takes nothing away."""
    levels = [500.0, 510.0, 3.0, 5.0]
    reports = sample(FakeReader([{"disk_io_read_mb": level} for level in levels]))
    assert [r["disk_io_read_mb"] for r in reports] == [0.0, 10.0, 10.0, 12.0]


def test_the_first_report_has_the_utilisation_of_the_interval_it_begins() -> None:
    """A gauge over an interval that the start cannot have yet is taken from the next report."""
    reports = sample(
        FakeReader([{"mem_percent": 1.0}, {"mem_percent": 2.0, "cpu_pct_per_cpu_avg": 70.0}])
    )
    assert reports[0]["cpu_pct_per_cpu_avg"] == 70.0
    assert reports[0]["mem_percent"] == 1.0


def test_a_rate_from_before_the_start_is_in_no_report() -> None:
    """A reader's first rate covers the time before the block, so it is not used."""
    rates = [{"job_cpu_cores": 1.04}, {"job_cpu_cores": 0.01}, {"job_cpu_cores": 0.02}]
    reports = sample(FakeReader(rates), seconds=2.0)
    assert [r["job_cpu_cores"] for r in reports] == [0.01, 0.01, 0.02]


class EndingClock(FakeClock):
    """A clock whose last wait is cut short, as `finalize` does."""

    def wait(self, event: threading.Event, timeout_sec: float) -> bool:
        """Let the timeout pass, or what is left of it."""
        left = (self._stop_after or math.inf) - self.elapsed
        return super().wait(event, min(timeout_sec, left))


@pytest.mark.parametrize(("end", "last"), [(2.1, 0.9), (2.6, 0.3), (0.1, 0.9)])
def test_the_last_fraction_of_an_interval_draws_no_rate(end: float, last: float) -> None:
    """A rate of less than half an interval is noise: the one before it holds; totals are exact.

    A block that is shorter than one interval has its own rate, over its whole length.
    """
    reports: list[dict[str, float]] = []
    rows = [{"job_cpu_cores": 1.04, "job_cpu_sec": 7.0}, {"job_cpu_cores": 0.9, "job_cpu_sec": 8.0},
            {"job_cpu_cores": 0.9, "job_cpu_sec": 9.0},
            {"job_cpu_cores": 0.3, "job_cpu_sec": 9.2}]  # fmt: skip
    thread = PerformanceReportingThread(
        callback_on_loop=reports.append, readers=[FakeReader(rows)],
        clock=EndingClock(stop_after=end),
    )  # fmt: skip
    thread.start()
    thread.join()
    assert reports[-1]["elapsed_sec"] == end
    assert reports[-1]["job_cpu_cores"] == last
    assert max(r["job_cpu_cores"] for r in reports) == 0.9
    assert reports[-1]["job_cpu_sec"] == pytest.approx(2.2 if end > 1 else 1.0)


@given(
    st.lists(st.tuples(st.floats(0.0, 4.0), st.floats(0.0, 4.0)), min_size=2, max_size=20),
    st.floats(0.05, 9.95),
)
def test_job_others_and_idle_are_the_node(used: list[tuple[float, float]], seconds: float) -> None:
    """Whatever the job and the node use, the three parts are not negative and sum to the CPUs."""
    job = busy = 0.0
    rows = []
    for n, (own, others) in enumerate(used):
        job, busy = job + own, busy + min(8.0, own + others)
        rows.append({"job_cpu_cores": own, "job_cpu_sec": job, "cpu_busy_sec": busy + 5,
                     "cpu_ticks_sec": 8.0 * n + 9, "cpu_limit_cores": 8.0})  # fmt: skip
    reports: list[dict[str, float]] = []
    thread = PerformanceReportingThread(
        callback_on_loop=reports.append, readers=[FakeReader(rows)],
        clock=EndingClock(stop_after=min(seconds, len(rows) - 1.0)),
    )  # fmt: skip
    thread.start()
    thread.join()
    for report in reports:
        parts = [report[f"{who}_cpu_cores"] for who in ("job", "others", "idle")]
        assert min(parts) >= 0.0
        assert sum(parts) == pytest.approx(8.0)


def test_a_clock_that_jumps_moves_no_report() -> None:
    """Report times come from one reading of the wall clock plus monotonic time."""

    class Jumping(FakeClock):
        def time(self) -> float:
            self.now -= 3600.0
            return self.now

    reports: list[dict[str, float]] = []
    thread = PerformanceReportingThread(
        callback_on_loop=reports.append, readers=[], clock=Jumping(stop_after=3.0)
    )
    thread.start()
    thread.join()
    steps = [b["timestamp"] - a["timestamp"] for a, b in pairwise(reports)]
    assert steps == [1.0, 1.0, 1.0]


def test_a_failing_callback_does_not_end_the_thread(caplog: pytest.LogCaptureFixture) -> None:
    """A callback's exception is logged once; callback_on_exit is still called."""
    calls: list[str] = []

    def fail(report: dict[str, float]) -> None:
        calls.append("loop")
        raise RuntimeError("mine")

    thread = PerformanceReportingThread(
        callback_on_loop=fail,
        callback_on_exit=lambda: calls.append("exit"),
        readers=[],
        clock=FakeClock(stop_after=2.0),
    )
    thread.start()
    thread.join()
    assert calls == ["loop", "loop", "loop", "exit"]
    assert len(caplog.records) == 1


def test_finalize_is_prompt_whatever_the_interval() -> None:
    """With an hour between samples, finalize still takes the last sample and returns."""
    reports: list[dict[str, float]] = []
    thread = PerformanceReportingThread(3600.0, callback_on_loop=reports.append)
    thread.start()
    thread.finalize()
    assert not thread.is_alive()
    assert len(reports) == 1
    thread.finalize()


def test_finalize_before_start_does_nothing() -> None:
    """A thread that was never started can be finalized."""
    PerformanceReportingThread(readers=[]).finalize()


def test_finalize_from_a_callback_does_not_deadlock() -> None:
    """A callback may end the sampling."""
    done = threading.Event()

    def stop(report: dict[str, float]) -> None:
        thread.finalize()
        done.set()

    thread = PerformanceReportingThread(0.05, callback_on_loop=stop, readers=[])
    thread.start()
    thread.join(5.0)
    assert done.is_set()
    assert not thread.is_alive()


def test_the_real_node_gives_the_columns_of_the_contract() -> None:
    """On this machine each report has every promised column, IO counted from the start."""
    reports: list[dict[str, float]] = []
    thread = PerformanceReportingThread(callback_on_loop=reports.append, always_two=True)
    thread.start()
    until = time.monotonic() + 0.06
    while time.monotonic() < until:
        pass
    thread.finalize()
    missing = {key for report in reports for key in SEED_KEYS - report.keys()}
    assert missing <= {"disk_io_read_mb", "disk_io_write_mb"}, "absent only where there is no disk"
    assert reports[0]["net_io_lo_sent_mb"] == 0.0
    assert thread.daemon
    assert thread.name == "mlflow-perf-sampler"


@pytest.mark.parametrize("wrong", [0, -1, "1", None, math.nan, math.inf, True])
def test_wrong_intervals_are_refused(wrong: Any) -> None:
    """An interval that is no positive number is refused, with its value."""
    with pytest.raises(SettingError, match="initial_time_increment"):
        PerformanceReportingThread(wrong)
    with pytest.raises(ValueError, match="interval"):
        PerformanceMetricsCollector(interval=wrong)


@pytest.mark.parametrize("wrong", [0.049, 3601])
def test_the_collectors_interval_has_a_range(wrong: float) -> None:
    """The collector takes 0.05 to 3600 seconds."""
    with pytest.raises(SettingError, match=r"from 0\.05 to 3600"):
        PerformanceMetricsCollector(interval=wrong)


def test_the_collector_keeps_at_most_max_length() -> None:
    """An odd bound is rounded up to even, and rows never exceed it."""
    collector = PerformanceMetricsCollector(max_length=9)
    assert collector.max_length == 10
    for n in range(1000):
        collector.append_perf_metrics(
            {"timestamp": float(n), "cpu_pct_per_cpu_avg": float(n == 500)}
        )
        assert len(collector.perf_reports) <= 10
    assert collector.perf_reports[0]["timestamp"] == 0.0
    assert collector.perf_reports[-1]["timestamp"] == 999.0
    assert max(r["cpu_pct_per_cpu_avg_max"] for r in collector.perf_reports) == 1.0
    assert collector.metrics()["max_t_cpu_pct_per_cpu_avg"] == 1.0


def test_the_collector_starts_once_and_reports_its_own_cost() -> None:
    """start() twice is one sampler; the summary carries our own share of a core."""
    collector = PerformanceMetricsCollector(interval=0.05)
    collector.start()
    thread = collector.report_thread
    collector.start()
    assert collector.report_thread is thread
    collector.finalize()
    assert collector.metrics()["perf_overhead_pct"] > 0


def test_a_report_with_a_bad_value_keeps_its_other_values() -> None:
    """One bad value is left out; the report's other values and all other reports are kept."""
    collector = PerformanceMetricsCollector(4)
    for at, value in enumerate([1.0, None, math.nan, "much", 3.0]):
        collector.append_perf_metrics({"timestamp": float(at), "mem_percent": value})  # type: ignore[dict-item]  # what a caller may still pass
    rows = collector.perf_reports
    assert [rows[0], rows[-1]["timestamp"]] == [
        {"timestamp": 0.0, "mem_percent": 1.0, "mem_percent_max": 1.0},
        4.0,
    ]
    assert collector.metrics()["max_t_mem_percent"] == 3.0


def test_a_thread_that_the_kernel_started_is_finalized(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where gevent has replaced the start of threads, ours is started without Python's list."""
    for name in ("_start_new_thread", "_start_joinable_thread"):
        monkeypatch.setattr(threading, name, lambda *_, **__: None, raising=False)
    collector = PerformanceMetricsCollector(interval=60, readers=[FakeReader({})])
    collector.start()
    collector.finalize()
    assert not collector.report_thread.is_alive()
    assert len(collector.perf_reports) == 2


def test_a_second_start_is_refused_before_it_reads() -> None:
    """As any thread; the sources, which are closed by then, are left alone."""
    reader = FakeReader([{"mem_percent": 1.0}])
    thread = PerformanceReportingThread(readers=[reader])
    thread.start()
    thread.finalize()
    with pytest.raises(RuntimeError, match="once"):
        thread.start()
    assert reader.reads == 2


def test_a_source_that_is_slow_to_close_loses_no_report(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Only a last report that is really missing is said to be left out."""
    monkeypatch.setattr("mlflow_perf.sampling.sampler._JOIN_TIMEOUT_SEC", 0.05)
    closing, release = threading.Event(), threading.Event()
    reports: list[dict[str, float]] = []

    class Slow(FakeReader):
        def close(self) -> None:
            closing.set()
            release.wait(20)

    thread = PerformanceReportingThread(
        60.0, callback_on_loop=reports.append, readers=[Slow([{"mem_percent": 1.0}])]
    )
    thread.start()
    try:
        thread._stop_asked.set()
        assert closing.wait(20)
        thread.finalize()
        assert len(reports) == 1
        assert caplog.text == ""
    finally:
        release.set()
        thread.join(20)


class PeakRecorder:
    """A reader that notes when it is asked."""

    name = "peaks"
    columns: Sequence[Column] = ()

    def __init__(self, clock: FakeClock) -> None:
        self._clock = clock
        self.at: list[float] = []
        self.samples: list[float] = []

    def read(self, report: dict[str, float]) -> None:
        self.samples.append(self._clock.elapsed)

    def sample_peak(self) -> None:
        self.at.append(self._clock.elapsed)

    def close(self) -> None:
        pass


def test_no_sample_of_peaks_delays_the_first_report() -> None:
    """Beside a busy main thread each wait takes 5 ms longer; no sample is skipped."""

    class BusyClock(FakeClock):
        def wait(self, event: threading.Event, timeout_sec: float) -> bool:
            return super().wait(event, timeout_sec + 0.005)

    clock = BusyClock(stop_after=0.34)
    reader = PeakRecorder(clock)
    thread = PerformanceReportingThread(0.1, readers=[reader], clock=clock)
    thread.start()
    thread.join()
    assert reader.at
    assert reader.samples[:4] == pytest.approx([0.0, 0.105, 0.205, 0.305])


def test_peaks_are_sampled_before_the_first_interval_is_over() -> None:
    """Peaks are sampled closely at first, and never after the first interval."""
    clock = FakeClock(stop_after=10.0)
    reader = PeakRecorder(clock)
    thread = PerformanceReportingThread(0.5, readers=[reader], clock=clock)
    thread.start()
    thread.join()
    assert reader.at == pytest.approx([0.005, 0.01, 0.02, 0.04, 0.08, 0.16, 0.32])


@pytest.mark.e2e
def test_a_sleeping_job_used_no_cpu_whatever_came_before() -> None:
    """A block that sleeps after a busy start of its process has no busy interval."""
    for length in (0.03, 0.35):
        until = time.process_time() + 0.2
        while time.process_time() < until:
            pass
        collector = PerformanceMetricsCollector(interval=0.1)
        collector.start()
        time.sleep(length)
        collector.finalize()
        metrics = collector.metrics()
        # A block of 30 ms holds our own samples of peaks, of 5 ms at most.
        assert metrics["job_max_cpu_cores"] < 0.3


def test_a_thread_that_ends_within_its_first_increment_reports_once() -> None:
    """One report of the whole time, as in lightgbm-benchmark, has every column and all totals."""
    reports: list[dict[str, float]] = []
    thread = PerformanceReportingThread(60.0, callback_on_loop=reports.append)
    thread.start()
    thread.finalize()
    assert len(reports) == 1
    assert reports[0]["elapsed_sec"] > 0
    assert summarise(reports)["duration_sec"] == reports[0]["elapsed_sec"]


def test_the_collectors_thread_is_there_before_the_start() -> None:
    """As in lightgbm-benchmark, its times can be set and its steps taken without starting it.

    There are as many rows as there after each step, with the newest report and each peak in them.
    """
    collector = PerformanceMetricsCollector(max_length=10)
    collector.report_thread.cpu_interval = 0.01
    lengths = []
    for _ in range(15):
        collector.report_thread._run_loop()
        lengths.append(len(collector.perf_reports))
    assert lengths == [*range(1, 11), 5, 6, 6, 7, 7]
    assert collector.perf_reports_freqs == 2
    for report in collector.perf_reports:
        assert report.keys() > SEED_KEYS
        assert all(type(value) is float for value in report.values())


def test_before_the_end_the_newest_row_has_all_that_fills_no_row_yet() -> None:
    """Its gauges are means, and its peak is kept; the end shows the last report as taken."""
    collector = PerformanceMetricsCollector(max_length=4)
    for at, percent in enumerate([5.0, 1.0, 3.0, 2.0, 4.0, 8.0]):
        collector.append_perf_metrics({"timestamp": float(at), "mem_percent": percent})
    first, *merged = collector.perf_reports
    assert (first["timestamp"], first["mem_percent"]) == (0.0, 5.0)
    assert merged == [
        {"timestamp": 2.0, "mem_percent": 2.0, "mem_percent_max": 3.0},
        {"timestamp": 5.0, "mem_percent": 14 / 3, "mem_percent_max": 8.0},
    ]
    collector.finalize()
    assert [row["timestamp"] for row in collector.perf_reports] == [0.0, 2.0, 4.0, 5.0]
    assert collector.perf_reports[-1]["mem_percent"] == 8.0


def test_the_block_ends_when_it_ends_however_late_its_last_sample_is() -> None:
    """What passes between the block's end and the last sample is not counted as the block's."""
    reports: list[dict[str, float]] = []
    waiting = threading.Event()

    class Clock(FakeClock):
        def wait(self, event: threading.Event, timeout_sec: float) -> bool:
            waiting.set()
            return event.wait(60)

    clock = Clock(now=1000.0)
    thread = PerformanceReportingThread(
        callback_on_loop=reports.append, readers=[FakeReader([{}])], clock=clock, always_two=True
    )
    thread.start()
    assert waiting.wait(60)
    clock.advance(0.033)
    thread.note_end()
    clock.advance(0.05)  # handlers are restored, threads wake up
    thread.finalize()
    assert [round(report["elapsed_sec"], 6) for report in reports] == [0.0, 0.033]


def test_the_threads_own_start_is_before_the_block() -> None:
    """The first sample is taken when the thread runs already: its start may take long."""
    alive: list[bool] = []

    def read() -> dict[str, float]:
        alive.append(thread.is_alive())
        return {}

    reader, clock = FakeReader([read]), FakeClock(stop_after=1.0)
    thread = PerformanceReportingThread(readers=[reader], clock=clock)
    thread.start()
    thread.join()
    assert alive[0]


@alone
def test_no_sampler_stays_wherever_an_alarm_raises_in_its_start() -> None:
    """Once it is finalized, its thread has ended and its sources are closed."""
    made: list[PerformanceMetricsCollector] = []

    def act() -> None:
        made.append(PerformanceMetricsCollector(interval=0.05))
        made[-1].start()

    def finalize() -> None:
        while made:
            made.pop().finalize()

    assert check_each_line(act, finalize) > 200


@pytest.mark.parametrize("is_over", [False, True])
def test_a_pause_takes_the_last_sample_unless_it_is_over(is_over: bool) -> None:
    """What comes after the pause began is no time of the job's, or all of it is."""
    reports: list[dict[str, float]] = []
    has_paused, goes_on = threading.Event(), threading.Event()

    def keep(report: dict[str, float]) -> None:
        reports.append(report)
        (goes_on if has_paused.is_set() else has_paused).set()

    thread = PerformanceReportingThread(60.0, callback_on_loop=keep, readers=[FakeReader([{}] * 9)])
    thread.start()
    before = time.monotonic()
    thread.pause()
    assert has_paused.wait(60)
    paused_sec = reports[-1]["elapsed_sec"]
    if is_over:
        thread.resume()
        thread.resume()
        thread.pause()
        assert goes_on.wait(60)
    time.sleep(0.05)
    thread.finalize()
    assert not thread.is_alive()
    assert len(reports) == 1 + is_over
    assert (reports[-1]["elapsed_sec"] > paused_sec) == is_over
    assert reports[-1]["elapsed_sec"] < time.monotonic() - before + 1.0
