"""The sampling thread, which runs beside the job, and the collector that keeps its reports."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from typing import Any

from mlflow_perf.core.clock import Clock, SystemClock
from mlflow_perf.core.handler_errors import is_from_handler
from mlflow_perf.core.originals import time
from mlflow_perf.core.own_cost import as_own, own_cpu_sec
from mlflow_perf.core.safe_log import get_logger
from mlflow_perf.core.threads import Event, Thread
from mlflow_perf.errors import SettingError
from mlflow_perf.model.columns import NODE_SPLIT_COLUMNS
from mlflow_perf.model.series import keep_finite
from mlflow_perf.readers import Reader, default_readers
from mlflow_perf.records import Kind
from mlflow_perf.sampling.kept_reports import KeptReports
from mlflow_perf.sampling.node_split import NodeSplit
from mlflow_perf.sampling.reader_set import ReaderSet

Report = dict[str, float]
"""Column name → value, at one instant."""

MIN_INTERVAL_SEC, MAX_INTERVAL_SEC = 0.05, 3600.0

# A command of 20 ms ends before the first interval does and peaks between two samples. So peaks are
# sampled after these waits, within this CPU time for all of them together.
_PEAK_WAITS_SEC = (0.005, 0.005, 0.01, 0.02, 0.04, 0.08, 0.16, 0.32)
_PEAKS_CPU_SEC = 0.02
# Beside a busy main thread, a thread that wakes up waits 5 ms for the GIL. A peak sampled just
# before a sample is due would make that one late, and a late sample is skipped.
_PEAK_MARGIN_SEC = 0.02

# A reader that hangs in the kernel must not hang the job's exit.
_JOIN_TIMEOUT_SEC = 2.0

_log = get_logger(__name__)


def _is_seconds(value: Any, least: float, most: float) -> bool:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return number and least <= value <= most


def check_interval(value: Any) -> float:
    """Return the seconds between two samples.

    Raises:
        SettingError: When it is not a number from 0.05 to 3600.
    """
    if not _is_seconds(value, MIN_INTERVAL_SEC, MAX_INTERVAL_SEC):
        raise SettingError(
            f"interval is {value!r}; it must be a number of seconds "
            f"from {MIN_INTERVAL_SEC:g} to {MAX_INTERVAL_SEC:g}."
        )
    return float(value)


class PerformanceReportingThread(Thread):
    """Samples the node at a steady pace and hands each report to a callback.

    A sample is taken when the thread is started and when it is finalized, whatever the increment.
    A rate needs an interval: the first report gets the rates of the interval that it begins, so the
    callback receives it together with the second one. A last report within half an increment of
    the one before repeats its rates. A thread that ends within its first increment hands over one
    report, of the whole time.

    Args:
        initial_time_increment: Seconds between two reports.
        cpu_interval: Has no effect: the CPUs are measured over the whole increment, from the
            kernel's counters. Kept for callers of the original interface.
        callback_on_loop: Called in this thread with each report: a dict of column name → number,
            with at least `timestamp` (Unix time, s), `cpu_pct_per_cpu_avg`, `…_min`, `…_max`,
            `mem_percent`, `disk_usage_percent` (%), `disk_io_read_mb`, `disk_io_write_mb`,
            `net_io_lo_sent_mb`, `net_io_ext_sent_mb`, `net_io_lo_recv_mb`, `net_io_ext_recv_mb`
            (MB = 2^20 bytes since the thread's start), as far as the machine has the source.
        callback_on_exit: Called in this thread, without arguments, after the last report.
        readers: The sources; default: those of this node.
        clock: The clock; default: the machine's.
        always_two: Hand over the start's report even if the thread ends within its first increment.

    Raises:
        SettingError: When an interval is not a number of seconds above 0.
    """

    def __init__(
        self,
        initial_time_increment: float = 1.0,
        cpu_interval: float = 1.0,
        callback_on_loop: Callable[[Report], object] | None = None,
        callback_on_exit: Callable[[], object] | None = None,
        *,
        readers: Sequence[Reader] | None = None,
        clock: Clock | None = None,
        always_two: bool = False,
    ) -> None:
        super().__init__(name="mlflow-perf-sampler")
        intervals = {"initial_time_increment": initial_time_increment, "cpu_interval": cpu_interval}
        for name, value in intervals.items():
            if not _is_seconds(value, math.ulp(0.0), sys.float_info.max):
                raise SettingError(f"{name} is {value!r}; it must be a number of seconds above 0.")
        self.time_increment, self.cpu_interval = float(initial_time_increment), float(cpu_interval)
        self.callback_on_loop = callback_on_loop
        self.callback_on_exit = callback_on_exit
        self.started = 0.0
        self._always_two = always_two
        self._clock = clock or SystemClock()
        self._reader_set = ReaderSet(default_readers() if readers is None else readers)
        self._begun, self._stop_asked = Event(), Event()
        self._pause_over: Event | None = None  # each pause has one of its own
        self._is_finalized = False
        self._origin: float | None = None
        self._end: float | None = None
        self._held: Report | None = None
        self._split = NodeSplit()
        self._rates = self._reader_set.rates | {c.name for c in NODE_SPLIT_COLUMNS if c.is_rate}
        self._newest_rates: Report = {}
        self._sampled_sec = 0.0
        self._all_reported = False
        self._callback_failed = False

    def kind(self, name: str) -> Kind:
        """Return whether a column of the reports is a gauge or a counter."""
        return self._reader_set.kind(name)

    @property
    def counters(self) -> list[str]:
        """Names of the columns that are counters."""
        return self._reader_set.counters

    def start(self) -> None:
        """Take the first sample, in the caller's thread, and start sampling.

        Raises:
            RuntimeError: When it was started before, as any thread.
        """
        if self.was_started:
            raise RuntimeError("A sampler can only be started once.")
        try:
            # The thread's own start, milliseconds on a busy machine, is not the block's.
            super().start()
            self.started, self._origin = self._clock.time(), self._clock.monotonic()
            first = self._sample()
            # A rate of the first report would be of the time before the start.
            self._held = {name: v for name, v in first.items() if name not in self._rates}
        finally:
            self._begun.set()

    @as_own()
    def work(self) -> None:
        """Sample until finalized; then take the last sample and call `callback_on_exit`."""
        self._begun.wait()
        if self._origin is None:  # a signal handler of the job raised in `start`
            return
        try:
            self._sample_peaks()
            self._sample_until_asked_to_stop()
            self._all_reported = True
        finally:
            self._reader_set.close()
        if self.callback_on_exit is not None:
            self._call(self.callback_on_exit)

    def _sample_until_asked_to_stop(self) -> None:
        while True:
            # On a fixed grid from the start, so that the pace does not drift. Samples that a
            # stalled machine missed are skipped, and so is one just after a late one.
            elapsed = self._elapsed_sec()
            wait = self.time_increment - elapsed % self.time_increment
            if elapsed + wait - self._sampled_sec < self.time_increment / 2:
                wait += self.time_increment
            ended, pause = self._clock.wait(self._stop_asked, wait), self._pause_over
            report = self._sample()
            if self._held is not None:
                first, self._held = self._held, None
                kind = self._reader_set.kind
                gauges = {name: v for name, v in report.items() if kind(name) is Kind.GAUGE}
                if self._always_two or not ended:
                    self._call(self.callback_on_loop, {**gauges, **first})
            self._call(self.callback_on_loop, report)
            if ended:
                if pause is not None:
                    pause.wait()  # where another one follows, that needs a sample of its own
                if pause is None or self._is_finalized:
                    return

    def _sample_peaks(self) -> None:
        """Sample peaks within the first interval, closely at first."""
        begin = time.thread_time()
        for wait in _PEAK_WAITS_SEC:
            ends = self._elapsed_sec() + wait
            if ends + _PEAK_MARGIN_SEC > self.time_increment or not self._reader_set.has_peaks:
                return
            if self._clock.wait(self._stop_asked, wait):
                return
            self._reader_set.sample_peak()
            if time.thread_time() - begin > _PEAKS_CPU_SEC:
                return

    def _run_loop(self) -> None:
        """Hand over one report, measured over `cpu_interval`, in the caller's thread.

        This is the step of lightgbm-benchmark's loop, for code that takes the steps itself instead
        of starting the thread.
        """
        if self._origin is None:
            self.started, self._origin = self._clock.time(), self._clock.monotonic()
            self._sample()
        self._clock.wait(self._stop_asked, self.cpu_interval)
        self._newest_rates = {}  # however short the interval, its rates are its own
        self._call(self.callback_on_loop, self._sample())

    def _elapsed_sec(self) -> float:
        now = self._clock.monotonic() if self._end is None else self._end
        return 0.0 if self._origin is None else max(0.0, now - self._origin)

    def _sample(self) -> Report:
        elapsed = self._elapsed_sec()
        # From one reading of the wall clock: setting the clock meanwhile moves no report.
        report = {"timestamp": self.started + elapsed, "elapsed_sec": elapsed}
        self._split.add_to(self._reader_set.read(report))
        if self._newest_rates and elapsed - self._sampled_sec < self.time_increment / 2:
            # In the last fraction of an increment a rate is noise: a tick of the kernel or none.
            report.update(self._newest_rates)
        elif elapsed:
            self._newest_rates = {name: report[name] for name in self._rates & report.keys()}
        self._sampled_sec = elapsed
        return report

    def _call(self, callback: Callable[..., object] | None, *args: Report) -> None:
        if callback is None:
            return
        try:
            callback(*args)
        # A callback that fails loses its reports; the job and the sampler go on.
        except Exception as error:
            if is_from_handler(error):
                raise
            if not self._callback_failed:
                self._callback_failed = True
                _log.warning("A callback on the performance reports failed.", exc_info=True)

    def note_end(self) -> None:
        """Let the last report be of this moment, however late its sample is taken."""
        if self._end is None:
            self._end = self._clock.monotonic()

    @property
    def _is_paused(self) -> bool:
        return self._pause_over is not None and not self._pause_over.is_set()

    def pause(self) -> None:
        """Take at once what may be the last sample: `finalize` leaves it so, `resume` goes on."""
        if not (self._is_paused or self._is_finalized):
            self._pause_over = Event()
            self.note_end()
            self._stop_asked.set()

    def resume(self) -> None:
        """Sample on, if paused; the next report is of the pause, too."""
        if self._is_paused and not self._is_finalized and self._pause_over is not None:
            self._end = None
            self._stop_asked.clear()
            self._pause_over.set()

    def finalize(self) -> None:
        """Take the last sample and end the thread; returns in milliseconds, whatever the interval.

        A second call does nothing, and one before `start` closes the sources.
        """
        self._is_finalized = True
        self.note_end()
        self._stop_asked.set()
        if self._pause_over is not None:
            self._pause_over.set()
        self._begun.set()  # an error may have cut `start` short, in any of its steps
        if self._origin is None:
            self._reader_set.close()
        self.join(_JOIN_TIMEOUT_SEC)
        if self.is_alive() and not (self._all_reported or self.is_caller):
            _log.warning("The sampler hangs in a source; its last report is missing.")


class PerformanceMetricsCollector(KeptReports):
    """Keeps the reports of one job: a bounded list of rows to plot, and an exact summary.

    Args:
        max_length: Most rows to keep, rounded up to even; older neighbours are merged.
        interval: Seconds between two reports, 0.05 to 3600.
        readers: The sources; default: those of this node.
        clock: The clock; default: the machine's.
        on_report: Called with each report, in the sampling thread, after it was kept.
        own_cpu_before_sec: What `own_cpu_sec` returned when our work for this job began; default:
            now.

    Raises:
        SettingError: When a setting is out of its range.
    """

    def __init__(
        self,
        max_length: int = 1000,
        *,
        interval: float = 1.0,
        readers: Sequence[Reader] | None = None,
        clock: Clock | None = None,
        on_report: Callable[[Report], object] | None = None,
        own_cpu_before_sec: float | None = None,
    ) -> None:
        self.report_thread = PerformanceReportingThread(
            check_interval(interval),
            callback_on_loop=self.append_perf_metrics,
            readers=readers,
            clock=clock,
            always_two=True,
        )
        kind = self.report_thread.kind
        super().__init__(max_length, kind, own_cpu_before_sec=own_cpu_before_sec)
        self.max_length = self.series.max_length
        self._on_report = on_report
        self._is_finalized = False

    @as_own()
    def start(self) -> None:
        """Take the first sample and start sampling; a second call does nothing."""
        if not self.report_thread.was_started:
            self.report_thread.start()

    def finalize(self, *, end_cost: bool = False) -> None:
        """Take the last sample and stop; returns in milliseconds.

        Args:
            end_cost: Whether to leave our later work out of `perf_overhead_pct`: the job was a
                process of its own, which has ended.
        """
        self._is_finalized = True
        self.report_thread.finalize()
        if end_cost:
            self._own_end_sec = own_cpu_sec()

    def append_perf_metrics(self, report: Report) -> None:
        """Keep one report: column name → number.

        Args:
            report: Any columns; unknown ones count as gauges. A value that is no finite number is
                left out.
        """
        report = dict(keep_finite(report))
        with self.lock:
            self.series.append(report)
            self.summary.add(report)
        if self._on_report is not None:
            self._on_report(report)

    @property
    def perf_reports(self) -> list[Report]:
        """The rows kept, in the order of time: at most `max_length`, with no peak lost.

        The first row is a report as taken, and after `finalize` so is the last. A row between them
        may be a merger of neighbours: its gauges are means, with their peaks beside them in
        `<column>_max`. Before `finalize`, the newest merger has in it what does not fill a row yet.
        """
        with self.lock:
            return self.series.rows(is_open=not self._is_finalized)

    @property
    def perf_reports_freqs(self) -> int:
        """How many reports a row between the first and the last one merges."""
        with self.lock:
            return self.series.stride
