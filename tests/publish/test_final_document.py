"""The final document: one way to build, judge and tag it, for recording and recovery."""

from __future__ import annotations

from mlflow_perf.publish.final_document import (
    judge_document,
    make_final_document,
    tag_document,
)
from mlflow_perf.recorders.operations import OperationMetrics
from mlflow_perf.recorders.transfers import NixlKVConnectorStats

SUMMARY = {"duration_sec": 10.0, "cpu_avg_utilization_pct": 2.0, "cpu_limit_cores": 4.0}


def test_the_document_has_figures_operations_and_a_verdict() -> None:
    """Everything that was recorded is in it, and the figures that were given stay as they are."""
    operations = OperationMetrics()
    operations.add_counter("rows", None, 7)
    summary = dict(SUMMARY)
    document = make_final_document(
        node={"index": 1},
        component="train",
        status="FAILED",
        cause="ValueError",
        started=1000.0,
        summary=summary,
        reports={"elapsed_sec": [0.0, 10.0]},
        operations=operations,
        transfers={"nixl": NixlKVConnectorStats()},
    )
    assert (document.started, document.duration_sec) == (1000.0, 10.0)
    assert document.summary["ops/rows/count"] == 7.0
    assert document.operations
    assert "nixl" in document.transfers
    assert document.extra["cause"] == "ValueError"
    assert document.extra["advice"]
    assert summary == SUMMARY


def test_a_node_without_samples_has_a_document_too() -> None:
    """Nothing is known of it, and the advice says so; no tag names a bottleneck."""
    document = make_final_document(node={}, component=None, status="KILLED")
    assert document.duration_sec is None
    assert document.summary == {}
    assert "no verdict" in document.extra["advice"]
    assert "mlflow_perf.bottleneck" not in tag_document(document)


def test_the_tags_say_what_the_document_says() -> None:
    """Status, bottleneck, advice and cause are tags; without a verdict there is the status."""
    document = make_final_document(
        node={}, component="train", status="KILLED", cause="signal SIGTERM", summary=SUMMARY
    )
    tags = tag_document(document)
    assert tags["mlflow_perf.status"] == "KILLED"
    assert tags["mlflow_perf.cause"] == "signal SIGTERM"
    assert tags["mlflow_perf.bottleneck"] == document.extra["bottleneck"]
    assert tags["mlflow_perf.advice"] == document.extra["advice"]
    document.extra.clear()
    assert tag_document(document) == {"mlflow_perf.status": "KILLED"}
    judge_document(document)
    assert tag_document(document)["mlflow_perf.advice"] == tags["mlflow_perf.advice"]
