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
        (9.16e-20, "h", "<0.001 h"),
        (-9.16e-20, "%", ">-0.001%"),
        (1.45e-06, "CPU h", "0.01 CPU s"),
        (9.16e-20, "CPU h", "0 CPU s"),
        (0.5, "CPU h", "0.5 CPU h"),
        (6.91e-04, "CPUs", "<0.001 CPUs"),
        (1.45e-06, "", "1.45e-06"),
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


@pytest.mark.parametrize(
    ("of_job", "said"),
    [(None, "1 node"), (1.0, "1 node"), (2.0, "1 of 2 nodes"), (float("inf"), "1 node")],
)
def test_the_number_of_nodes_says_of_how_many(of_job: float | None, said: str) -> None:
    """Other components of the job may have had the other nodes."""
    assert (
        metric_text.describe_node_count(1, [{} if of_job is None else {"node_count": of_job}])
        == said
    )


def test_the_values_of_a_metric_share_a_unit() -> None:
    """A column of CPU times is in the unit of the largest of them; a missing one stays missing."""
    texts = metric_text.format_row([0.0001, None, 5.0], "CPU h")
    assert texts == ["0.0001 CPU h", "–", "5 CPU h"]
    assert metric_text.format_row([None], "MB") == ["–"]


def test_an_operation_that_ran_once_is_one_row() -> None:
    """Its times are all the same, so its total is enough; of others the mean and the tail stay."""
    figures = ("count", "total_ms", "avg_ms", "p50_ms", "p95_ms", "min_ms")
    once = [(f"ops/load/{name}", [1, 1]) for name in figures]
    often = [(f"ops/step/{name}", [9, 9]) for name in figures]
    rows = [*once, *often, ("duration_sec", [1, 1])]
    gone = metric_text.find_repeats(rows)
    often_kept = [f"ops/step/{name}" for name in ("count", "total_ms", "avg_ms", "p95_ms")]
    assert [key for key, _ in rows if key not in gone] == [
        "ops/load/total_ms", *often_kept, "duration_sec",
    ]  # fmt: skip
