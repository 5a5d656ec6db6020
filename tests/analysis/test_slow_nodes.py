"""Nodes that took much longer than the others."""

from __future__ import annotations

from mlflow_perf.analysis.findings import findings_of
from mlflow_perf.analysis.slow_nodes import describe_slow_nodes, find_slow_nodes
from mlflow_perf.model.document import NodeDocument, PerfDocument

TWELVE = {i: 33.1 if i == 7 else 22.0 for i in range(12)}


def test_the_slow_node_is_named_with_what_the_others_took() -> None:
    """Its share of the run is the time in which the others had ended."""
    assert find_slow_nodes(TWELVE) == [7]
    found = describe_slow_nodes(TWELVE)
    assert found is not None
    share, text = found
    assert text == "Node 7 (33.1 s) took longer than the others (22 s)"
    assert round(share, 3) == round(1 - 22 / 33.1, 3)


def test_small_differences_and_single_nodes_are_no_stragglers() -> None:
    """A quarter longer than the median, and a second at least."""
    assert find_slow_nodes({0: 10.0, 1: 12.0}) == []
    assert find_slow_nodes({0: 0.1, 1: 0.9}) == []
    assert find_slow_nodes({0: 10.0}) == []
    assert describe_slow_nodes({}) is None


def test_it_is_a_finding_of_the_run() -> None:
    """So the terminal, the page and the tags say the same of it."""
    nodes = {
        index: NodeDocument(
            {"index": index, "cpu_count": 2},
            duration_sec=took,
            summary={"duration_sec": took, "job_cpu_avg_cores": 1.0, "cpu_avg_utilization_pct": 50},
        )
        for index, took in TWELVE.items()
    }
    (found,) = [one for one in findings_of(PerfDocument(nodes)) if one.kind == "straggler"]
    assert found.evidence.startswith("Node 7 (33.1 s)")
