"""Columns of bounded length that merge neighbouring rows and keep every peak."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Callable, Mapping
from math import isfinite, isnan, nan
from numbers import Real
from typing import Any

from mlflow_perf.errors import SettingError
from mlflow_perf.model.columns import lookup_kind
from mlflow_perf.records import Kind

PEAK_SUFFIX = "_max"
"""Suffix of a column that holds another column's peak within each merged interval."""


def round_to_even(max_length: Any) -> int:
    """Return `max_length` rounded up to even.

    Raises:
        SettingError: When it is not a whole number of at least 1.
    """
    if isinstance(max_length, bool) or not isinstance(max_length, int) or max_length < 1:
        raise SettingError(
            f"max_length is {max_length!r}; it must be a whole number of at least 1."
        )
    return max_length + max_length % 2


def keep_finite(report: Mapping[str, Any]) -> Mapping[str, float]:
    """Return a report without the values that are not finite numbers; they count as missing."""
    try:
        total = sum(report.values())
        if total - total == 0.0:  # almost always; false if any value is NaN or infinite
            return report
    except TypeError:
        pass
    return {
        name: float(value)
        for name, value in report.items()
        if isinstance(value, Real) and isfinite(value)
    }


def measure_span(before: Mapping[str, float], now: Mapping[str, float]) -> float:
    """Return the seconds between two reports, never negative; 1 if they have no time."""
    for name in ("elapsed_sec", "timestamp"):
        if name in now and name in before:
            return max(0.0, now[name] - before[name])
    return 1.0


def _mean(a: float, weight_a: float, b: float, weight_b: float) -> float:
    if isnan(a):  # the value is missing
        return b
    if isnan(b):
        return a
    whole = weight_a + weight_b
    return (a * weight_a + b * weight_b) / whole if whole > 0 else (a + b) / 2


def _peak(a: float, b: float) -> float:
    return a if isnan(b) or a > b else b


def _latest(a: float, b: float) -> float:
    return a if isnan(b) else b


def _merge_tail(
    column: list[float],
    spans: list[float],
    merge: Callable[[float, float, float, float], float],
) -> None:
    """Merge a column's last rows, which have these spans, into one."""
    whole = spans[-1]
    for span in reversed(spans[:-1]):
        new = column.pop()
        column[-1] = merge(column[-1], span, new, whole)
        whole += span


def _is_peak(name: str, report: Mapping[str, float]) -> bool:
    return name.endswith(PEAK_SUFFIX) and name[: -len(PEAK_SUFFIX)] in report


def _peak_in(report: Mapping[str, float], name: str) -> float:
    return report.get(name + PEAK_SUFFIX, report.get(name, nan))


class BoundedSeries:
    """Reports of a job of any length in at most `max_length` evenly spaced rows.

    The first and the last report are kept as they are. Whenever the rows between them reach the
    bound, neighbours are merged in pairs. A gauge becomes its time-weighted mean, and its peak is
    kept in `<column>_max`. A counter becomes its value at the interval's end.

    Args:
        max_length: Maximum number of rows; rounded up to even.
        kind: Returns whether a column is a gauge or a counter.

    Raises:
        SettingError: When `max_length` is not a whole number of at least 1.
    """

    def __init__(
        self, max_length: int = 1000, *, kind: Callable[[str], Kind] = lookup_kind
    ) -> None:
        self.max_length = round_to_even(max_length)
        # Room for rows between the first and the last. Without room, all reports between them are
        # one row, which `columns` merges into the last.
        self._room = self.max_length - 2
        self._kind = kind
        self._first: dict[str, float] | None = None
        self._last: dict[str, float] | None = None
        self._last_span = 0.0
        self._values: dict[str, array[float]] = {}
        self._peaks: dict[str, array[float]] = {}
        self._spans: array[float] = array("d")
        self._stride = 1 if self._room else sys.maxsize  # reports in a full row
        self._filled = 0  # reports in the newest row
        self._has_peaks = False  # a report was merged before it came
        self._plain: set[str] = set()  # names of the newest report, if none is a peak column
        self.count = 0

    def __len__(self) -> int:
        """Return the number of rows."""
        rows = (self._first is not None) + (self._last is not None) + len(self._spans)
        return min(rows, self.max_length)

    @property
    def stride(self) -> int:
        """How many reports a full row between the first and the last one merges."""
        return self._stride

    @property
    def merged(self) -> bool:
        """Whether any rows were merged, so that there are peaks besides the means."""
        return self.count > self.max_length or self._has_peaks

    def append(self, report: Mapping[str, float]) -> None:
        """Add one report: column name → value; a column may come or go.

        A report that was merged before has its peaks in `<column>_max`.
        """
        self.count += 1
        if not self._has_peaks and report.keys() != self._plain:
            if any(_is_peak(name, report) for name in report):
                self._has_peaks = True
                for name, column in self._values.items():
                    self._add_peaks(name, column)
            else:
                self._plain = set(report)
        if self._first is None:
            self._first = dict(report)
            return
        before = self._first if self._last is None else self._last
        span = measure_span(before, report)
        if self._last is not None:
            if self._filled < self._stride and self._spans:
                self._merge_into_newest(self._last, self._last_span)
            else:
                self._push(self._last, self._last_span)
        self._last, self._last_span = dict(report), span

    def _push(self, report: Mapping[str, float], span: float) -> None:
        """Add a row between the first and the last one."""
        if len(self._spans) == self._room:
            self._halve()
        rows = len(self._spans)
        self._spans.append(span)
        self._filled = 1
        self._add_columns(report, rows)
        for name, column in self._values.items():
            column.append(report.get(name, nan))
        for name, column in self._peaks.items():
            column.append(_peak_in(report, name))

    def _add_columns(self, report: Mapping[str, float], rows: int) -> None:
        for name in report:
            if name not in self._values and not _is_peak(name, report):
                self._values[name] = array("d", [nan]) * rows
                if self._stride > 1 or self._has_peaks:
                    self._add_peaks(name, self._values[name])

    def _add_peaks(self, name: str, column: array[float]) -> None:
        if name not in self._peaks and self._kind(name) is Kind.GAUGE:
            self._peaks[name] = array("d", column)

    def _merge_into_newest(self, report: Mapping[str, float], span: float) -> None:
        old_span = self._spans[-1]
        self._add_columns(report, len(self._spans))
        for name, column in self._values.items():
            new = report.get(name, nan)
            peaks = self._peaks.get(name)
            if peaks is not None:
                peaks[-1] = _peak(peaks[-1], _peak_in(report, name))
                column[-1] = _mean(column[-1], old_span, new, span)
            else:
                column[-1] = _latest(column[-1], new)
        self._spans[-1] += span
        self._filled += 1

    def _halve(self) -> None:
        """Merge each two neighbouring rows into one."""
        pairs = range(0, len(self._spans), 2)
        spans = self._spans
        for name, column in self._values.items():
            if self._kind(name) is Kind.GAUGE:
                peaks = self._peaks.get(name, column)
                self._peaks[name] = array("d", [_peak(peaks[i], peaks[i + 1]) for i in pairs])
                merged = [_mean(column[i], spans[i], column[i + 1], spans[i + 1]) for i in pairs]
            else:
                merged = [_latest(column[i], column[i + 1]) for i in pairs]
            self._values[name] = array("d", merged)
        self._spans = array("d", [spans[i] + spans[i + 1] for i in pairs])
        self._stride *= 2

    def columns(self, *, is_open: bool = False) -> dict[str, list[float]]:
        """Return the rows by column, all of one length, NaN where a value is missing.

        If rows were merged, a gauge has a second column, `<column>_max`, with their peaks.

        Args:
            is_open: Whether more reports will come: those that do not fill a row yet are then
                merged into the row before them, so that all rows but the first are alike.
        """
        ends = [row for row in (self._first, self._last) if row is not None]
        if self._has_peaks:
            names = dict.fromkeys(n for row in ends for n in row if not _is_peak(n, row))
        else:
            names = dict.fromkeys(name for row in ends for name in row)
        names.update(dict.fromkeys(self._values))
        missing = [nan] * len(self._spans)
        # The newest rows that are shown as one.
        rows = 1
        if not self._room:
            rows += len(self._spans)
        elif is_open and self._stride > 1:
            rows += 1 if self._filled == self._stride else 2
        spans = [*self._spans, self._last_span][-rows:]
        table: dict[str, list[float]] = {}
        for name in names:
            gauge = self._kind(name) is Kind.GAUGE
            first, *last = (row.get(name, nan) for row in ends)
            column = [first, *self._values.get(name, missing), *last]
            _merge_tail(column, spans, _mean if gauge else lambda a, _, b, __: _latest(a, b))
            table[name] = column
            if gauge and self.merged:
                first, *last = (_peak_in(row, name) for row in ends)
                peaks = [first, *self._peaks.get(name, missing), *last]
                _merge_tail(peaks, spans, lambda a, _, b, __: _peak(a, b))
                table[name + PEAK_SUFFIX] = peaks
        return table

    def rows(self, *, is_open: bool = False) -> list[dict[str, float]]:
        """Return the rows as reports; a missing value has no key.

        Args:
            is_open: As for `columns`.
        """
        table = self.columns(is_open=is_open)
        return [
            {name: value for name, value in zip(table, values, strict=True) if not isnan(value)}
            for values in zip(*table.values(), strict=True)
        ]
