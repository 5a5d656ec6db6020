"""What was recorded between two moments."""

from __future__ import annotations

import copy

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlflow_perf.recorders.operations import OperationMetrics
from mlflow_perf.recorders.operations.difference import subtract

times = st.lists(st.tuples(st.sampled_from("ab"), st.floats(0.01, 1e6)), max_size=30)


def record(recorder: OperationMetrics, some: list[tuple[str, float]]) -> None:
    """Record some times."""
    for name, time_ms in some:
        recorder.add_time(name, None, time_ms)


@given(before=times, after=times)
def test_it_is_what_came_after(
    before: list[tuple[str, float]], after: list[tuple[str, float]]
) -> None:
    """Count, total and percentiles are those of the second part alone; extremes within 1%."""
    recorder, alone = OperationMetrics(), OperationMetrics()
    record(recorder, before)
    then = copy.deepcopy(recorder)
    record(recorder, after)
    record(alone, after)
    found, wanted = subtract(recorder, then).aggregate_times(), alone.aggregate_times()
    assert found.keys() == wanted.keys()
    for name, stats in wanted.items():
        assert found[name].count == stats.count
        assert found[name].buckets == stats.buckets
        assert found[name].total_time_ms == pytest.approx(stats.total_time_ms, abs=1e-6)
        assert found[name].max_time_ms == pytest.approx(stats.max_time_ms, rel=0.011)
        assert found[name].min_time_ms == pytest.approx(stats.min_time_ms, rel=0.011)


def test_counters_and_attributes_are_differences_too() -> None:
    """A counter gives its growth, and an attribute is there if it was set since."""
    recorder = OperationMetrics()
    recorder.add_counter("rows", None, 5)
    recorder.add_attribute("file", None, "old")
    then = copy.deepcopy(recorder)
    recorder.add_counter("rows", "k", 7)
    recorder.add_attribute("size", None, 3)
    found = subtract(recorder, then)
    assert found.aggregate_counters() == {"rows": 7}
    metrics = found.get_metrics(None)
    assert metrics is not None
    assert metrics.attributes == {"size": 3}


def test_nothing_is_left_of_the_same_moment() -> None:
    """A run without operations has none, whatever the process recorded before."""
    recorder = OperationMetrics()
    recorder.add_time("load", None, 1.0)
    assert subtract(recorder, copy.deepcopy(recorder)).is_empty()
