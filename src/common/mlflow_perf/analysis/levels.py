"""Cuts a table of curves where their levels change: the numeric half of `phases`.

Plain Python: importing NumPy takes longer than the search, and readers of documents do without it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from itertools import accumulate, pairwise
from operator import add, mul
from statistics import fmean, median

_SHORTEST = 2
"""A level lasts for at least so many intervals: one alone is a peak, or lies across a change."""

_MOST_INTERVALS = 200
_LEAST_NOISE = 0.35  # of the unit: figures of a quiet job do not change level by trifles
_LEAST_CHANGE = 0.8  # of the unit, between two neighbouring levels
_LEAST_ERRORS = 5.0  # the same in standard errors of the difference of the two


def split_levels(
    edges: Sequence[float], curves: Sequence[Sequence[float]], most: int = 12
) -> list[float]:
    """Return the times at which some curve changes its level, ascending.

    The levels that explain all curves together with the least squares and the fewest changes are
    searched exactly (Jackson et al. 2005). A change has to be abrupt: a curve that climbs slowly is
    one level. An interval that lies across a change is split in proportion to its value.

    Args:
        edges: Times at which the intervals begin and end: one more than each curve has values.
        curves: The mean of each interval, in units that are a change worth a cut; no NaN.
        most: Most levels.
    """
    if len(edges) < 2 * _SHORTEST + 1 or not curves:
        return []
    times, table = _thin(edges, curves)
    lengths = [end - begin for begin, end in pairwise(times)]
    scaled = []
    for curve in table:
        noise = _measure_noise([abs(after - before) for before, after in pairwise(curve)])
        scaled.append([value / max(noise, _LEAST_NOISE) for value in curve])
    penalty = 4.0 + 2.5 * math.log(len(lengths))
    while True:
        cuts = _drop_weak(_fit(scaled, lengths, penalty), table, lengths)
        cuts = _join_steps(cuts, table, lengths)
        if len(cuts) < most:
            return [_refine(cut, table, times) for cut in cuts]
        penalty *= 1.5


def _measure_noise(steps: Sequence[float]) -> float:
    """Return the standard deviation of a level's values, from the steps between neighbours."""
    return median(steps) / 0.954 if steps else 0.0


def _thin(
    times: Sequence[float], table: Sequence[Sequence[float]]
) -> tuple[Sequence[float], Sequence[Sequence[float]]]:
    """Merge neighbouring intervals, so that the search takes milliseconds however long the job."""
    count = len(times) - 1
    group = -(-count // _MOST_INTERVALS)
    if group == 1:
        return times, table
    lengths = [end - begin for begin, end in pairwise(times)]
    starts = range(0, count, group)
    merged = [[_mean(curve, lengths, i, i + group) for i in starts] for curve in table]
    return [*(times[i] for i in starts), times[-1]], merged


def _mean(curve: Sequence[float], lengths: Sequence[float], first: int, last: int) -> float:
    """Return the mean of a curve over the intervals from `first` up to `last`."""
    weights = lengths[first:last]
    total: float = sum(map(mul, curve[first:last], weights))
    return total / sum(weights)


def _fit(scaled: Sequence[Sequence[float]], lengths: Sequence[float], penalty: float) -> list[int]:
    """Return the first interval of each level after the first one."""
    # A short interval at the end says little, and a long one no more than any other.
    usual = median(lengths)
    weights = [min(length / usual, 1.0) for length in lengths]
    mass = [0.0, *accumulate(weights)]
    sums, squares = [], [0.0] * len(mass)
    for curve in scaled:
        weighted = list(map(mul, curve, weights))
        sums.append([0.0, *accumulate(weighted)])
        squares[1:] = map(add, squares[1:], accumulate(map(mul, weighted, curve)))
    costs, begins = [-penalty] + [math.inf] * len(weights), [0] * len(mass)
    for end in range(_SHORTEST, len(mass)):
        last = end - _SHORTEST + 1
        explained = [0.0] * last
        for curve in sums:
            whole = curve[end]
            explained = [e + (whole - s) ** 2 for e, s in zip(explained, curve, strict=False)]
        total, own = mass[end], squares[end] + penalty
        totals = [
            cost + own - square - part / (total - before)
            for cost, square, part, before in zip(costs, squares, explained, mass, strict=False)
        ]
        costs[end] = min(totals)
        begins[end] = totals.index(costs[end])
    cuts: list[int] = []
    end = begins[-1]
    while end > 0:
        cuts.insert(0, end)
        end = begins[end]
    return cuts


def _drop_weak(
    cuts: Sequence[int], table: Sequence[Sequence[float]], lengths: Sequence[float]
) -> list[int]:
    """Return the cuts at which some curve jumps; the weakest go first, and their levels join."""

    @cache  # a cut that goes changes the jumps of its two neighbours alone
    def measure(start: int, cut: int, end: int) -> float:
        return max(_measure_jump(curve, lengths, start, cut, end) for curve in table)

    kept = list(cuts)
    while kept:
        edges = [0, *kept, len(lengths)]
        jumps = [measure(*edges[i : i + 3]) for i in range(len(kept))]
        weakest = min(range(len(kept)), key=jumps.__getitem__)
        if jumps[weakest] >= _LEAST_CHANGE:
            break
        kept.pop(weakest)
    return kept


def _join_steps(
    cuts: Sequence[int], table: Sequence[Sequence[float]], lengths: Sequence[float]
) -> list[int]:
    """Return the cuts, with one cut in place of two around an interval that lies across a change.

    Such an interval and its neighbour look like a short level between the two real levels.
    """
    edges = [0, *cuts, len(lengths)]
    kept: list[int] = []
    for i, cut in enumerate(cuts, 1):
        first = edges[i - 1]
        if kept and kept[-1] == first == cut - _SHORTEST:
            sides = [
                [_mean(curve, lengths, *edges[j : j + 2]) for j in (i - 2, i - 1, i)]
                for curve in table
            ]
            noise = _LEAST_NOISE
            if all(min(a, c) - noise <= b <= max(a, c) + noise for a, b, c in sides):
                kept[-1] = first + 1
                continue
        kept.append(cut)
    return kept


def _measure_jump(
    curve: Sequence[float], lengths: Sequence[float], start: int, cut: int, end: int
) -> float:
    """Return the change of a curve's level at a cut, no more than it jumps just there."""

    def mean(first: int, last: int) -> float:
        return _mean(curve, lengths, first, last)

    def drift(first: int, last: int) -> float:
        """Return how much the curve climbs per interval within a level."""
        half = (last - first) // 2
        if half < 2:
            return 0.0
        return (mean(last - half, last) - mean(first, first + half)) / (last - first - half)

    whole = abs(mean(cut, end) - mean(start, cut))
    # Busy CPUs vary more than idle ones, so the noise near a cut may differ from that of the whole.
    steps = [abs(curve[i] - curve[i - 1]) for i in range(start + 1, end) if i != cut]
    error = _measure_noise(steps) * math.sqrt(1 / (cut - start) + 1 / (end - cut))
    if error > 0:
        whole = min(whole, _LEAST_CHANGE * whole / (_LEAST_ERRORS * error))
    # The interval on each side of the cut may lie across it.
    left = max(start, cut - 4), max(cut - 1, start + 1)
    right = min(cut + 1, end - 1), min(end, cut + 4)
    apart = (sum(right) - sum(left)) / 2
    climb = abs(drift(start, cut) + drift(cut, end)) / 2 * apart
    return min(whole, 1.3 * max(abs(mean(*right) - mean(*left)) - climb, 0.0))


def _refine(cut: int, table: Sequence[Sequence[float]], times: Sequence[float]) -> float:
    """Return the time of a change, from how the intervals beside it lie between the levels."""
    count = len(times) - 1
    sides = []
    for curve in table:
        before = fmean(curve[max(0, cut - 4) : max(cut - 1, 1)])
        after = fmean(curve[min(cut + 1, count - 1) : cut + 4])
        sides.append((abs(after - before), before, after, curve))
    _, low, high, clearest = max(sides, key=lambda side: side[0])
    if low == high:
        return float(times[cut])
    moment = float(times[cut - 1])
    for interval in (cut - 1, cut):
        share = min(1.0, max(0.0, (high - clearest[interval]) / (high - low)))
        moment += share * (times[interval + 1] - times[interval])
    return moment
