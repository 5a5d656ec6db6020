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
