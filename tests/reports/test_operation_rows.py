"""The tables of operations, counters and transfers."""

from __future__ import annotations

from mlflow_perf.model.document import NodeDocument, PerfDocument
from mlflow_perf.reports.operation_rows import MOST_ROWS, build_operation_table, build_transfers
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
