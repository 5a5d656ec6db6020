"""The Mann–Whitney test, exact for small samples, also with ties.

SciPy has this test too, but MLflow's light packages do not bring SciPy, and a gate must work
without it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

_EXACT_MAX = 40
"""Up to this many values in all, the distribution is counted exactly. Beyond, the normal
distribution is as good (within 0.001 of the exact p at 20 against 20)."""


def calculate_p(base: Sequence[float], new: Sequence[float]) -> float:
    """Return the one-sided p: how likely `new` would rank so high if both were alike.

    Args:
        base: At least one value.
        new: At least one value.
    """
    values = [*base, *new]
    # Twice the rank of each value, from 1; equal values share their mean rank.
    rank_of: dict[float, int] = {}
    below = 0
    for value, count in sorted(Counter(values).items()):
        rank_of[value] = 2 * below + count + 1
        below += count
    ranks = [rank_of[value] for value in values]
    observed = sum(ranks[len(base) :])
    count_p = _count_exactly if len(ranks) <= _EXACT_MAX else _approximate
    return count_p(ranks, len(new), observed)


def calculate_least_p(base_count: int, new_count: int) -> float:
    """Return the smallest p that samples of these sizes can reach."""
    return 1.0 / math.comb(base_count + new_count, new_count)


def _count_exactly(ranks: Sequence[int], size: int, observed: int) -> float:
    """Return the share of all choices of `size` ranks whose sum is at least the observed one."""
    ways: list[Counter[int]] = [Counter({0: 1}), *(Counter[int]() for _ in range(size))]
    for rank in ranks:
        for chosen in range(size, 0, -1):
            for total, count in ways[chosen - 1].items():
                ways[chosen][total + rank] += count
    reached = sum(count for total, count in ways[size].items() if total >= observed)
    return reached / math.comb(len(ranks), size)


def _approximate(ranks: Sequence[int], size: int, observed: int) -> float:
    """Return the p of the normal distribution, corrected for ties and for whole steps."""
    total = len(ranks)
    mean = size * (total + 1)
    ties = sum(count**3 - count for count in Counter(ranks).values())
    rest = total - size
    # Double ranks, so this is four times the variance of the rank sum.
    variance = size * rest / 3.0 * ((total + 1) - ties / (total * (total - 1)))
    if variance <= 0:
        return 1.0
    return 0.5 * math.erfc((observed - mean - 1) / math.sqrt(2 * variance))
