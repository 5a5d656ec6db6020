"""The curves of the page, from the reports of all nodes: bounded in size, without losing a peak.

Up to `FEW_NODES` nodes keep a curve each. Of more nodes, the page shows the distribution over the
nodes and a heat map with one byte per node and interval.
"""

from __future__ import annotations

import base64
import math
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from mlflow_perf.model.document import NodeDocument
from mlflow_perf.reports.charts import NEVER_DRAWN, Chart, Curve, CurveSource, select_charts

Array = npt.NDArray[np.float64]
Places = npt.NDArray[np.int64]

FEW_NODES = 8
"""Most nodes that are drawn one by one."""

# The difference between two times of a damaged file may be more than a float holds.
_FARTHEST_SEC = 1e15
_MOST_POINTS = 1000
_POINTS_OF_ALL = 4000
_FEWEST_POINTS = 240
_MOST_CELLS = 900_000
_FEWEST_CELLS = 16
_MISSING = 255
_LEVELS = 254


@dataclass(frozen=True)
class NodeCurves:
    """One node's reports as arrays: all that is kept of it while the other nodes are read.

    Attributes:
        index: The node.
        seconds: Unix time of each report, or seconds since the start if that is unknown.
        columns: Column → values, NaN if one is missing.
    """

    index: int
    seconds: Array
    columns: Mapping[str, npt.NDArray[np.float32]]

    @classmethod
    def from_document(cls, index: int, node: NodeDocument) -> NodeCurves | None:
        """Return the curves of a node, or None if it has no reports."""
        length = len(next(iter(node.reports.values()), []))
        if not length:
            return None
        columns = {}
        with np.errstate(over="ignore"):
            for name, values in node.reports.items():
                if name not in NEVER_DRAWN:
                    column = np.array(values, dtype=np.float32)
                    known = np.isfinite(column)
                    if not known.all():
                        column[~known] = np.nan
                    columns[name] = column
            _add_shares(columns, node.node.get("mem_total_mb"))
        return cls(index, _read_times(node, length), columns)

    @cached_property
    def steps(self) -> Array:
        """Seconds from each report to the next; NaN if the clock did not move."""
        steps = self.seconds[1:] - self.seconds[:-1]
        return np.where(steps > 0, steps, np.nan)

    def values(self, curve: Curve) -> npt.NDArray[Any] | None:
        """Return a curve's values at the node's reports; None without its column."""
        column = self.columns.get(curve.column)
        if column is None or curve.source is CurveSource.VALUE:
            return column
        if len(column) < 2:
            return np.full(len(column), np.nan)
        counter = column.astype(np.float64)
        rates = np.maximum(counter[1:] - counter[:-1], 0.0) / self.steps
        if len(rates) > 1 and self.steps[-1] < self.steps[-2] / 2:
            # In the last fraction of an interval a rate is noise: the two are told as one.
            rates[-1] = np.average(rates[-2:], weights=self.steps[-2:])
        # The first report is at the start, so it gets the rate of the first interval.
        rates = np.concatenate((rates[:1], rates))
        return np.minimum(rates * 100.0, 100.0) if curve.source is CurveSource.SHARE else rates


def _add_shares(columns: dict[str, npt.NDArray[np.float32]], mem_total_mb: Any) -> None:
    """Add the columns of others' and idle CPUs and memory to those of an older document.

    Args:
        columns: A node's columns; the document's own columns of these names are kept.
        mem_total_mb: The node's memory, if it is known.
    """
    job, busy_pct, limit = (
        columns.get(name) for name in ("job_cpu_cores", "cpu_pct_per_cpu_avg", "cpu_limit_cores")
    )
    if job is not None and busy_pct is not None and limit is not None:
        others = np.maximum(busy_pct * limit / 100 - job, 0)
        columns.setdefault("others_cpu_cores", others)
        columns.setdefault("idle_cpu_cores", np.maximum(limit - job - others, 0))
    job, used_pct = columns.get("job_mem_mb"), columns.get("mem_percent")
    total = mem_total_mb if isinstance(mem_total_mb, (int, float)) else math.nan
    if job is not None and used_pct is not None and math.isfinite(total):
        others = np.maximum(used_pct * np.float32(total / 100) - job, 0)
        columns.setdefault("others_mem_mb", others)
        columns.setdefault("idle_mem_mb", np.maximum(np.float32(total) - job - others, 0))


def _read_times(node: NodeDocument, length: int) -> Array:
    """Return times that never run backwards; missing ones are put between their neighbours.

    The monotonic clock is used if there is one, from the wall clock's start.
    """
    started = node.started if math.isfinite(node.started or 0.0) else None
    origin = np.clip(started or 0.0, -_FARTHEST_SEC, _FARTHEST_SEC)
    if "elapsed_sec" in node.reports:
        column = node.reports["elapsed_sec"]
    elif "timestamp" in node.reports:
        column, origin = node.reports["timestamp"], np.float64(0.0)
    else:
        return np.arange(length, dtype=np.float64) + float(origin)
    clipped = np.clip(np.array(column, dtype=np.float64), -_FARTHEST_SEC, _FARTHEST_SEC)
    values: Array = clipped + origin
    known = np.isfinite(values)
    places = np.arange(len(values), dtype=np.float64)
    if not known.any():
        return places
    return np.maximum.accumulate(np.interp(places, places[known], values[known]))


@dataclass(frozen=True)
class Curves:
    """The curves of all nodes, ready for the page.

    Attributes:
        started: Unix time at which the time axis is 0.
        x: Seconds since `started`; for many nodes the middle of each interval.
        charts: Which charts to draw, in order.
        nodes: The nodes' indices, in order.
        values: Few nodes: key → one list per node, None for a node without the column.
        spread: Many nodes: key → `median`, `low` (10th percentile), `high` (90th percentile),
            `max`, and the heat map as `cells` (base64, row by row, 255 for a missing value) with
            the value `scale` of 254; `cells` is empty where there is no map.
    """

    started: float
    x: list[float | None]
    charts: list[Chart]
    nodes: list[int]
    values: dict[str, list[list[float | None] | None]]
    spread: dict[str, dict[str, Any]]


def build_curves(
    nodes: Iterable[NodeCurves | None], *, charts: list[Chart] | None = None
) -> Curves | None:
    """Return the curves of all nodes, or None if none has reports.

    Args:
        nodes: The nodes.
        charts: Draw these with a curve per node, however many nodes there are; default: those that
            suit the columns.
    """
    kept = sorted((node for node in nodes if node is not None), key=lambda node: node.index)
    if not kept:
        return None
    is_chosen = charts is not None
    if charts is None:
        charts = select_charts(dict.fromkeys(name for node in kept for name in node.columns))
    start = float(min(node.seconds[0] for node in kept))
    end = float(max(node.seconds[-1] for node in kept))
    draw = _draw_each if is_chosen or len(kept) <= FEW_NODES else _draw_spread
    return draw(kept, charts, start, end)


def _draw_each(kept: list[NodeCurves], charts: list[Chart], start: float, end: float) -> Curves:
    grid: _Grid | None = None
    x: npt.NDArray[Any] = kept[0].seconds - start
    if len(kept) > 1 or len(x) > _MOST_POINTS:
        rows = max(len(node.seconds) for node in kept)
        points = max(_FEWEST_POINTS, min(_MOST_POINTS, _POINTS_OF_ALL // len(kept), rows))
        grid = _Grid(start, end, points)
        x = grid.middles

    def fit(node: NodeCurves, column: npt.NDArray[Any] | None, *, peaks: bool) -> Any:
        if column is None or not np.isfinite(column).any():
            return None
        if grid is not None:
            column = grid.merge(grid.places(node.seconds), column, peaks=peaks)[0]
        return _round_curve(column)

    values: dict[str, list[list[float | None] | None]] = {}
    for curve in [curve for chart in charts for curve in chart.curves]:
        values[curve.column] = [
            fit(node, node.values(curve), peaks=curve.column.endswith("_max")) for node in kept
        ]
        if curve.source is CurveSource.VALUE:
            key = f"{curve.column}_max"
            values[key] = [fit(node, node.columns.get(key), peaks=True) for node in kept]
    drawn = {k: lists for k, lists in values.items() if any(one is not None for one in lists)}
    return Curves(start, to_plain(x, 3), charts, [node.index for node in kept], drawn, {})


class _Grid:
    """Intervals of equal length over the whole run, on which all nodes are drawn."""

    def __init__(self, start: float, end: float, points: int) -> None:
        self.start, self.points = start, points
        self.width = max(end - start, 1e-9) / points
        self.middles = (np.arange(points) + 0.5) * self.width

    def places(self, seconds: Array, row: int = 0) -> Places:
        """Return the interval of each time, counted through all rows of a table of nodes."""
        places = ((seconds - self.start) / self.width).astype(np.int64)
        return np.minimum(np.maximum(places, 0), self.points - 1) + row * self.points

    def merge(
        self, where: Places, values: npt.NDArray[Any], *, peaks: bool, rows: int = 1
    ) -> Array:
        """Return the mean or the peak of each interval, a row per node.

        Args:
            where: The place of each value, ascending.
            values: The values; NaN if one is missing.
            peaks: Return the largest value of each interval instead of the mean.
            rows: Number of nodes.
        """
        result = np.full(rows * self.points, np.nan)
        known = np.isfinite(values)
        if not known.all():
            where, values = where[known], values[known]
        if len(where):
            starts = np.flatnonzero(np.diff(where, prepend=-1))
            if peaks:
                merged = np.maximum.reduceat(values, starts)
            else:
                counts = np.diff(starts, append=len(values))
                merged = np.add.reduceat(values, starts, dtype=np.float64) / counts
            result[where[starts]] = merged
        table = result.reshape(rows, self.points)
        # Fill the gaps between a row's values, but none before or after them: the next report
        # speaks for the interval before it.
        known = np.isfinite(table)
        began = np.maximum.accumulate(known, axis=1)
        places = np.where(known, np.arange(self.points), self.points)
        after = np.minimum.accumulate(places[:, ::-1], axis=1)[:, ::-1]
        filled = np.take_along_axis(table, np.minimum(after, self.points - 1), axis=1)
        bridged: Array = np.where(began & (after < self.points), filled, np.nan)
        return bridged


def _draw_spread(kept: list[NodeCurves], charts: list[Chart], start: float, end: float) -> Curves:
    lines = (curve for chart in charts for curve in chart.curves if curve.role == "line")
    curves = list({curve.column: curve for curve in lines}.values())
    # The charts that are folded away have no heat map: those of the others are finer for it.
    mapped = {c.column for chart in charts if not chart.minor for c in chart.curves}
    maps = sum(curve.column in mapped for curve in curves)
    cells = max(_FEWEST_CELLS, min(_FEWEST_POINTS, _MOST_CELLS // (len(kept) * maps or 1)))
    grid = _Grid(start, end, cells)
    where = [grid.places(node.seconds, row) for row, node in enumerate(kept)]
    spread = {}
    for curve in curves:
        found = [(row, node.values(curve)) for row, node in enumerate(kept)]
        known = [(row, values) for row, values in found if values is not None]
        if known and (drawn := _spread_curve(curve, kept, grid, where, known)):
            spread[curve.column] = drawn
            if curve.column not in mapped:
                drawn["cells"] = ""
    return Curves(
        start, to_plain(grid.middles, 3), charts, [node.index for node in kept], {}, spread
    )


def _spread_curve(
    curve: Curve,
    kept: list[NodeCurves],
    grid: _Grid,
    where: list[Places],
    known: list[tuple[int, npt.NDArray[Any]]],
) -> dict[str, Any] | None:
    """Return a curve's distribution over the nodes and its heat map; None if it is never above 0.

    Args:
        curve: The curve.
        kept: The nodes.
        grid: The intervals of the page.
        where: The places of each node's reports on the grid.
        known: The row and the values of each node that has the curve.
    """
    highest = []
    for row, values in known:
        merged = kept[row].columns.get(f"{curve.column}_max")
        highest.append(values if merged is None else np.fmax(values, merged))
    places = np.concatenate([where[row] for row, _ in known])
    rows = len(kept)
    every = np.concatenate([values for _, values in known])
    means = grid.merge(places, every, peaks=False, rows=rows)
    peaks = grid.merge(places, np.concatenate(highest), peaks=True, rows=rows)
    if not (peaks > 0).any():
        return None
    with warnings.catch_warnings():
        # An interval in which no node has a value is a gap in the curve.
        warnings.simplefilter("ignore", RuntimeWarning)
        low, median, high = np.nanpercentile(means, (10, 50, 90), axis=0)
        top = np.nanmax(peaks, axis=0)
    scale = float(np.nanmax(peaks))
    levels = np.nan_to_num(np.maximum(peaks, 0.0) / scale * _LEVELS, nan=_MISSING)
    cells = np.clip(np.rint(levels), 0, _MISSING).astype(np.uint8)
    return {
        "low": _round_curve(low),
        "median": _round_curve(median),
        "high": _round_curve(high),
        "max": _round_curve(top),
        "scale": scale,
        "cells": base64.b64encode(cells.tobytes()).decode("ascii"),
    }


def to_plain(values: npt.NDArray[Any], decimals: int) -> list[float | None]:
    """Return an array as a list for JSON: rounded, without decimals if whole, None for NaN."""
    rounded = np.round(values.astype(np.float64), decimals).tolist()
    return [None if not math.isfinite(v) else int(v) if v == int(v) else v for v in rounded]


def _round_curve(values: npt.NDArray[Any]) -> list[float | None]:
    """Return a curve as a list, with three or four digits of its largest value."""
    top = float(np.nanmax(np.abs(values)))
    return to_plain(values, max(0, min(6, 3 - math.floor(math.log10(top)))) if top > 0 else 0)
