"""Units, directions and values of metrics."""

from __future__ import annotations

import pytest

from mlflow_perf.analysis import metric_text


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (None, "s", "–"),
        (float("nan"), "s", "–"),
        (0.0, "MB", "0 MB"),
        (1537.2, "MB", "1,537 MB"),
        (39.96, "%", "40%"),
        (12.34, "s", "12.3 s"),
        (0.4217, "s", "0.422 s"),
        (3.0, "", "3"),
        (-5.25, "cores", "-5.25 cores"),
        (0.00001, "h", "1.00e-05 h"),
        (2.5e12, "", "2.50e+12"),
    ],
)
def test_a_value_has_three_figures_and_its_unit(value: float | None, unit: str, text: str) -> None:
    """Values have three significant digits; whole numbers lose none."""
    assert metric_text.format_value(value, unit) == text


@pytest.mark.parametrize(
    ("key", "unit", "better"),
    [
        ("duration_sec", "s", "lower"),
        ("cpu_avg_utilization_pct", "%", "higher"),
        ("ops/load/p95_ms", "ms", "lower"),
        ("ops/load/count", "", ""),
        ("ops/load/total_ms", "ms", ""),
        ("transfers/nixl/throughput_mb_s", "MB/s", "higher"),
        ("transfers/nixl/num_failed_transfers", "", "lower"),
        ("gpu3_avg_utilization_pct", "%", "higher"),
        ("accuracy", "", ""),
    ],
)
def test_a_key_says_its_unit_and_direction(key: str, unit: str, better: str) -> None:
    """A key of the metric table has the table's unit; other keys are judged by their ending."""
    assert (metric_text.find_unit(key), metric_text.find_direction(key)) == (unit, better)
