"""Rules of the sketch: within 1%, bounded, and adding up."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlflow_perf.errors import DocumentError
from mlflow_perf.model.sketch import RELATIVE_ERROR, Distribution, Sketch

values = st.floats(min_value=1e-8, max_value=1e12)
many = st.lists(values, min_size=1, max_size=200)


def _sketch(numbers: list[float]) -> Sketch:
    sketch = Sketch()
    for number in numbers:
        sketch.add(number)
    return sketch


def _distribution(numbers: list[float]) -> Distribution:
    distribution = Distribution()
    for number in numbers:
        distribution.add(number)
    return distribution


@given(many, st.floats(min_value=0, max_value=100))
def test_percentile_is_within_one_percent_of_numpy(numbers: list[float], percent: float) -> None:
    """Any percentile lies within 1% of numpy's for the same values."""
    (estimate,) = _sketch(numbers).percentiles([percent])
    assert estimate == pytest.approx(np.percentile(numbers, percent), rel=RELATIVE_ERROR * 1.001)


@given(many, many, many)
def test_merging_is_associative_and_commutative(
    a: list[float], b: list[float], c: list[float]
) -> None:
    """The order of merging does not matter, and the result is that of one sketch of all values."""
    left, right = _sketch(a), _sketch(c)
    left.merge(_sketch(b))
    left.merge(_sketch(c))
    right.merge(_sketch(b))
    right.merge(_sketch(a))
    assert left.buckets == right.buckets == _sketch(a + b + c).buckets


@given(many)
def test_sketch_survives_json(numbers: list[float]) -> None:
    """A sketch is the same after its round trip through strict JSON."""
    sketch = _sketch(numbers)
    text = json.dumps(sketch.as_dict(), allow_nan=False)
    assert Sketch.from_dict(json.loads(text)).buckets == sketch.buckets


def test_zero_and_tiny_values_count_as_zero() -> None:
    """Values below a billionth share the bucket whose estimate is zero."""
    assert _sketch([0.0, 1e-12, 0.0]).percentiles([0, 100]) == [0.0, 0.0]


@given(st.floats(min_value=0, max_value=1.7e308))
def test_any_float_has_a_bucket_that_can_be_read_back(number: float) -> None:
    """Every finite value that is not negative can be counted, written and estimated."""
    sketch = Sketch.from_dict(_sketch([number]).as_dict())
    assert np.isfinite(sketch.percentiles([50])[0])


def test_buckets_are_bounded() -> None:
    """A million values over fifteen orders of magnitude fill at most 1,800 buckets."""
    numbers = 10 ** np.linspace(-6, 9, 100_000)
    assert len(_sketch(list(numbers)).buckets) < 1800


@pytest.mark.parametrize(
    "data",
    [
        {},
        {"relative_error": 0.02, "bucket": [1], "count": [1]},
        {"relative_error": 0.01, "bucket": [1], "count": []},
        {"relative_error": 0.01, "bucket": [1, 1], "count": [1, 1]},
        {"relative_error": 0.01, "bucket": [-1], "count": [1]},
        {"relative_error": 0.01, "bucket": ["1"], "count": [1]},
        {"relative_error": 0.01, "bucket": [10**9], "count": [1]},
        {"relative_error": 0.01, "bucket": None, "count": None},
    ],
)
def test_damaged_sketch_is_refused(data: dict[str, object]) -> None:
    """What as_dict did not write raises DocumentError."""
    with pytest.raises(DocumentError):
        Sketch.from_dict(data)


@given(st.lists(values, max_size=Distribution.EXACT), st.floats(min_value=0, max_value=100))
def test_few_values_have_exact_percentiles(numbers: list[float], percent: float) -> None:
    """Up to EXACT values, percentiles are numpy's own."""
    (exact,) = _distribution(numbers).percentiles([percent])
    assert exact == pytest.approx(np.percentile(numbers, percent) if numbers else 0.0, rel=1e-12)


@given(many, many, st.sampled_from([1, 10]))
def test_distribution_of_a_merge_is_that_of_all_values(
    a: list[float], b: list[float], times: int
) -> None:
    """Merged distributions give the same figures as a single distribution of all values."""
    merged = _distribution(a * times)
    merged.merge(_distribution(b * times))
    whole = _distribution((a + b) * times)
    assert (merged.count, merged.smallest, merged.largest) == (
        whole.count, whole.smallest, whole.largest,
    )  # fmt: skip
    assert merged.total == pytest.approx(whole.total)
    assert merged.percentiles([0, 50, 90, 100]) == pytest.approx(
        whole.percentiles([0, 50, 90, 100])
    )


@given(st.lists(values, max_size=100), st.sampled_from([1, 20]))
def test_distribution_survives_json(numbers: list[float], times: int) -> None:
    """A distribution is the same after its round trip through strict JSON, empty ones too."""
    before = _distribution(numbers * times)
    after = Distribution.from_dict(json.loads(json.dumps(before.as_dict(), allow_nan=False)))
    assert after.as_dict() == before.as_dict()
    assert after.percentiles([90]) == before.percentiles([90])


@pytest.mark.parametrize(
    "data",
    [{}, {"count": 1, "total": 1.0}, {"count": 2, "total": 1.0, "min": 1, "max": 1, "samples": [1]},
     {"count": 1, "total": -1.0, "min": 1, "max": 1, "samples": [1]},
     {"count": 1, "total": 1.0, "min": 1, "max": 1, "samples": ["1"]}],
)  # fmt: skip
def test_damaged_distribution_is_refused(data: dict[str, object]) -> None:
    """What as_dict did not write raises DocumentError."""
    with pytest.raises(DocumentError):
        Distribution.from_dict(data)


def test_bucket_of_a_histogram_counts_as_many_values() -> None:
    """add_bucket takes in a bucket of someone else's histogram with its count and sum."""
    distribution = Distribution()
    distribution.add_bucket(0.5, 9, 4.5)
    distribution.add_bucket(2.0, 1, 2.0)
    assert (distribution.count, distribution.total) == (10, 6.5)
    assert distribution.percentiles([50])[0] == pytest.approx(0.5, rel=0.01)
