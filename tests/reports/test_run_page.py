"""The page of a run, as data."""

from __future__ import annotations

from tests.reports import html_samples as samples

from mlflow_perf.model.document import NodeDocument, PerfDocument
from mlflow_perf.reports.html import render
from mlflow_perf.reports.run_page import build_run_page
from mlflow_perf.tracking.perf_run import PerfRun


def test_missing_data_is_mentioned() -> None:
    """An empty document, a node without reports and one that still runs each get their sentence."""
    assert "No performance data" in build_run_page(PerfDocument({})).notes[0]
    silent = NodeDocument(summary={"duration_sec": 1.0}, status="RUNNING")
    notes = " ".join(build_run_page(PerfDocument({0: silent})).notes)
    assert "without reports" in notes
    assert "had not ended" in notes


def test_the_duration_of_a_job_that_was_cut_off_is_a_lower_bound() -> None:
    """Nobody saw its end."""
    for extra, said in (({}, "2.5 s"), ({"cut_off": True}, "≥ 2.5 s")):
        node = NodeDocument(duration_sec=2.5, summary={"duration_sec": 2.5}, extra=extra)
        [tile] = [t for t in build_run_page(PerfDocument({0: node})).tiles if t.label == "Duration"]
        assert tile.value == said


def test_components_on_nodes_of_their_own_have_their_curves() -> None:
    """The components of `srun -n1 a : -n1 b` ran side by side, each on one of the job's nodes."""
    nodes = [samples.node(index, count=2, rows=20) for index in range(2)]
    for node, name in zip(nodes, "ab", strict=True):
        node.component = name
        node.summary["node_count"] = 2.0
    page = build_run_page(iter(nodes))
    assert page.curves is not None
    assert page.curves["nodes"] == [0, 1]
    assert all(len(lists) == 2 for lists in page.curves["values"].values())
    assert "The curves of node 1 are of b." in page.notes
    for part in (page, *page.others):
        assert [t.detail for t in part.tiles if t.label == "Duration"] == ["1 of 2 nodes"]
    # A second block on the same node is told apart by its figures alone.
    nodes[1].node["index"] = 0
    assert build_run_page(iter(nodes)).curves["nodes"] == [0]  # type: ignore[index]


def test_nodes_may_come_one_by_one() -> None:
    """An iterator of nodes gives the same page as the document that holds them."""
    document = samples.document(3, rows=20)
    assert render(document) == render(document.nodes[i] for i in range(3))


def test_the_page_names_run_parameters_and_slow_nodes() -> None:
    """The page begins with MLflow's facts about the run; a node that took longer is marked."""
    nodes = {i: samples.node(i, count=3, rows=60 if i == 1 else 30) for i in range(3)}
    run = PerfRun("r", name="calm-owl-7", params={"threads": "2", "leaves": "63"})
    page = build_run_page(PerfDocument(nodes), run=run)
    assert page.name == "calm-owl-7"
    assert page.params == [("leaves", "63"), ("threads", "2")]
    assert page.slow_nodes == [1]
    assert page.asked is not None
    text = render(PerfDocument(nodes), run=run)
    assert "calm-owl-7" in text
    assert "#SBATCH" in text
