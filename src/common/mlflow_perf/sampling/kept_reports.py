"""The reports of a span of time: a bounded list of rows to plot, and an exact summary."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mlflow_perf.core.own_cost import own_cpu_sec
from mlflow_perf.core.threads import Lock
from mlflow_perf.model.series import BoundedSeries
from mlflow_perf.model.summary import RunningSummary
from mlflow_perf.records import Kind


class KeptReports:
    """The reports of a span of time, which one thread adds and others read.

    Args:
        max_length: Most rows to keep, rounded up to even; older neighbours are merged.
        kind: Returns whether a column is a gauge or a counter.
        own_cpu_before_sec: What `own_cpu_sec` returned when our work for this span began; default:
            now.

    Attributes:
        lock: Guards the two below.
        series: The rows.
        summary: The figures.
    """

    def __init__(
        self,
        max_length: int,
        kind: Callable[[str], Kind],
        *,
        own_cpu_before_sec: float | None = None,
    ) -> None:
        self.lock = Lock()
        self.series = BoundedSeries(max_length, kind=kind)
        self.summary = RunningSummary(kind=kind)
        self._own_before_sec = own_cpu_sec() if own_cpu_before_sec is None else own_cpu_before_sec
        self._own_end_sec = 0.0

    def columns(self) -> dict[str, list[float]]:
        """Return the rows so far by column."""
        with self.lock:
            return self.series.columns()

    def snapshot(self) -> dict[str, Any]:
        """Return the summary's state and the rows by column, both of one instant."""
        with self.lock:
            return {"summary": self.summary.state(), "columns": self.series.columns()}

    def metrics(self) -> dict[str, float]:
        """Return the summary metrics of all rows so far: metric key → value."""
        with self.lock:
            if duration := self.summary.duration():
                cost = (self._own_end_sec or own_cpu_sec()) - self._own_before_sec
                self.summary.set_fact("perf_overhead_pct", 100.0 * cost / duration)
            return self.summary.metrics()
