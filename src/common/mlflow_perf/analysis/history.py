"""Finds the runs of a component's past at which a metric changed its level."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from mlflow_perf.errors import SettingError

Array = npt.NDArray[np.float64]

_SHORTEST = 3
"""A level lasts for at least so many values: one or two may be outliers."""

# No level is searched further back than this, which bounds the time; longer ones are joined again.
_LONGEST = 1000

# The best splits are found within a few moves.
_MOST_MOVES = 20

# What one more level costs, in noise variances per logarithm of the length.
_PENALTY = 1.5

# The rank test's bound, in standard deviations: one false change in 1,500 comparisons.
_SIGMAS = 3.4

# Few values never reach that bound. They count if both levels do not overlap and are far apart.
_CLEAR_DEVIATIONS = 3.0
_CLEAR_PCT = 5.0


def change_points(values: Sequence[float]) -> list[int]:
    """Return the index of the first value after each change of level, ascending.

    The values are replaced by their ranks, so that outliers and heavy tails weigh no more than
    other values. The levels that explain the ranks with the least squares and the fewest changes
    are searched exactly. Each change then moves to where the values themselves part best. It has
    to pass a rank test between its two levels, or the levels have to be far apart without overlap;
    the weakest change that does neither is dropped until all hold.

    Args:
        values: One metric of a component's runs, oldest first.

    Raises:
        SettingError: When a value is not finite.
    """
    series = np.asarray(values, dtype=np.float64)
    if series.ndim != 1 or not np.isfinite(series).all():
        raise SettingError("Change points need one list of finite values; leave out NaN.")
    if len(series) < 2 * _SHORTEST or series.min() == series.max():
        return []
    changes = _split(rank_values(series) / len(series) * math.sqrt(12.0))
    while changes:
        changes = _place(changes, series)
        edges = [0, *changes, len(series)]
        strengths = [
            _compare(series[start:middle], series[middle:end])
            for start, middle, end in zip(edges, edges[1:], edges[2:], strict=False)
        ]
        weakest = int(np.argmin(strengths))
        if strengths[weakest] >= 1.0:
            break
        changes.pop(weakest)
    return changes


def rank_values(values: Array) -> Array:
    """Return the rank of each value from 0; equal values share their mean rank."""
    ordered = np.sort(values)
    below = np.searchsorted(ordered, values, "left")
    return np.asarray(below + np.searchsorted(ordered, values, "right") - 1, np.float64) / 2.0


def _split(scores: Array) -> list[int]:
    """Return the changes of the levels with the least squares and penalties (Jackson et al. 2005).

    Args:
        scores: Values of variance 1.
    """
    count = len(scores)
    # The noise within a level, from neighbours, so that the changes themselves do not add to it.
    noise = float(np.median(np.abs(np.diff(scores)))) / 0.954
    penalty = _PENALTY * math.log(count) * min(max(noise**2, 0.02), 1.0)
    sums = np.concatenate([[0.0], np.cumsum(scores)])
    squares = np.concatenate([[0.0], np.cumsum(scores**2)])
    costs = np.full(count + 1, np.inf)
    costs[0] = -penalty
    starts = np.zeros(count + 1, np.int64)
    for end in range(_SHORTEST, count + 1):
        first = max(0, end - _LONGEST)
        last = end - _SHORTEST + 1
        lengths = end - np.arange(first, last)
        within = squares[end] - squares[first:last] - (sums[end] - sums[first:last]) ** 2 / lengths
        totals = costs[first:last] + within + penalty
        best = int(np.argmin(totals))
        costs[end], starts[end] = totals[best], first + best
    changes: list[int] = []
    end = int(starts[count])
    while end > 0:
        changes.insert(0, end)
        end = int(starts[end])
    return changes


def _place(changes: Sequence[int], series: Array) -> list[int]:
    """Return each change moved to the best split between its neighbours.

    Ranks show that there is a change, but not just where: they leave no gap between two levels.
    """
    edges = [0, *changes, len(series)]
    for _ in range(_MOST_MOVES):
        moved = list(edges)
        for i in range(1, len(edges) - 1):
            start, middle, end = moved[i - 1 : i + 2]
            moved[i] = start + _find_split(series[start:end], middle - start)
        if moved == edges:
            break
        edges = moved
    return edges[1:-1]


def _find_split(values: Array, guess: int) -> int:
    """Return the split into two levels that deviate least from their medians.

    The search starts from the guess and from both ends, because a short level at an end hardly
    changes the medians of a split in the middle.
    """
    best = math.inf, guess
    for first in (guess, _SHORTEST, len(values) - _SHORTEST):
        split = first
        for _ in range(_MOST_MOVES):
            before = np.abs(values - np.median(values[:split]))
            after = np.abs(values - np.median(values[split:]))
            sums = np.cumsum(before - after)[_SHORTEST - 1 : len(values) - _SHORTEST]
            before_move, split = split, _SHORTEST + int(np.argmin(sums))
            best = min(best, (float(after.sum() + sums.min()), split))
            if split == before_move:
                break
    return best[1]


def _compare(before: Array, after: Array) -> float:
    """Return how clearly two levels differ: 1 or more is clear enough."""
    centres = float(np.median(before)), float(np.median(after))
    middle, gap = (centres[0] + centres[1]) / 2.0, centres[1] - centres[0]
    # A value beside the change that lies nearer to the other level leaves too few for its own.
    if (before[-1] - middle) * gap > 0 or (after[0] - middle) * gap < 0:
        return 0.0
    ranks = rank_values(np.concatenate([before, after]))
    spread = float(np.var(ranks)) * len(before) * len(after) / (len(ranks) - 1)
    distance = abs(float(ranks[len(before) :].sum() - len(after) * ranks.mean()))
    # The longer the levels, the more places there were at which chance could look like a change.
    bound = math.sqrt(_SIGMAS**2 + 2.0 * math.log(max(len(ranks) / 100.0, 1.0)))
    strength = distance / math.sqrt(spread) / bound if spread > 0 else 0.0
    deviations = np.abs(np.concatenate([before - centres[0], after - centres[1]]))
    low, high = (before, after) if gap > 0 else (after, before)
    if (
        low.max() < high.min()
        and abs(gap) >= _CLEAR_DEVIATIONS * deviations.mean()
        and abs(gap) >= _CLEAR_PCT / 100.0 * max(map(abs, centres))
    ):
        return max(strength, 1.0)
    return strength
