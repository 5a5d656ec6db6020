"""The Mann–Whitney test, against counting by hand and against SciPy."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlflow_perf.analysis.mann_whitney import calculate_least_p, calculate_p


@given(
    st.lists(st.integers(0, 5), min_size=1, max_size=5),
    st.lists(st.integers(0, 5), min_size=1, max_size=4),
)
def test_the_exact_p_is_the_share_of_all_choices(base: list[int], new: list[int]) -> None:
    """The p is the share of all choices of as many values that rank at least as high."""
    every = [*base, *new]
    ranks = [sum(o < v for o in every) + (sum(o == v for o in every) + 1) / 2 for v in every]
    observed = sum(ranks[len(base) :])
    choices = list(itertools.combinations(ranks, len(new)))
    share = sum(sum(choice) >= observed - 1e-9 for choice in choices) / len(choices)
    assert calculate_p(base, new) == pytest.approx(share)


@pytest.mark.parametrize("sizes", [(30, 30), (100, 8), (21, 20)])
def test_the_normal_p_is_scipys(sizes: Sequence[int]) -> None:
    """Beyond 40 values the p equals that of SciPy's normal approximation, also with ties."""
    stats = pytest.importorskip("scipy.stats")
    chance = random.Random(4)
    base = [chance.randint(0, 20) for _ in range(sizes[0])]
    new = [chance.randint(3, 23) for _ in range(sizes[1])]
    expected = stats.mannwhitneyu(new, base, alternative="greater", method="asymptotic").pvalue
    assert calculate_p(base, new) == pytest.approx(expected, rel=1e-6)


def test_the_least_p_is_reached_by_samples_that_do_not_overlap() -> None:
    """Three above three is one choice of twenty."""
    assert calculate_p([1, 2, 3], [4, 5, 6]) == pytest.approx(calculate_least_p(3, 3))
    assert calculate_least_p(3, 3) == pytest.approx(0.05)
    assert calculate_p([1.0] * 30, [1.0] * 30) == 1.0
