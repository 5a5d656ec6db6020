"""Rules of TimeStats and Metrics."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlflow_perf import Metrics, MlflowPerfError, TimeStats
from mlflow_perf.errors import SettingError

times = st.lists(st.integers(min_value=0, max_value=10**6), max_size=20)


def _stats(numbers: list[int], start: int = 1) -> TimeStats:
    stats = TimeStats()
    for place, number in enumerate(numbers):
        stats.add_time(number)
        stats.last_timestamp = float(start + place)
    return stats


def test_empty_statistics_have_no_shortest_time() -> None:
    """The identity has count 0 and an infinite minimum, as ProxyStore's."""
    assert TimeStats() == TimeStats(0, 0.0, math.inf, 0.0, 0.0, 0.0)


def test_add_time_keeps_all_six_figures() -> None:
    """Count, mean, extremes, the last time and its moment follow the times added."""
    stats = _stats([4, 1, 7])
    assert stats.as_dict() == {
        "count": 3, "avg_time_ms": 4.0, "min_time_ms": 1.0, "max_time_ms": 7.0,
        "last_time_ms": 7.0, "last_timestamp": 3.0,
    }  # fmt: skip


@given(times)
def test_empty_statistics_are_the_identity(numbers: list[int]) -> None:
    """Adding TimeStats() on either side changes nothing, to the last bit."""
    stats = _stats(numbers)
    assert stats + TimeStats() == stats == TimeStats() + stats
    assert (stats + TimeStats()).percentile(50) == stats.percentile(50)


@given(times, times, times)
def test_adding_is_associative(a: list[int], b: list[int], c: list[int]) -> None:
    """(a + b) + c is a + (b + c), and both are the statistics of all the times in order."""
    x, y, z = _stats(a), _stats(b, 100), _stats(c, 200)
    left, right, whole = (x + y) + z, x + (y + z), _stats(a + b + c)
    assert left.count == right.count == whole.count
    assert left.avg_time_ms == pytest.approx(right.avg_time_ms)
    assert left.avg_time_ms == pytest.approx(whole.avg_time_ms)
    assert left.last_time_ms == right.last_time_ms == whole.last_time_ms
    assert left.percentile(90) == right.percentile(90) == whole.percentile(90)


def test_sum_adds_statistics_up() -> None:
    """sum() works on statistics without a start value."""
    assert sum([_stats([1, 2]), _stats([3])], TimeStats()).count == 3


def test_the_newer_last_time_wins() -> None:
    """The last time of a sum is the one with the later timestamp, on either side."""
    old, new = _stats([5], start=1), _stats([9], start=2)
    assert (old + new).last_time_ms == (new + old).last_time_ms == 9


@pytest.mark.parametrize("wrong", [-1, math.nan, math.inf, "3", None, [1]])
def test_wrong_time_is_refused(wrong: object) -> None:
    """A time that is negative, not finite or no number raises at the call and changes nothing."""
    stats = _stats([1])
    with pytest.raises(MlflowPerfError):
        stats.add_time(wrong)  # type: ignore[arg-type]
    assert stats.count == 1


def test_statistics_without_a_distribution_know_no_percentile() -> None:
    """Statistics made from the six figures alone give None, unless all times were the same."""
    assert TimeStats(2, 2.0, 1.0, 3.0, 3.0, 1.0).percentile(50) is None
    assert TimeStats(2, 2.0, 2.0, 2.0, 2.0, 1.0).percentile(50) == 2.0


@given(st.lists(st.floats(min_value=0.001, max_value=1e6), min_size=1, max_size=50))
def test_percentiles_stay_between_the_extremes(numbers: list[float]) -> None:
    """No percentile lies outside the shortest and the longest time."""
    stats = TimeStats()
    for number in numbers:
        stats.add_time(number)
    for percent in (0, 50, 99, 100):
        estimate = stats.percentile(percent)
        assert estimate is not None
        assert stats.min_time_ms <= estimate <= stats.max_time_ms


@pytest.mark.parametrize("wrong", [-1, 100.5, math.nan, "50", None])
def test_a_percentile_is_from_0_to_100(wrong: Any) -> None:
    """Any other percentage raises."""
    stats = TimeStats()
    stats.add_time(1.0)
    stats.add_time(2.0)
    with pytest.raises(SettingError, match="percentile"):
        stats.percentile(wrong)


def test_time_statistics_are_a_dataclass_to_others() -> None:
    """As ProxyStore's, asdict and replace know the six fields, and nothing of the sketch."""
    stats = TimeStats(count=2, avg_time_ms=3.0, min_time_ms=1.0, max_time_ms=5.0)
    assert dataclasses.asdict(TimeStats()) == TimeStats().as_dict()
    assert dataclasses.asdict(Metrics(times={"a": stats}))["times"]["a"] == stats.as_dict()
    assert dataclasses.replace(stats, count=4) == TimeStats(4, 3.0, 1.0, 5.0)
    assert list(stats.as_dict()) == [
        "count", "avg_time_ms", "min_time_ms", "max_time_ms", "last_time_ms", "last_timestamp",
    ]  # fmt: skip
