"""Nodes that took much longer than the others."""

from __future__ import annotations

from mlflow_perf.analysis.findings import findings_of
from mlflow_perf.analysis.slow_nodes import describe_slow_nodes, find_slow_nodes, read_durations
from mlflow_perf.model.document import NodeDocument, PerfDocument
from mlflow_perf.tracking.perf_run import PerfRun

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


def test_beside_a_node_that_was_killed_no_other_one_is_slow() -> None:
    """Slurm ends the other ranks seconds later: nobody waited for them."""
    ends = {0: ("KILLED", 9.0, "signal SIGTERM"), 1: ("KILLED", 2.0, "signal SIGKILL")}
    nodes = {
        index: NodeDocument(
            {"index": index},
            status=status,
            started=100.0,
            duration_sec=took,
            summary={"duration_sec": took, "cpu_avg_utilization_pct": 50},
            extra={"cause": cause},
        )
        for index, (status, took, cause) in ends.items()
    }
    assert read_durations([*nodes.items(), (2, NodeDocument(duration_sec=3.0))]) == {2: 3.0}
    assert all(one.kind != "straggler" for one in findings_of(PerfDocument(nodes)))
    run = PerfRun.from_document("killed", PerfDocument(nodes))
    assert run.cause == "signal SIGKILL, node 1"


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
