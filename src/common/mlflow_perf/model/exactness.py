"""How exact a share of time is that comes from stack samples."""

from __future__ import annotations

import math
from collections.abc import Iterable

Seen = tuple[float, float, float, int]
"""Begin and length of a bucket of time, seconds of threads in it, number of samples."""

_OF_95_PCT = 1.96


def find_share_error(share: float, samples: float) -> float:
    """Return the half width of the 95% interval of a share; both are from 0 to 1.

    Shares of samples are binomial. Two samples for and two against are added (Agresti and Coull,
    1998): what no sample has found may still have run.

    Args:
        share: The share of the time.
        samples: How many samples it comes from, as `count_equal_samples` counts them.
    """
    if samples <= 0.0:
        return 1.0
    middle = (min(1.0, max(0.0, share)) * samples + 2.0) / (samples + 4.0)
    return min(1.0, _OF_95_PCT * math.sqrt(middle * (1.0 - middle) / samples))


def count_equal_samples(seen: Iterable[Seen]) -> float:
    """Return how many samples of equal weight are as exact as those of one process.

    The sampler takes more samples at first than later, and fewer where they cost more (the sum is
    Kish's effective sample size). Samples of several threads at one moment count as one, because
    threads of one job often do the same at the same time.
    """
    buckets: dict[float, list[float]] = {}
    first, last = math.inf, -math.inf
    for begin, length, seconds, count in seen:
        had = buckets.setdefault(begin, [0.0, 0.0])
        had[0] += seconds
        had[1] += count
        first, last = min(first, begin), max(last, begin + (length or seconds))
    whole = sum(seconds for seconds, _ in buckets.values())
    groups: list[list[float]] = []
    for _, had in sorted(buckets.items()):
        # Time without a sample belongs to the sample before it, or else to the one after it.
        if groups and not (had[1] and groups[-1][1]):
            groups[-1] = [groups[-1][0] + had[0], groups[-1][1] + had[1]]
        else:
            groups.append(had)
    squares = sum(seconds**2 / count for seconds, count in groups if count)
    side_by_side = max(1.0, whole / (last - first)) if last > first else 1.0
    return whole**2 / squares / side_by_side if squares else 0.0


def pool_samples(parts: Iterable[tuple[float, float]]) -> float:
    """Return the number of equal samples of several processes or nodes together.

    Args:
        parts: Of each its seconds, and its number of equal samples.
    """
    known = [(seconds, samples) for seconds, samples in parts if seconds > 0.0 and samples > 0.0]
    squares = sum(seconds**2 / samples for seconds, samples in known)
    return sum(seconds for seconds, _ in known) ** 2 / squares if squares else 0.0
