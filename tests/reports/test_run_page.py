"""The page of a run, as data."""

from __future__ import annotations

from tests.reports import html_samples as samples

from mlflow_perf.model.document import NodeDocument, PerfDocument
from mlflow_perf.reports.html import render
from mlflow_perf.reports.run_page import build_run_page


def test_what_is_missing_is_said() -> None:
    """An empty document, a node without reports and one that still runs each get their sentence."""
    assert "No performance data" in build_run_page(PerfDocument({})).notes[0]
    silent = NodeDocument(summary={"duration_sec": 1.0}, status="RUNNING")
    notes = " ".join(build_run_page(PerfDocument({0: silent})).notes)
    assert "without reports" in notes
    assert "had not ended" in notes


def test_nodes_may_come_one_by_one() -> None:
    """An iterator of nodes gives the same page as the document that holds them."""
    document = samples.document(3, rows=20)
    assert render(document) == render(document.nodes[i] for i in range(3))
