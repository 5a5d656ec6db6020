"""Rules of operations as MLflow metrics: which operations, and under which keys."""

from __future__ import annotations

import logging
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mlflow.utils.validation import _validate_metric

from mlflow_perf import OperationMetrics
from mlflow_perf.recorders.operations.names import MAX_OPERATIONS, metric_name


def test_keys_and_figures() -> None:
    """Each operation gives the eight figures, and a counter its sum as count."""
    recorder = OperationMetrics()
    for number in range(1, 101):
        recorder.add_time("load.read", None, float(number))
    recorder.add_counter("rows", None, 7)
    metrics = recorder.summary_metrics()
    assert metrics == pytest.approx(
        {
            "ops/load.read/count": 100, "ops/load.read/total_ms": 5050,
            "ops/load.read/avg_ms": 50.5, "ops/load.read/min_ms": 1,
            "ops/load.read/max_ms": 100,
            "ops/load.read/p50_ms": 50.5, "ops/load.read/p95_ms": 95.05,
            "ops/load.read/p99_ms": 99.01, "ops/rows/count": 7,
        },
        rel=0.01,
    )  # fmt: skip
    assert metrics["ops/load.read/total_ms"] == 5050


@settings(max_examples=30)
@given(st.text(min_size=1, max_size=300))
def test_any_name_becomes_a_key_that_mlflow_takes(name: str) -> None:
    """Whatever the name, MLflow's own check of metric keys passes."""
    recorder = OperationMetrics()
    recorder.add_time(name, None, 1.0)
    for key, value in recorder.summary_metrics().items():
        _validate_metric(key, value, 0, 0)  # type: ignore[no-untyped-call]  # of MLflow


def test_names_that_clean_to_the_same_key_add_up() -> None:
    """Two names which MLflow's rules make equal are summed, not overwritten."""
    recorder = OperationMetrics()
    recorder.add_time("a*b", None, 1.0)
    recorder.add_time("a?b", None, 3.0)
    assert recorder.summary_metrics()["ops/a_b/total_ms"] == 4


def test_a_counter_with_the_name_of_an_operation_is_told(caplog: pytest.LogCaptureFixture) -> None:
    """The key is that of the operation, and its sum is not there: one line says so."""
    recorder = OperationMetrics()
    recorder.add_time("batch", None, 1.0)
    recorder.add_counter("batch", None, 32)
    assert recorder.summary_metrics()["ops/batch/count"] == 1
    assert "Counters with the name of a timed operation are in the document only: batch." in [
        record.getMessage() for record in caplog.records
    ]


def test_long_names_stay_apart() -> None:
    """Names cut to MLflow's length keep a hash, so that two of them do not meet."""
    assert metric_name("x" * 400 + "1") != metric_name("x" * 400 + "2")


def test_only_the_largest_operations_become_metrics(caplog: pytest.LogCaptureFixture) -> None:
    """Of many operations those with the most total time become metrics, with one warning."""
    recorder = OperationMetrics()
    for number in range(MAX_OPERATIONS + 50):
        recorder.add_time(f"op {number}", None, float(number + 1))
    with caplog.at_level(logging.WARNING):
        metrics = recorder.summary_metrics()
    assert len(metrics) == MAX_OPERATIONS * 8
    assert "ops/op 49/count" not in metrics
    assert "ops/op 50/count" in metrics
    assert "most total time" in caplog.text


def test_counters_beyond_the_bound_and_beyond_floats(caplog: pytest.LogCaptureFixture) -> None:
    """Too many counters, or a counter beyond a float, cost a warning and no error."""
    recorder = OperationMetrics()
    for number in range(MAX_OPERATIONS + 1):
        recorder.add_counter(f"counter {number}", None, 1)
    recorder.add_counter("counter 0", None, -(10**400))
    metrics = recorder.summary_metrics()
    assert len(metrics) == MAX_OPERATIONS
    assert all(math.isfinite(value) for value in metrics.values())
    assert "counters" in caplog.text
