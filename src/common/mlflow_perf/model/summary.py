"""Computation of the summary metrics, one report at a time."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import astuple, dataclass
from typing import Any

from mlflow_perf.model.columns import COLUMNS, lookup_kind, parse_gpu_index
from mlflow_perf.model.metrics import (
    METRICS,
    RUN_METRICS,
    SHARE_COLUMN,
    SHARE_THRESHOLDS_PCT,
    make_gpu_metrics,
)
from mlflow_perf.model.series import PEAK_SUFFIX, keep_finite, measure_span
from mlflow_perf.records import Kind

_LINE_COLUMNS = ("job_mem_mb",)
"""The columns whose growth over the block is a metric."""

_LEAST_SLOPE_SEC = 5.0
"""A rate per minute needs some seconds: over less it is that of loading, times a hundred."""


@dataclass(slots=True)
class _Line:
    """The straight line through a column's values over time, weighted by time."""

    weight: float = 0.0
    mean_sec: float = 0.0
    mean: float = 0.0
    spread: float = 0.0
    shared: float = 0.0

    def add(self, at_sec: float, value: float, weight: float) -> None:
        """Add a value by Welford's method, which stays exact over months."""
        if weight <= 0:
            return
        self.weight += weight
        share = weight / self.weight
        later, higher = at_sec - self.mean_sec, value - self.mean
        self.mean_sec += share * later
        self.mean += share * higher
        self.spread += weight * later * (at_sec - self.mean_sec)
        self.shared += weight * later * (value - self.mean)

    def slope(self) -> float | None:
        """Return the growth per second; None where the values span less than `_LEAST_SLOPE_SEC`.

        Of values at equal distances over that time, the variance of the times is its square / 12.
        """
        least = self.weight * _LEAST_SLOPE_SEC**2 / 12
        return self.shared / self.spread if self.spread >= least > 0 else None


@dataclass(slots=True)
class _Column:
    """Running figures of one column, in constant memory."""

    first: float
    last: float
    peak: float
    integral: float = 0.0
    weight: float = 0.0

    def mean(self) -> float:
        """Return the time-weighted mean; for a single instant, its value."""
        return self.integral / self.weight if self.weight > 0 else self.last


class RunningSummary:
    """The figures of a block, updated with each report; implements `Figures`.

    Averages and totals come from the counters and are exact. Peaks are over every report. Shares
    weigh each report by the time since the previous one.

    Args:
        counters_from_first: Whether a counter's first value is its zero. Our counters start at 0
            with the job; those in the seed's files count from boot.
        kind: Returns whether a column is a gauge or a counter.
    """

    def __init__(
        self, *, counters_from_first: bool = False, kind: Callable[[str], Kind] = lookup_kind
    ) -> None:
        self._from_first = counters_from_first
        self._kind = kind
        self._columns: dict[str, _Column] = {}
        self._before: dict[str, float] | None = None
        self._unweighted: dict[str, float] | None = None
        self._shares = dict.fromkeys(SHARE_THRESHOLDS_PCT, 0.0)
        self._duration = 0.0
        self._facts: dict[str, float] = {}
        self._lines = {name: _Line() for name in _LINE_COLUMNS}

    def add(self, report: Mapping[str, float]) -> None:
        """Add one report: column name → value."""
        if self._before is not None:
            span = measure_span(self._before, report)
            if self._unweighted is not None:
                # The list does not begin with a report at the block's start. The levels of the
                # first report are assumed to have held before it for as long as the next interval.
                self._weigh(self._unweighted, span)
                self._unweighted = None
            self._weigh(report, span)
            self._duration += span
        elif "elapsed_sec" in report:
            self._weigh(report, report["elapsed_sec"])
            self._duration = report["elapsed_sec"]
        else:
            self._weigh(report, 0.0)
            self._unweighted = dict(report)
        self._before = dict(report)

    def _weigh(self, report: Mapping[str, float], span: float) -> None:
        """Update each column with a value that held for `span` seconds."""
        columns = self._columns
        for name, value in report.items():
            column = columns.get(name)
            if column is None:
                column = columns[name] = _Column(value, value, value)
            column.last = value
            if value > column.peak:  # noqa: PLR1730 - max() costs 0.1 µs more, per value
                column.peak = value
            column.integral += value * span
            column.weight += span
        for name, line in self._lines.items():
            if name in report:
                line.add(self._duration, report[name], span)
        busy = report.get(SHARE_COLUMN)
        if busy is not None:
            busy = round(busy, 1)  # as psutil rounds, so that a full machine is at 100
            for threshold in SHARE_THRESHOLDS_PCT:
                if busy >= threshold:
                    self._shares[threshold] += span

    def state(self) -> dict[str, Any]:
        """Return the whole state as plain data, from which a journal can continue."""
        return {
            "columns": {
                name: [c.first, c.last, c.peak, c.integral, c.weight]
                for name, c in self._columns.items()
            },
            "before": self._before,
            "unweighted": self._unweighted,
            "shares": [self._shares[threshold] for threshold in SHARE_THRESHOLDS_PCT],
            "duration": self._duration,
            "lines": {name: list(astuple(line)) for name, line in self._lines.items()},
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from a state that `state` returned.

        Raises:
            KeyError, TypeError, ValueError: When the state is damaged.
        """
        columns = {str(n): _Column(*map(float, kept)) for n, kept in state["columns"].items()}
        shares = zip(SHARE_THRESHOLDS_PCT, map(float, state["shares"]), strict=True)
        self._columns, self._shares = columns, dict(shares)
        self._before, self._unweighted = state["before"], state["unweighted"]
        self._duration = float(state["duration"])
        for name, kept in state.get("lines", {}).items():  # journals of 0.1.0 have none
            self._lines[name] = _Line(*map(float, kept))

    def set_fact(self, name: str, value: float | None) -> None:
        """Set a figure that does not come from reports; None leaves it out."""
        if value is not None:
            self._facts[name] = value

    def duration(self) -> float | None:
        """Return the block's length in seconds; None before the first report."""
        if self._before is None:
            return None
        if self._unweighted is not None and not self._duration:
            return None
        return self._duration

    def total(self, column: str) -> float | None:
        """Return how far a counter got over the whole block."""
        kept = self._columns.get(column)
        if kept is None:
            return None
        return max(0.0, kept.last - kept.first) if self._from_first else kept.last

    def peak(self, column: str) -> float | None:
        """Return the largest value of a column, peaks of merged rows included."""
        kept = self._columns.get(column)
        if kept is None:
            return None
        merged = self._columns.get(column + PEAK_SUFFIX)
        return kept.peak if merged is None else max(kept.peak, merged.peak)

    def mean(self, column: str) -> float | None:
        """Return the time-weighted mean of a column."""
        kept = self._columns.get(column)
        return None if kept is None else kept.mean()

    def integral(self, column: str) -> float | None:
        """Return the integral of a column over the whole block; its mean fills gaps."""
        kept, duration = self._columns.get(column), self.duration()
        return None if kept is None or duration is None else kept.mean() * duration

    def slope(self, column: str) -> float | None:
        """Return the growth per second of a column that `_LINE_COLUMNS` names."""
        line = self._lines.get(column)
        return None if line is None else line.slope()

    def share(self, threshold_pct: float) -> float | None:
        """Return the percentage of time in which `SHARE_COLUMN` was at or above a threshold."""
        kept = self._columns.get(SHARE_COLUMN)
        if kept is None:
            return None
        if kept.weight <= 0:
            return 100.0 if round(kept.last, 1) >= threshold_pct else 0.0
        return min(100.0, 100.0 * self._shares[threshold_pct] / kept.weight)

    def fact(self, name: str) -> float | None:
        """Return a figure that `set_fact` set."""
        return self._facts.get(name)

    def metrics(self) -> dict[str, float]:
        """Return the summary: metric key → value, for metrics with a source and a finite value."""
        gpus = {index for name in self._columns if (index := parse_gpu_index(name)) is not None}
        rows = (*METRICS, *(metric for gpu in sorted(gpus) for metric in make_gpu_metrics(gpu)))
        values = {metric.key: metric.compute(self) for metric in rows}
        for name in self._columns:
            plain = name.removesuffix(PEAK_SUFFIX)
            is_peak = plain != name and plain in self._columns
            if name in COLUMNS or is_peak or parse_gpu_index(plain) is not None:
                continue
            # A column of a user's own reader.
            if self._kind(name) is Kind.COUNTER:
                values[f"total_{name}"] = self.total(name)
            else:
                values[f"avg_{name}"] = self.mean(name)
                values[f"max_t_{name}"] = self.peak(name)
        return {key: v for key, v in values.items() if v is not None and math.isfinite(v)}


def summarise(
    reports: Iterable[Mapping[str, float]],
    *,
    counters_from_first: bool = False,
    facts: Mapping[str, float] | None = None,
) -> dict[str, float]:
    """Return the summary metrics of a list of reports.

    Args:
        reports: In the order of time; merged rows have their peaks in `<column>_max`. A value that
            is not a finite number counts as missing.
        counters_from_first: See `RunningSummary`.
        facts: Figures that do not come from reports: `node_count`, `perf_overhead_pct`.
    """
    summary = RunningSummary(counters_from_first=counters_from_first)
    for report in reports:
        summary.add(keep_finite(report))
    for name, value in (facts or {}).items():
        summary.set_fact(name, value)
    return summary.metrics()


def summarise_run(summaries: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Return the metrics of a run as a whole from the summaries of its nodes."""
    nodes = list(summaries)
    values = {metric.key: metric.compute(nodes) for metric in RUN_METRICS}
    return {key: v for key, v in values.items() if v is not None and math.isfinite(v)}
