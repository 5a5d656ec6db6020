"""The reports of all nodes → the curves of the page: bounded in size, no peak lost.

Imports the chart table and the document. Up to `FEW_NODES` nodes keep a curve each. Of more, the
page gets the distribution over the nodes and a heat map: one byte per node and interval.
"""

from __future__ import annotations

import base64
import math
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from mlflow_perf.model.document import NodeDocument
from mlflow_perf.reports.charts import NEVER_DRAWN, Chart, Curve, Source, charts_for

__all__ = ["FEW_NODES", "Curves", "NodeCurves", "build_curves", "plain"]

Array = npt.NDArray[np.float64]
Places = npt.NDArray[np.int64]

FEW_NODES = 8
"""Most nodes that are drawn one by one."""

# The difference of two times of a damaged file may be more than a float holds.
_FARTHEST_SEC = 1e15
_MOST_POINTS = 1000
_POINTS_OF_ALL = 4000
_FEWEST_POINTS = 240
_MOST_CELLS = 2_800_000
_FEWEST_CELLS = 16
_MISSING = 255
_LEVELS = 254


@dataclass(frozen=True)
class NodeCurves:
    """One node's reports as arrays: what is kept of it while the other nodes are read.

    Attributes:
        index: The node.
        seconds: Unix time of each report, or seconds since the start where there is none.
        columns: Column → values, NaN where one is missing.
    """

    index: int
    seconds: Array
    columns: Mapping[str, npt.NDArray[np.float32]]

    @classmethod
    def of(cls, index: int, node: NodeDocument) -> NodeCurves | None:
        """Return the curves of a node, or None when it has no reports."""
        drawn = {k: values for k, values in node.reports.items() if k not in NEVER_DRAWN}
        with np.errstate(over="ignore"):
            columns = {name: _finite(values) for name, values in drawn.items()}
        length = len(next(iter(node.reports.values()), []))
        return cls(index, _seconds(node, length), columns) if length else None

    @cached_property
    def steps(self) -> Array:
        """Seconds from each report to the next; NaN where the clock did not move."""
        steps = self.seconds[1:] - self.seconds[:-1]
        return np.where(steps > 0, steps, np.nan)


def _finite(values: list[float | None]) -> npt.NDArray[np.float32]:
    """Return a column as an array, NaN for whatever is no number."""
    array = np.array(values, dtype=np.float32)
    known = np.isfinite(array)
    if not known.all():
        array[~known] = np.nan
    return array


def _seconds(node: NodeDocument, length: int) -> Array:
    # On the clock that never jumps where there is one, from the wall clock's start.
    started = node.started if math.isfinite(node.started or 0.0) else None
    for name, origin in (("elapsed_sec", started or 0.0), ("timestamp", 0.0)):
        if name in node.reports:
            values = np.array(node.reports[name], dtype=np.float64)
            return _filled_up(_near(values) + _near(origin))
    return np.arange(length, dtype=np.float64) + float(_near(started or 0.0))


def _near(seconds: Any) -> Any:
    return np.clip(seconds, -_FARTHEST_SEC, _FARTHEST_SEC)


def _filled_up(values: Array) -> Array:
    """Return times that never run backwards, those that are missing put between neighbours."""
    known = np.isfinite(values)
    if not known.any():
        return np.arange(len(values), dtype=np.float64)
    places = np.arange(len(values))
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
            the value `scale` of 254.
    """

    started: float
    x: list[float | None]
    charts: list[Chart]
    nodes: list[int]
    values: dict[str, list[list[float | None] | None]]
    spread: dict[str, dict[str, Any]]


def build_curves(nodes: Iterable[NodeCurves | None]) -> Curves | None:
    """Return the curves of all nodes, or None when none has reports."""
    kept = sorted((node for node in nodes if node is not None), key=lambda node: node.index)
    if not kept:
        return None
    charts = charts_for(dict.fromkeys(name for node in kept for name in node.columns))
    start = float(min(node.seconds[0] for node in kept))
    end = float(max(node.seconds[-1] for node in kept))
    draw = _draw_each if len(kept) <= FEW_NODES else _draw_spread
    return draw(kept, charts, start, end)


def _draw_each(kept: list[NodeCurves], charts: list[Chart], start: float, end: float) -> Curves:
    grid: _Grid | None = None
    x: npt.NDArray[Any] = kept[0].seconds - start
    if len(kept) > 1 or len(x) > _MOST_POINTS:
        rows = max(len(node.seconds) for node in kept)
        points = max(_FEWEST_POINTS, min(_MOST_POINTS, _POINTS_OF_ALL // len(kept), rows))
        grid = _Grid(start, end, points)
        x = grid.middles
    values: dict[str, list[list[float | None] | None]] = {}
    for chart in charts:
        for curve in chart.curves:
            for key, array_of in _parts(curve):
                lists = [_on(grid, node, array_of(node), key) for node in kept]
                if any(one is not None for one in lists):
                    values[key] = lists
    indices = [node.index for node in kept]
    return Curves(start, plain(x, 3), charts, indices, values, {})


def _parts(curve: Curve) -> list[tuple[str, Any]]:
    """Return a curve and its peaks: the key in the page and how a node gives it."""
    parts = [(curve.column, lambda node: _curve(curve, node))]
    if curve.source is Source.VALUE:
        peak = f"{curve.column}_max"
        parts.append((peak, lambda node: node.columns.get(peak)))
    return parts


def _curve(curve: Curve, node: NodeCurves) -> npt.NDArray[Any] | None:
    """Return a curve's values at the node's reports."""
    column = node.columns.get(curve.column)
    if column is None or curve.source is Source.VALUE:
        return column
    rate = _rate(column.astype(np.float64), node.steps)
    return np.minimum(rate * 100.0, 100.0) if curve.source is Source.SHARE else rate


def _rate(counter: Array, steps: Array) -> Array:
    """Return a counter's growth per second over the interval that ends at each report."""
    if len(counter) < 2:
        return np.full(len(counter), np.nan)
    rates = np.maximum(counter[1:] - counter[:-1], 0.0) / steps
    # The first report stands at the start: what follows it is what went on then.
    return np.concatenate((rates[:1], rates))


def _on(
    grid: _Grid | None, node: NodeCurves, values: npt.NDArray[Any] | None, key: str
) -> list[float | None] | None:
    if values is None or not np.isfinite(values).any():
        return None
    if grid is not None:
        merge = grid.peaks if key.endswith("_max") else grid.means
        values = merge(grid.places(node.seconds), values)[0]
    return _rounded(values)


_Merge = Callable[[npt.NDArray[Any], Places], npt.NDArray[Any]]
"""Makes one value of each stretch of values, which begin at the places given."""


def _mean_from(values: npt.NDArray[Any], starts: Places) -> npt.NDArray[Any]:
    counts = np.diff(starts, append=len(values))
    means: npt.NDArray[Any] = np.add.reduceat(values, starts, dtype=np.float64) / counts
    return means


class _Grid:
    """Intervals of equal length over the whole run, on which all nodes are drawn."""

    def __init__(self, start: float, end: float, points: int) -> None:
        self.start, self.points = start, points
        self.width = max(end - start, 1e-9) / points
        self.middles = (np.arange(points) + 0.5) * self.width

    def places(self, seconds: Array, row: int = 0) -> Places:
        """Return in which interval each time is, counted on from row to row of a table of them."""
        places = ((seconds - self.start) / self.width).astype(np.int64)
        return np.minimum(np.maximum(places, 0), self.points - 1) + row * self.points

    def means(self, where: Places, values: npt.NDArray[Any], *, rows: int = 1) -> Array:
        """Return the mean of each interval, a row per node.

        Args:
            where: The place of each value, ascending.
            values: NaN where one is missing.
            rows: Number of nodes.
        """
        return self._merged(where, values, rows, _mean_from)

    def peaks(self, where: Places, values: npt.NDArray[Any], *, rows: int = 1) -> Array:
        """Return the largest value of each interval; arguments as those of `means`."""
        return self._merged(where, values, rows, np.maximum.reduceat)

    def _merged(self, where: Places, values: npt.NDArray[Any], rows: int, merge: _Merge) -> Array:
        result = np.full(rows * self.points, np.nan)
        known = np.isfinite(values)
        if not known.all():
            where, values = where[known], values[known]
        if len(where):
            starts = np.flatnonzero(np.diff(where, prepend=-1))
            result[where[starts]] = merge(values, starts)
        return _bridged(result.reshape(rows, self.points))


def _bridged(table: Array) -> Array:
    """Fill the intervals between a row's values, but none before or after them."""
    known = np.isfinite(table)
    began = np.maximum.accumulate(known, axis=1)
    points = table.shape[1]
    places = np.where(known, np.arange(points), points)
    # The next report speaks for the interval before it.
    after = np.minimum.accumulate(places[:, ::-1], axis=1)[:, ::-1]
    filled = np.take_along_axis(table, np.minimum(after, points - 1), axis=1)
    result: Array = np.where(began & (after < points), filled, np.nan)
    return result


def _draw_spread(kept: list[NodeCurves], charts: list[Chart], start: float, end: float) -> Curves:
    curves = [curve for chart in charts for curve in chart.curves if curve.role == "line"]
    cells = max(_FEWEST_CELLS, min(_FEWEST_POINTS, _MOST_CELLS // (len(kept) * len(curves) or 1)))
    grid = _Grid(start, end, cells)
    where = [grid.places(node.seconds, row) for row, node in enumerate(kept)]
    spread = {
        curve.column: found
        for curve in curves
        if (found := _spread(curve, kept, grid, where)) is not None
    }
    indices = [node.index for node in kept]
    return Curves(start, plain(grid.middles, 3), charts, indices, {}, spread)


def _spread(
    curve: Curve, kept: list[NodeCurves], grid: _Grid, where: list[Places]
) -> dict[str, Any] | None:
    """Return a curve's distribution over the nodes, or None where it is nowhere above 0."""
    found = [(row, values) for row, node in enumerate(kept)
             if (values := _curve(curve, node)) is not None]  # fmt: skip
    if not found:
        return None
    highest = [_highest(curve, kept[row], values) for row, values in found]
    places = np.concatenate([where[row] for row, _ in found])
    rows = len(kept)
    means = grid.means(places, np.concatenate([values for _, values in found]), rows=rows)
    peaks = grid.peaks(places, np.concatenate(highest), rows=rows)
    if not (peaks > 0).any():
        return None
    with warnings.catch_warnings():
        # An interval in which no node has a value is a gap in the curve.
        warnings.simplefilter("ignore", RuntimeWarning)
        low, median, high = np.nanpercentile(means, (10, 50, 90), axis=0)
        top = np.nanmax(peaks, axis=0)
    distribution = {"low": low, "median": median, "high": high, "max": top}
    return {**{k: _rounded(v) for k, v in distribution.items()}, **_heat_map(peaks)}


def _highest(curve: Curve, node: NodeCurves, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    merged = node.columns.get(f"{curve.column}_max")
    return values if merged is None else np.fmax(values, merged)


def _heat_map(peaks: Array) -> dict[str, Any]:
    scale = float(np.nanmax(peaks))
    levels = np.nan_to_num(np.maximum(peaks, 0.0) / scale * _LEVELS, nan=_MISSING)
    cells = np.clip(np.rint(levels), 0, _MISSING).astype(np.uint8)
    return {"scale": scale, "cells": base64.b64encode(cells.tobytes()).decode("ascii")}


def plain(values: npt.NDArray[Any], decimals: int) -> list[float | None]:
    """Return an array as a list for JSON: rounded, whole numbers as such, None for no number."""
    rounded = np.round(values.astype(np.float64), decimals).tolist()
    return [None if not math.isfinite(v) else int(v) if v == int(v) else v for v in rounded]


def _rounded(values: npt.NDArray[Any]) -> list[float | None]:
    """Return a curve as a list, to three or four digits of its largest value."""
    top = float(np.nanmax(np.abs(values)))
    return plain(values, max(0, min(6, 3 - math.floor(math.log10(top)))) if top > 0 else 0)
