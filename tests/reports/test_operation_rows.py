"""The tables of operations, counters and transfers."""

from __future__ import annotations

from mlflow_perf.model.document import NodeDocument, PerfDocument
from mlflow_perf.model.sketch import Sketch
from mlflow_perf.reports.html import render
from mlflow_perf.reports.operation_rows import (
    MOST_ROWS,
    Places,
    build_operation_table,
    build_transfers,
)
from mlflow_perf.reports.run_page import build_run_page


def test_operations_are_summed_over_nodes_and_bounded() -> None:
    """Counts and totals add up, percentiles are the highest node's, and the table has an end."""
    one = {"fit": {"count": 2, "total_ms": 10.0, "p95_ms": 7.0, "min_ms": 3.0}}
    two = {"fit": {"count": 3, "total_ms": 20.0, "p95_ms": 9.0, "min_ms": 4.0}}
    row = build_operation_table([one, two])["rows"][0]
    assert (row["count"], row["total"], row["avg"]) == ("5", "30 ms", "6 ms")
    assert row["figures"] == ["9 ms", "3 ms"]
    many = {f"op{i}": {"count": 1, "total_ms": float(i)} for i in range(100_000)}
    table = build_operation_table([many])
    assert len(table["rows"]) == MOST_ROWS
    assert table["left_out"] == 100_000 - MOST_ROWS
    assert table["rows"][0]["name"] == "op99999"


def test_operations_come_from_the_summary_too() -> None:
    """The metrics ops/… and the block `times` of a document fill the same table."""
    node = NodeDocument(
        summary={"ops/load/p50_ms": 4.0, "ops/a/b/avg_ms": 2.0, "ops/n/count": 3.0},
        operations={"times": {"load": {"count": 1, "total_ms": 4.0}}, "counters": {"rows": 7}},
    )
    report = build_run_page(PerfDocument({0: node}))
    assert {row["name"] for row in report.operations["rows"]} == {"load", "a/b"}
    assert report.counters == [("n", "3"), ("rows", "7")]


def test_names_that_share_a_metric_have_one_row_each_and_visible_spaces() -> None:
    """The metric has the sum of `load` and `load `, which is no third row; nor is `a*b` two."""
    times = {name: {"count": 1, "total_ms": 4.0} for name in ("load", "load ", "a*b")}
    node = NodeDocument(
        summary={"ops/load/count": 2.0, "ops/load/total_ms": 8.0, "ops/a_b/count": 1.0,
                 "ops/a_b/p50_ms": 4.0, "ops/r_s/count": 7.0},
        operations={"times": times, "counters": {"r*s": 7}},
    )  # fmt: skip
    report = build_run_page(PerfDocument({0: node}))
    assert [(row["name"], row["count"]) for row in report.operations["rows"]] == [
        ("load", "1"), ("load ", "1"), ("a*b", "1"),
    ]  # fmt: skip
    assert report.counters == [("r*s", "7")]
    assert "<bdi>load␣</bdi>" in render(PerfDocument({0: node}))


def test_a_time_below_zero_is_absent() -> None:
    """No recorder writes one."""
    times = {"load": {"count": 1, "total_ms": -4.0}, "fit": {"count": 1, "total_ms": 4.0}}
    report = build_run_page(PerfDocument({0: NodeDocument(operations={"times": times})}))
    assert [row["name"] for row in report.operations["rows"]] == ["fit"]


def test_a_counter_beyond_floats_does_not_cost_the_report() -> None:
    """A whole number is a sum of any size; what cannot be drawn is left out."""
    node = NodeDocument(operations={"counters": {"rows": 7, "huge": 10**400, "deep": -(10**400)}})
    assert build_run_page(PerfDocument({0: node})).counters == [("rows", "7")]


def test_transfers_are_merged_over_nodes() -> None:
    """Counts add up, an average is the highest node's, and labels drop their units."""
    one = {"nixl": {"num_successful": 2.0, "avg_xfer_time_ms": 4.0, "avg_mb_per_transfer": 1.0}}
    two = {"nixl": {"num_successful": 3.0, "avg_xfer_time_ms": 9.0, "throughput_mb_s": 7.0}}
    (transfer,) = build_transfers([one, two])
    assert transfer["name"] == "nixl"
    assert transfer["figures"] == [
        ("successful", "5"),
        ("avg transfer time", "9 ms"),
        ("size per transfer", "1 MB"),
        ("throughput", "7 MB/s"),
    ]


def test_percentiles_are_those_of_all_calls() -> None:
    """The median over two nodes is no node's own: it lies among the calls of both."""
    places = Places()
    for value in (10.0, 30.0):
        sketch = Sketch()
        sketch.add(value, 5)
        times = {"fit": {"count": 5, "total_ms": 5 * value}}
        node = {"times": times, "sketches": {"fit": sketch.as_dict()}}
        places.add(NodeDocument(operations=node))
    assert 9.9 <= places.percentiles("fit")["p50_ms"] <= 30.3
    figures = [{"fit": {"count": 5.0, "total_ms": t, "p50_ms": t / 5}} for t in (50.0, 150.0)]
    (row,) = build_operation_table(figures, places)["rows"]
    assert row["figures"][0] != "30 ms"


def test_operations_have_their_share_and_their_place_in_time() -> None:
    """Of the run's time on all nodes; one that ran once is drawn where it was."""
    times = {"load": {"count": 1, "total_ms": 2000.0, "last_ms": 2000.0, "last_timestamp": 1005.0}}
    node = NodeDocument(started=1000.0, duration_sec=20.0, operations={"times": times})
    (row,) = build_run_page(PerfDocument({0: node})).operations["rows"]
    assert row["share"] == 10.0
    assert row["place"] == (15.0, 10.0)
