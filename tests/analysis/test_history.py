"""Change points of a metric's past."""

from __future__ import annotations

import itertools
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlflow_perf.analysis.history import change_points
from mlflow_perf.errors import SettingError

VALUES = st.lists(st.floats(-1e6, 1e6), max_size=60)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([10.0] * 10 + [20.0] * 10, [10]),
        ([10.0] * 5 + [20.0] * 5, [5]),
        ([1.0, 1.1, 0.9, 1.0, 1.05, 2.0, 2.1, 2.05, 1.9], [5]),
        ([5.0] * 20 + [9.0] * 20 + [5.0] * 20, [20, 40]),
        ([1.0] * 20 + [50.0] + [1.0] * 20, []),
        ([100.0] * 20 + [140.0] * 2, []),
        ([100.0] * 2 + [140.0] * 20, []),
        ([7.0] * 30, []),
        ([1.0, 2.0], []),
        ([], []),
    ],
)
def test_clear_steps_are_found_and_single_outliers_are_not(
    values: list[float], expected: list[int]
) -> None:
    """The index is that of the first value after the change."""
    assert change_points(values) == expected


@given(
    st.lists(st.integers(1, 30), min_size=2, max_size=3),
    st.permutations([100.0, 140.0, 90.0]),
)
def test_levels_without_noise_change_at_their_steps(
    lengths: list[int], levels: list[float]
) -> None:
    """A level of three values or more begins at its step; a shorter one there or not at all."""
    values = [level for length, level in zip(lengths, levels, strict=False) for _ in range(length)]
    steps = list(itertools.accumulate(lengths))[:-1]
    found = change_points(values)
    assert set(found) <= set(steps)
    if min(lengths) >= 3:
        assert found == steps


@pytest.mark.parametrize(
    ("first", "second"), [(3, 20), (5, 20), (6, 20), (10, 20), (20, 5), (20, 3)]
)
@pytest.mark.parametrize("deviation", [0.5, 3.0])
def test_a_clear_step_in_noise_is_found_at_its_place(
    first: int, second: int, deviation: float
) -> None:
    """However few values lie on one side, a step far above the noise is found exactly."""
    chance = random.Random(7)
    for _ in range(20):
        before = [chance.gauss(100, deviation) for _ in range(first)]
        after = [chance.gauss(140, deviation) for _ in range(second)]
        assert first in change_points([*before, *after])


def test_a_step_in_noise_is_found_close_to_its_place() -> None:
    """A step of twice the noise in 100 values is found within three values."""
    chance = random.Random(3)
    values = [chance.gauss(100, 5) for _ in range(60)] + [chance.gauss(110, 5) for _ in range(40)]
    (found,) = change_points(values)
    assert abs(found - 60) <= 3


def test_noise_rarely_has_changes() -> None:
    """Of 100 series of heavy-tailed noise, at most 15 have any change."""
    chance = random.Random(5)
    series = [[chance.expovariate(1.0) ** 2 for _ in range(80)] for _ in range(100)]
    assert sum(bool(change_points(values)) for values in series) <= 15


@given(VALUES)
def test_changes_leave_levels_of_three_values_or_more(values: list[float]) -> None:
    """Indices ascend, and every level between them has at least three values."""
    edges = [0, *change_points(values), len(values)]
    if len(edges) > 2:
        assert all(after - before >= 3 for before, after in itertools.pairwise(edges))


@given(st.lists(st.integers(0, 1000), min_size=6, max_size=60), st.integers(1, 9))
def test_the_unit_does_not_matter(values: list[int], factor: int) -> None:
    """The same values in another unit have the same changes."""
    assert change_points(values) == change_points([value * factor for value in values])


def test_a_level_may_be_longer_than_what_is_searched_at_once() -> None:
    """A step after 1,500 values is found, and no change where the search ends."""
    chance = random.Random(1)
    values = [chance.gauss(10, 0.2) for _ in range(1500)]
    (found,) = change_points([*values, *(value + 2 for value in values)])
    assert found == 1500


@pytest.mark.parametrize("values", [[1.0, float("nan")], [float("inf")] * 9])
def test_values_have_to_be_finite(values: list[float]) -> None:
    """NaN and infinity are an error that says so."""
    with pytest.raises(SettingError, match="finite"):
        change_points(values)
