"""One sampling thread and one set of readers for many windows of time, nested or side by side.

A window takes the difference of every counter between its own start and end, so its figures are
those of its span alone. A boundary costs one reading; the thread reads for all windows at once.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

from mlflow_perf.core.clock import Clock, SystemClock
from mlflow_perf.core.own_cost import as_own
from mlflow_perf.core.safe_log import get_logger
from mlflow_perf.core.threads import Event, Lock, Thread
from mlflow_perf.model.columns import NODE_SPLIT_COLUMNS
from mlflow_perf.model.series import keep_finite
from mlflow_perf.readers import Reader
from mlflow_perf.sampling.kept_reports import KeptReports
from mlflow_perf.sampling.node_split import NodeSplit
from mlflow_perf.sampling.reader_set import ReaderSet

Report = dict[str, float]
_JOIN_TIMEOUT_SEC = 2.0  # a reader that hangs in the kernel must not hang the job's exit
_KERNEL_PEAKS = ("job_mem_peak_mb",)
"""Peaks that the kernel keeps over a process's life: a window has only those that grew in it."""

_UTILISATION = {
    "cpu_pct_per_cpu_avg": ("cpu_busy_sec", "cpu_ticks_sec"),
    "host_cpu_pct_per_cpu_avg": ("host_cpu_busy_sec", "host_cpu_ticks_sec"),
}
_log = get_logger(__name__)


class Window(KeptReports):
    """The figures of one span of time; made by `WindowSampler.open`.

    Attributes:
        started: Unix time of its start.
        on_row: Called with each row in the sampling thread, after it was kept.
    """

    def __init__(self, sampler: WindowSampler, base: Report, *, max_length: int) -> None:
        super().__init__(max_length, sampler.kind)
        self.lock = sampler.lock
        self.started = base["timestamp"]
        self.on_row: Callable[[Report], object] | None = None
        self._sampler = sampler
        self._base = {name: base[name] for name in sampler.counters if name in base}
        self._peaks = {name: base.get(name, 0.0) for name in _KERNEL_PEAKS}
        self._began_sec = base["elapsed_sec"]
        self._rates: dict[str, tuple[float, float]] = {}  # sum over time, and that time
        self._row_before: Report = {}

    def copy_figures(self, memo: dict[int, Any]) -> None:
        """Replace the figures, which another window has too, by copies."""
        self.series = copy.deepcopy(self.series, memo)
        self.summary = copy.deepcopy(self.summary, memo)
        self._rates, self._base = dict(self._rates), dict(self._base)

    def mix(self, report: Report, rates: frozenset[str], span_sec: float) -> None:
        """Take the rates of one reading, which may be of a fraction of this window's interval."""
        for name in rates & report.keys():
            total, weight = self._rates.get(name, (0.0, 0.0))
            self._rates[name] = total + report[name] * span_sec, weight + span_sec

    def is_due(self, report: Report, interval_sec: float) -> bool:
        """Return whether the row before is long enough ago for rates to be more than noise."""
        now = report["elapsed_sec"] - self._began_sec
        return now - self._row_before["elapsed_sec"] >= interval_sec / 2

    def add_row(self, report: Report, rates: frozenset[str], interval_sec: float) -> Report:
        """Keep a reading as the window's next row and return it."""
        base, before = self._base, self._row_before
        row: Report = {}
        for name, value in keep_finite(report).items():
            if name in _KERNEL_PEAKS and value <= self._peaks[name]:
                continue
            if self._sampler.is_counter(name):
                row[name] = max(0.0, value - base.setdefault(name, value))
            elif name not in rates:
                row[name] = value
        row["elapsed_sec"] = report["elapsed_sec"] - self._began_sec
        row["timestamp"] = self.started + row["elapsed_sec"]
        if before:
            row.update(self._take_rates(row, before, rates, interval_sec))
        self._row_before = row
        self.series.append(row)
        self.summary.add(row)
        return row

    def _take_rates(
        self, row: Report, before: Report, rates: frozenset[str], interval_sec: float
    ) -> Report:
        """Return the rates since the previous row: exact if they come from counters, else means."""
        span = row["elapsed_sec"] - before["elapsed_sec"]
        known = {name: before[name] for name in rates & before.keys()}
        if known and span < interval_sec / 2:
            return known  # in the last fraction of an interval a rate is noise
        found = {name: total / weight for name, (total, weight) in self._rates.items() if weight}
        self._rates = {}
        cores = row.get("cpu_limit_cores") or 1.0
        if span > 0 and "job_cpu_sec" in row:
            used = (row["job_cpu_sec"] - before.get("job_cpu_sec", 0.0)) / span
            found["job_cpu_cores"] = min(max(0.0, used), row.get("host_cpu_cores", cores))
        for name, (busy, ticks) in _UTILISATION.items():
            passed = row.get(ticks, 0.0) - before.get(ticks, 0.0)
            if passed > 0:
                gained = row[busy] - before.get(busy, 0.0)
                found[name] = min(100.0, max(0.0, 100.0 * gained / passed))
            elif name in found and "job_cpu_cores" in found:
                # Before the kernel's first tick: the job's own CPU time.
                found[name] = min(100.0, 100.0 * found["job_cpu_cores"] / cores)
        if (mean := found.get("cpu_pct_per_cpu_avg")) is not None:
            least, most = "cpu_pct_per_cpu_min", "cpu_pct_per_cpu_max"
            found[least] = min(mean, found.get(least, mean))
            found[most] = max(mean, found.get(most, mean))
        return found

    def rows(self) -> list[Report]:
        """Return the rows so far."""
        with self.lock:
            return self.series.rows()


class WindowSampler:
    """Reads one set of sources for any number of windows.

    The thread runs while a window is open, and ends by itself when none was for a whole interval.

    Args:
        readers: The sources.
        interval: Seconds between two rows of a window.
        max_length: Most rows of a window.
        clock: The clock; default: the machine's.

    Attributes:
        lock: Guards the windows and the readers.
    """

    def __init__(
        self,
        readers: Sequence[Reader],
        *,
        interval: float = 1.0,
        max_length: int = 1000,
        clock: Clock | None = None,
    ) -> None:
        self.lock = Lock()
        self._interval_sec, self._max_length = interval, max_length
        self._clock = clock or SystemClock()
        self._started, self._origin = self._clock.time(), self._clock.monotonic()
        self._reader_set = ReaderSet(readers)
        self._counters = frozenset(self._reader_set.counters)
        self._split = NodeSplit()
        split = {c.name for c in NODE_SPLIT_COLUMNS if c.is_rate}
        self._rates = frozenset(self._reader_set.rates | split)
        self._read_at_sec = 0.0
        self._windows: list[Window] = []
        self._stop_asked = Event()
        self._thread: Thread | None = None

    def kind(self, name: str) -> Any:
        """Return whether a column is a gauge or a counter."""
        return self._reader_set.kind(name)

    def is_counter(self, name: str) -> bool:
        """Return whether a column is a counter of the readers."""
        return name in self._counters

    @property
    def counters(self) -> list[str]:
        """Names of the columns that are counters."""
        return self._reader_set.counters

    def open(self) -> Window:
        """Take a reading and return the window that begins with it."""
        with self.lock:
            self._start_thread()
            report = self._read()
            window = Window(self, report, max_length=self._max_length)
            window.add_row(report, self._rates, self._interval_sec)
            self._windows.append(window)
        return window

    def open_like(self, other: Window) -> Window:
        """Return a window that began with another one, with all that this one has by now."""
        with self.lock:
            # Each copy of the series would have a copy of this sampler too.
            memo: dict[int, Any] = {id(self): self, id(self._reader_set): self._reader_set}
            fork = copy.copy(other)
            fork.on_row = None
            fork.copy_figures(memo)
            self._windows.append(fork)
            self._start_thread()
        return fork

    def _start_thread(self) -> None:
        if self._thread is None and not self._stop_asked.is_set():
            thread = Thread(self._run, name="mlflow-perf-sampler")
            try:
                thread.start()
            except RuntimeError:  # no more threads, or the interpreter ends: two rows are enough
                _log.debug("The windows have no rows between start and end:", exc_info=True)
            else:
                self._thread = thread

    def close(self, window: Window) -> None:
        """Take the window's last row; a second call does nothing."""
        with self.lock:
            if window in self._windows:
                window.add_row(self._read(), self._rates, self._interval_sec)
                self._windows.remove(window)

    def drop(self, window: Window) -> None:
        """Give the window no further row."""
        with self.lock:
            if window in self._windows:
                self._windows.remove(window)

    def stop(self) -> None:
        """End the thread and close the readers; windows that are open get no more rows."""
        self._stop_asked.set()
        thread = self._thread
        if thread is not None and thread.is_alive():
            thread.join(_JOIN_TIMEOUT_SEC)
        with self.lock:
            self._windows.clear()
            self._reader_set.close()

    def _read(self) -> Report:
        elapsed = max(0.0, self._clock.monotonic() - self._origin)
        # From one reading of the wall clock: setting the clock meanwhile moves no report.
        report = {"timestamp": self._started + elapsed, "elapsed_sec": elapsed}
        self._split.add_to(self._reader_set.read(report))
        span, self._read_at_sec = elapsed - self._read_at_sec, elapsed
        for window in self._windows:
            window.mix(report, self._rates, span)
        return report

    @as_own()
    def _run(self) -> None:
        while True:
            elapsed = self._clock.monotonic() - self._origin
            wait = self._interval_sec - elapsed % self._interval_sec
            if self._clock.wait(self._stop_asked, wait):
                return
            with self.lock:
                if not self._windows:
                    self._thread = None
                    return
                report = self._read()
                rows = [
                    (window, window.add_row(report, self._rates, self._interval_sec))
                    for window in self._windows
                    if window.is_due(report, self._interval_sec)
                ]
            for window, row in rows:
                try:
                    if window.on_row is not None:
                        window.on_row(row)
                # A listener that fails loses its rows; the job and the other windows go on.
                except Exception:  # noqa: BLE001
                    window.on_row = None
                    _log.warning("A listener to the performance reports failed.", exc_info=True)
