"""The gate's rule on plain values."""

from __future__ import annotations

import math
import random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlflow_perf.analysis.judgement import judge
from mlflow_perf.errors import SettingError

CALM = [100.0, 101.0, 99.0, 100.5, 99.5, 100.2, 100.1, 99.9, 100.3, 99.8]
NOISY = [100.0, 160.0, 80.0, 150.0, 90.0, 95.0, 140.0, 85.0, 120.0, 105.0]
POSITIVE = st.floats(0.1, 1e6)


def test_a_clear_regression_fails_and_a_small_one_passes() -> None:
    """On a calm base one new run is enough: +30% is beyond a limit of 10%, +5% is not."""
    assert not judge(CALM, [130.0], limit_pct=10).passed
    assert judge(CALM, [105.0], limit_pct=10).passed


def test_higher_may_be_better() -> None:
    """For a throughput, less is worse and more never is."""
    assert not judge(CALM, [70.0], limit_pct=10, better="higher").passed
    assert judge(CALM, [200.0], limit_pct=10, better="higher").passed


def test_where_noise_may_explain_it_the_judgement_asks_for_runs() -> None:
    """One run beyond the limit of a noisy base passes, and says how many more would tell."""
    found = judge(NOISY, [150.0], limit_pct=10)
    assert (found.passed, found.outcome) == (True, "noise")
    assert found.more_runs > 0
    assert f"{found.more_runs} more new run" in found.how


def test_where_noise_may_hide_it_the_judgement_asks_for_runs() -> None:
    """One run within the limit says little if the base's own runs differ by more."""
    found = judge(NOISY, [105.0], limit_pct=10)
    assert found.passed
    assert found.more_runs > 0


def test_the_runs_that_it_asked_for_decide() -> None:
    """A doubled time in the noise is found by as many more runs as were asked for."""
    chance = random.Random(2)
    first = judge(NOISY, [150.0], limit_pct=10)
    values = [150.0, *(2 * chance.choice(NOISY) for _ in range(first.more_runs))]
    found = judge(NOISY, values, limit_pct=10)
    assert not found.passed
    assert found.p is not None


def test_a_limit_of_one_per_cent_holds_where_there_is_no_noise() -> None:
    """The margin beyond the worst run of the base is never wider than the limit."""
    assert not judge([100.0] * 5, [103.0], limit_pct=1).passed


def test_one_run_against_one_says_that_noise_is_not_known() -> None:
    """Without repeats the two values decide."""
    found = judge([100.0], [120.0], limit_pct=10)
    assert not found.passed
    assert "noise cannot be told" in found.how


@given(st.lists(POSITIVE, min_size=1, max_size=12), st.floats(0, 50))
def test_a_base_against_itself_passes(values: list[float], limit: float) -> None:
    """The same values are no regression at any limit."""
    for better in ("lower", "higher"):
        assert judge(values, values, limit_pct=limit, better=better).passed


@given(st.lists(POSITIVE, min_size=1, max_size=12), POSITIVE, POSITIVE)
def test_a_worse_run_never_passes_where_a_better_one_failed(
    base: list[float], one: float, other: float
) -> None:
    """With one new run, failing is monotone in its value."""
    low, high = sorted((one, other))
    if not judge(base, [low], limit_pct=10).passed:
        assert not judge(base, [high], limit_pct=10).passed


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"base": []}, "at least one"),
        ({"new": [math.nan]}, "finite"),
        ({"limit_pct": -1.0}, "limit_pct"),
        ({"better": "faster"}, "'lower' or 'higher'"),
        ({"alpha": 0.0}, "alpha"),
    ],
)
def test_bad_arguments_are_named(change: dict[str, Any], word: str) -> None:
    """Nothing to judge, NaN and unknown settings are errors that say so."""
    with pytest.raises(SettingError, match=word):
        judge(**{"base": CALM, "new": [100.0], "limit_pct": 10.0, **change})


def test_arrays_are_judged_as_lists_are() -> None:
    """Values often come from numpy or pandas."""
    base, new = [1.0, 1.1, 1.0, 0.9], [1.6]
    arrays: list[Any] = [np.array(base), np.array(new)]
    assert judge(*arrays, limit_pct=10) == judge(base, new, limit_pct=10)
