"""Rules of recorded operations as JSON."""

from __future__ import annotations

import math
from typing import Any

import pytest

from mlflow_perf.errors import DocumentError
from mlflow_perf.recorders.operations.codec import from_dict, json_value, to_dict
from mlflow_perf.recorders.operations.stats import Metrics, TimeStats


def _metrics(count: int) -> Metrics:
    times = TimeStats()
    for _ in range(count):
        times.add_time(2.0, 5.0)
    return Metrics({"size": count}, {"hits": count}, {"get": times})


def test_keys_beyond_the_bound_are_summed_up() -> None:
    """Only the first keys are listed; the others are added to the records without a key."""
    data = to_dict({None: _metrics(1), "a": _metrics(2), "b": _metrics(4)}, {}, 1)
    assert [part["key"] for part in data["keys"]] == ["a"]
    assert data["counters"] == {"hits": 5}
    assert data["times"]["get"]["total_ms"] == 10.0
    assert data["attributes"] == {"size": 1}


def test_a_round_trip_changes_nothing() -> None:
    """from_dict gives what to_dict wrote, distributions included."""
    data = to_dict({None: _metrics(1), ("k", 1): _metrics(2)}, {"get": {7: 3}}, None)
    by_key, buckets = from_dict(data)
    assert to_dict(dict(by_key), buckets, None) == data


@pytest.mark.parametrize("value", [object(), math.nan, "x" * 20_000, {1: {2}}])
def test_an_attribute_that_is_no_json_becomes_text(value: Any) -> None:
    """A value that is too large or not strict JSON becomes text of at most 1,000 characters."""
    text = json_value(value)
    assert isinstance(text, str)
    assert len(text) <= 1000


def test_other_data_is_refused() -> None:
    """Data that to_dict did not write raises DocumentError."""
    with pytest.raises(DocumentError):
        from_dict({"counters": {"hits": True}})
