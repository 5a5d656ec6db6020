"""Names of metrics for people: short, and one for each metric of the tables."""

from __future__ import annotations

import pytest

from mlflow_perf.model.metrics import METRICS, RUN_METRICS, group_metric, name_metric
from mlflow_perf.model.metrics.names import GROUPS, OTHER


def test_each_metric_of_the_tables_has_a_name_and_a_group() -> None:
    """A new metric needs a name of at most 28 characters, so that 80 columns show it whole."""
    for key in [*(metric.key for metric in METRICS), *(metric.key for metric in RUN_METRICS)]:
        assert name_metric(key) != key
        assert len(name_metric(key)) <= 28
        assert group_metric(key) != OTHER


def test_names_tell_metrics_of_a_node_apart() -> None:
    """Two metrics of one node never have the same name."""
    names = [name_metric(metric.key) for metric in METRICS]
    assert len(set(names)) == len(names)
    assert set(GROUPS) >= {group_metric(metric.key) for metric in METRICS}


@pytest.mark.parametrize(
    ("key", "name", "group"),
    [
        ("ops/fit/p95_ms", "fit, 95% within", "Operations"),
        ("ops/a/b/total_ms", "a/b, in total", "Operations"),
        ("steps/round/p50_ms", "round, median", "Steps of loops"),
        ("steps/round/input_pct", "round, waiting for input", "Steps of loops"),
        ("steps/round/part/boost_ms", "round: boost of a step", "Steps of loops"),
        ("gpu1_utilization_pct", "GPU 1 busy", "GPU"),
        ("auc", "auc", "Other"),
    ],
)
def test_other_keys_are_named_by_their_parts(key: str, name: str, group: str) -> None:
    """Operations, loops and single GPUs have names; a user's own metric keeps its key."""
    assert (name_metric(key), group_metric(key)) == (name, group)
