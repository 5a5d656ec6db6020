"""The Mann–Whitney test, exact for small samples, ties included. Imports nothing of ours.

scipy has it too, but MLflow's light packages do not bring scipy, and a gate must not need it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

__all__ = ["calculate_least_p", "calculate_p"]

_EXACT_MAX = 40
"""Up to so many values in all the distribution is counted out; beyond, the normal one is as good
(within 0.001 of the exact p at 20 against 20)."""


def calculate_p(base: Sequence[float], new: Sequence[float]) -> float:
    """Return the one-sided p: how likely `new` would rank so high if both were alike.

    Args:
        base: At least one value.
        new: At least one value.
    """
    ranks = _double_ranks([*base, *new])
    observed = sum(ranks[len(base) :])
    if len(ranks) <= _EXACT_MAX:
        return _exact(ranks, len(new), observed)
    return _normal(ranks, len(new), observed)


def calculate_least_p(base_count: int, new_count: int) -> float:
    """Return the smallest p that samples of these sizes can reach."""
    return 1.0 / math.comb(base_count + new_count, new_count)


def _double_ranks(values: Sequence[float]) -> list[int]:
    """Return twice the rank of each value, from 1; equal values share their mean rank."""
    below = 0
    ranks: dict[float, int] = {}
    for value, count in sorted(Counter(values).items()):
        ranks[value] = 2 * below + count + 1
        below += count
    return [ranks[value] for value in values]


def _exact(ranks: Sequence[int], size: int, observed: int) -> float:
    """Return the share of all choices of `size` ranks whose sum is at least the observed one."""
    ways: list[Counter[int]] = [Counter({0: 1}), *(Counter[int]() for _ in range(size))]
    for rank in ranks:
        for chosen in range(size, 0, -1):
            for total, count in ways[chosen - 1].items():
                ways[chosen][total + rank] += count
    reached = sum(count for total, count in ways[size].items() if total >= observed)
    return reached / math.comb(len(ranks), size)


def _normal(ranks: Sequence[int], size: int, observed: int) -> float:
    """Return the p of the normal distribution, corrected for ties and for whole steps."""
    total = len(ranks)
    mean = size * (total + 1)
    ties = sum(count**3 - count for count in Counter(ranks).values())
    rest = total - size
    # In double ranks, so four times the variance of the rank sum.
    variance = size * rest / 3.0 * ((total + 1) - ties / (total * (total - 1)))
    if variance <= 0:
        return 1.0
    return 0.5 * math.erfc((observed - mean - 1) / math.sqrt(2 * variance))
