"""Curves are cut where their levels change, and nowhere else."""

from __future__ import annotations

import random

import pytest

from mlflow_perf.analysis.levels import split_levels


def _curve(seed: int, *levels: tuple[int, float], noise: float = 0.2) -> list[float]:
    dice = random.Random(seed)
    return [value + noise * dice.gauss(0, 1) for count, value in levels for _ in range(count)]


@pytest.mark.parametrize("seed", range(20))
def test_each_change_of_any_curve_is_found_and_no_other(seed: int) -> None:
    """Two noisy curves that change at 30 and at 70 s: two cuts, within a second."""
    one, other = _curve(seed, (30, 0), (70, 3)), _curve(seed + 99, (70, 1), (30, 5))
    cuts = split_levels(range(101), [one, other])
    assert cuts == pytest.approx([30, 70], abs=1.0)


def test_noise_and_a_slow_climb_are_one_level() -> None:
    """What drifts, or has a peak of one interval, has no change of level."""
    climb = [i / 20 + value for i, value in enumerate(_curve(1, (200, 0)))]
    peak = _curve(2, (200, 0))
    peak[77] = 9
    assert split_levels(range(201), [climb]) == []
    assert split_levels(range(201), [peak]) == []


def test_a_change_within_an_interval_is_placed_by_its_value() -> None:
    """Of an interval with a mean at a quarter of the step, the first three quarters are before."""
    curve = [0.0] * 5 + [1.0] + [4.0] * 5
    assert split_levels(range(12), [curve]) == pytest.approx([5.75])


@pytest.mark.parametrize("share", [0.2, 0.5, 0.8])
def test_an_interval_across_a_great_change_is_no_level_of_its_own(share: float) -> None:
    """One CPU, then sixteen: one cut, within the interval that lies across it."""
    across = 40.0 * share + 2.5 * (1 - share)
    curves = [[2.5] * 30 + [across] + [40.0] * 30, [1.0] * 61]
    assert split_levels(range(62), curves) == pytest.approx([31 - share])


@pytest.mark.parametrize("seed", range(5))
def test_a_phase_that_is_noisier_than_the_others_is_one_level(seed: int) -> None:
    """Eight CPUs that vary by 20% beside one that hardly does: no cut within the eight."""
    quiet, noisy = _curve(seed, (60, 1), noise=0.02), _curve(seed, (60, 10), noise=2.0)
    assert split_levels(range(181), [quiet + noisy + quiet]) == pytest.approx([60, 120], abs=1.0)


def test_levels_are_few_and_found_fast_in_a_long_series() -> None:
    """A thousand intervals that change without end give at most the wanted number of levels."""
    curve = _curve(3, *[(25, 5.0 * (i % 2)) for i in range(40)])
    assert len(split_levels(range(1001), [curve], most=12)) < 12
    assert split_levels([0.0], []) == []
