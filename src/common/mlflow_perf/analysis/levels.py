"""Cuts a table of curves where their levels change: the numeric half of `phases`."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]

_SHORTEST = 2
"""A level lasts for at least so many intervals: one alone is a peak, or lies across a change."""

_MOST_INTERVALS = 300
_LEAST_NOISE = 0.35  # of the unit: figures of a quiet job do not change level by trifles
_LEAST_CHANGE = 0.8  # of the unit, between two neighbouring levels


def split_levels(edges: Sequence[float], curves: Sequence[Array], most: int = 12) -> list[float]:
    """Return the times at which some curve changes its level, ascending.

    The levels that explain all curves together with the least squares and the fewest changes are
    searched exactly (Jackson et al. 2005). A change has to be abrupt: a curve that climbs slowly is
    one level. An interval that lies across a change is split in proportion to its value.

    Args:
        edges: Times at which the intervals begin and end: one more than each curve has values.
        curves: The mean of each interval, in units that are a change worth a cut; no NaN.
        most: Most levels.
    """
    times = np.asarray(edges, np.float64)
    if len(times) < 2 * _SHORTEST + 1 or not curves:
        return []
    table = np.vstack([np.asarray(curve, np.float64) for curve in curves])
    times, table = _thin(times, table)
    lengths = np.diff(times)
    noise = np.median(np.abs(np.diff(table, axis=1)), axis=1) / 0.954
    scaled = table / np.maximum(noise, _LEAST_NOISE)[:, None]
    penalty = 4.0 + 2.5 * math.log(len(lengths))
    while True:
        cuts = _drop_weak(_fit(scaled, lengths, penalty), table, lengths)
        if len(cuts) < most:
            return [_refine(cut, table, times) for cut in cuts]
        penalty *= 1.5


def _thin(times: Array, table: Array) -> tuple[Array, Array]:
    """Merge neighbouring intervals, so that the search takes milliseconds however long the job."""
    group = -(-table.shape[1] // _MOST_INTERVALS)
    if group == 1:
        return times, table
    starts = np.arange(0, table.shape[1], group)
    lengths = np.diff(times)
    sums = np.add.reduceat(table * lengths, starts, axis=1)
    return np.append(times[starts], times[-1]), sums / np.add.reduceat(lengths, starts)


def _fit(scaled: Array, lengths: Array, penalty: float) -> list[int]:
    """Return the first interval of each level after the first one."""
    # A short interval at the end says little, and a long one no more than any other.
    weights = np.minimum(lengths / np.median(lengths), 1.0)
    count = len(weights)
    mass = np.concatenate([[0.0], np.cumsum(weights)])
    sums = np.hstack([np.zeros((len(scaled), 1)), np.cumsum(scaled * weights, axis=1)])
    squares = np.concatenate([[0.0], np.cumsum((scaled**2 * weights).sum(axis=0))])
    costs = np.full(count + 1, np.inf)
    costs[0] = -penalty
    begins = np.zeros(count + 1, np.int64)
    for end in range(_SHORTEST, count + 1):
        last = end - _SHORTEST + 1
        within = np.maximum(mass[end] - mass[:last], 1e-12)
        spread = squares[end] - squares[:last]
        spread = spread - ((sums[:, end, None] - sums[:, :last]) ** 2).sum(axis=0) / within
        totals = costs[:last] + spread + penalty
        best = int(np.argmin(totals))
        costs[end], begins[end] = totals[best], best
    cuts: list[int] = []
    end = int(begins[count])
    while end > 0:
        cuts.insert(0, end)
        end = int(begins[end])
    return cuts


def _drop_weak(cuts: list[int], table: Array, lengths: Array) -> list[int]:
    """Return the cuts at which some curve jumps; the weakest go first, and their levels join."""
    cuts = list(cuts)
    while cuts:
        edges = [0, *cuts, table.shape[1]]
        jumps = [
            _measure_jump(table, lengths, edges[i - 1], edges[i], edges[i + 1])
            for i in range(1, len(edges) - 1)
        ]
        weakest = int(np.argmin(jumps))
        if jumps[weakest] >= _LEAST_CHANGE:
            break
        cuts.pop(weakest)
    return cuts


def _measure_jump(table: Array, lengths: Array, start: int, cut: int, end: int) -> float:
    """Return the largest change of a level at a cut, no more than the curve jumps just there."""

    def mean(first: int, last: int) -> Array:
        weights = lengths[first:last]
        level: Array = (table[:, first:last] * weights).sum(axis=1) / weights.sum()
        return level

    def drift(first: int, last: int) -> Array:
        """Return how much the curves climb per interval within a level."""
        half = (last - first) // 2
        if half < 2:
            return np.zeros(len(table))
        climb: Array = (mean(last - half, last) - mean(first, first + half)) / (last - first - half)
        return climb

    whole = np.abs(mean(cut, end) - mean(start, cut))
    # The interval on each side of the cut may lie across it.
    left = max(start, cut - 4), max(cut - 1, start + 1)
    right = min(cut + 1, end - 1), min(end, cut + 4)
    apart = (sum(right) - sum(left)) / 2
    climb = np.abs(drift(start, cut) + drift(cut, end)) / 2 * apart
    near = np.maximum(np.abs(mean(*right) - mean(*left)) - climb, 0.0)
    return float(np.minimum(whole, 1.3 * near).max())


def _refine(cut: int, table: Array, times: Array) -> float:
    """Return the time of a change, from how the intervals beside it lie between the levels."""
    count = table.shape[1]
    before = table[:, max(0, cut - 4) : max(cut - 1, 1)].mean(axis=1)
    after = table[:, min(cut + 1, count - 1) : cut + 4].mean(axis=1)
    clearest = int(np.argmax(np.abs(after - before)))
    low, high = float(before[clearest]), float(after[clearest])
    if low == high:
        return float(times[cut])
    moment = float(times[cut - 1])
    for interval in (cut - 1, cut):
        share = (high - float(table[clearest, interval])) / (high - low)
        moment += min(1.0, max(0.0, share)) * float(times[interval + 1] - times[interval])
    return moment
