"""Figures and tags in the portions that a store takes."""

from __future__ import annotations

import logging

import pytest
from mlflow.entities import Metric, RunTag
from tests.model.metrics.test_node_metrics import EIGHTEEN

from mlflow_perf.model.metrics import METRICS, RUN_METRICS, make_gpu_metrics
from mlflow_perf.model.summary import summarise_run
from mlflow_perf.tracking.batches import (
    StoreLimits,
    clean_text,
    find_limits,
    rank_metrics,
    select_metrics,
    select_run_metrics,
    split_batches,
)

AZURE = find_limits("azureml://westeurope.api.azureml.ms/mlflow/v1.0/subscriptions/x")
NODE = {metric.key: 1.0 for metric in METRICS} | {f"ops/o{i}/count": 1.0 for i in range(300)}
RUN = {metric.key: 2.0 for metric in RUN_METRICS}


def _sent(
    limits: StoreLimits, node: dict[str, float], **tags: str
) -> list[tuple[list[Metric], list[RunTag]]]:
    return list(split_batches(rank_metrics(node, "", 3), rank_metrics(RUN, "", 0), tags, limits))


def test_any_other_store_gets_everything() -> None:
    """MLflow's own limits per request hold, and nothing is left out."""
    many = {f"ops/o{i}/count": 1.0 for i in range(2500)}
    sent = _sent(find_limits("http://host:5000"), many, a="x" * 6000)
    assert [len(metrics) for metrics, _ in sent] == [1000, 1000, 500 + len(RUN)]
    assert [len(tags) for _, tags in sent] == [1, 0, 0]
    assert len(sent[0][1][0].value) == 5000


def test_texts_are_such_as_every_store_takes() -> None:
    """No NUL, which PostgreSQL refuses, and no half pair, which no connection takes."""
    (_, [tag]), *_ = _sent(find_limits("http://host:5000"), NODE, a="a\0b\udc80c\n" + "x" * 6000)
    assert tag.value == "a\ufffdb?c\n" + "x" * 4994
    assert clean_text("n" * 300, 250) == "n" * 250


def test_at_most_40_metrics_of_a_node_are_logged_by_default() -> None:
    """Those of the seed and the job's; one of an operation that ran once, else three."""
    everything = {metric.key: 1.0 for metric in (*METRICS, *make_gpu_metrics(0))}
    chosen = select_metrics(everything)
    assert len(chosen) <= 40
    assert chosen.keys() >= {*EIGHTEEN, "job_max_mem_mb", "cpu_limit_cores", "cpu_stall_pct"}
    figures = ("count", "total_ms", "avg_ms", "min_ms", "max_ms", "p50_ms", "p95_ms", "p99_ms")
    operations = {f"ops/a/b/{figure}": 2.0 for figure in figures}
    operations |= {f"ops/once/{figure}": 1.0 for figure in figures} | {"ops/rows/count": 7.0}
    assert select_metrics(operations).keys() == {
        *(f"ops/a/b/{figure}" for figure in ("count", "total_ms", "p95_ms")),
        *("ops/once/total_ms", "ops/rows/count"),
    }
    of_users = {"avg_queue": 1.0, "transfers/nixl/num_successful": 1.0}
    assert select_metrics(of_users) == of_users


def test_a_run_of_one_node_has_at_most_40_metrics_by_default() -> None:
    """What the run's job used is what its only node's job used: it is logged once."""
    rare = ("gpu", "cost", "energy", "carbon", "oom_kills")
    node = {m.key: 1.0 for m in METRICS if not any(word in m.key for word in rare)}
    alone, both = summarise_run([node]), summarise_run([node, node])
    assert len(select_metrics(node)) + len(select_run_metrics(alone)) <= 40
    assert select_run_metrics(both) == both


def test_azure_ml_gets_what_matters_most() -> None:
    """A run on Azure ML holds 50 names of metrics; ours leave room for the job's and the curves."""
    sent = _sent(AZURE, NODE, a="x" * 6000)
    names = {metric.key for metrics, _ in sent for metric in metrics}
    essential = {metric.key for metric in METRICS if metric.essential}
    assert len(names) <= 50 - 6 - 8
    assert essential | {"job_max_mem_mb", "run_imbalance_pct", "run_node_count"} <= names
    assert not any(name.startswith("ops/") for name in names)
    assert len(sent[0][1][0].value) == 1000
    assert all(len(metrics) <= 250 for metrics, _ in sent)


def test_all_nodes_of_a_run_choose_the_same_names() -> None:
    """What one node leaves out, the others leave out too: the names of a run stay few."""
    shuffled = dict(reversed(NODE.items())) | {"ops/another/count": 1.0}
    first, second = ({m.key for ms, _ in _sent(AZURE, n) for m in ms} for n in (NODE, shuffled))
    assert first == second


def test_operations_go_where_there_is_room() -> None:
    """A small job's operations are metrics on Azure ML too."""
    few = {"duration_sec": 1.0, "ops/load/count": 2.0}
    assert "ops/load/count" in {m.key for ms, _ in _sent(AZURE, few) for m in ms}


def test_tags_alone_are_a_request(caplog: pytest.LogCaptureFixture) -> None:
    """Without a metric there is still one request, and no word about room."""
    with caplog.at_level(logging.INFO, logger="mlflow_perf"):
        assert [tags[0].key for _, tags in split_batches([], [], {"a": "b"}, AZURE)] == ["a"]
    assert not caplog.records
