"""Fields: what the columns, the axes and the order of runs are made of."""

from __future__ import annotations

import pytest

from mlflow_perf.tracking.perf_run import PerfRun
from mlflow_perf.web.fields import list_keys, offer_fields, read_field, read_figure, read_number


@pytest.mark.parametrize(
    ("name", "kind", "key"),
    [
        ("auc", "metric", "auc"),
        ("metrics.`a b`", "metric", "a b"),
        ("params.leaves", "param", "leaves"),
        ("component", "tag", "mlflow_perf.component"),
        ("started", "attribute", "start_time"),
    ],
)
def test_a_name_in_an_address_is_a_field(name: str, kind: str, key: str) -> None:
    """A bare name is a metric; an empty one, or one with a backtick inside, is no field."""
    field = read_field(name)
    assert field is not None
    assert (field.kind, field.key) == (kind, key)
    assert read_field("params.") is None
    assert read_field("a`b") is None


@pytest.mark.parametrize(
    ("text", "number"),
    [("31", 31.0), (" -1e-3 ", -0.001), ("nan", None), ("1_000", None), ("x", None), (2.5, 2.5)],
)
def test_texts_of_numbers_are_numbers(text: str | float, number: float | None) -> None:
    """Parameters are texts; those that a database sorts as numbers are numbers."""
    assert read_number(text) == number


def test_a_figure_of_the_only_node_replaces_that_of_the_run() -> None:
    """Of several nodes MLflow has the last one's value, which is none of the run's."""
    one = PerfRun("r", run_id="1", metrics={"duration_sec": 9.0})
    many = PerfRun("r", run_id="1", metrics={"duration_sec": 9.0, "run_node_count": 2.0})
    assert read_figure(one, "run_duration_sec") == 9.0
    assert read_figure(many, "run_duration_sec") is None
    field = read_field("run_duration_sec")
    assert field is not None
    assert list_keys([field]) == ["run_duration_sec", "duration_sec"]


def test_the_most_frequent_fields_are_offered_first() -> None:
    """The user's own metrics and parameters, none of ours."""
    offered = offer_fields(
        {"auc": 1, "loss": 3, "duration_sec": 9, "a _/duration_sec": 3, "a _/ops/x/count": 3},
        {"leaves": 2},
        ["a %"],
    )
    assert [f.name for f in offered if f.kind == "metric"] == ["metrics.loss", "metrics.auc"]
    assert [f.name for f in offered if f.kind == "param"] == ["params.leaves"]
