"""What shows itself in a notebook."""

from __future__ import annotations

import pytest
from tests.reports import html_samples as samples

from mlflow_perf.analysis.compare import compare
from mlflow_perf.analysis.sizing import Sizer, Suggestion
from mlflow_perf.analysis.workflow import build_workflow
from mlflow_perf.reports.notebook import show
from mlflow_perf.tracking.perf_run import PerfRun


def test_documents_comparisons_and_workflows_have_a_page_in_a_frame() -> None:
    """Scripts run in a sandbox of their own, which may save files and nothing else."""
    document = samples.document(1, rows=20)
    run = PerfRun("a", run_id="a", component="train", document=document, started=0.0, ended=30.0)
    other = PerfRun("b", run_id="b", component="train", document=document)
    workflow = build_workflow(PerfRun("flow", name="flow", started=0.0, ended=40.0), [run])
    assert workflow is not None
    for thing in (document, compare([run, other]), workflow):
        page = thing._repr_html_()
        assert page.startswith('<iframe sandbox="allow-scripts allow-downloads" srcdoc="')
        assert "&lt;!doctype html&gt;" in page
        assert "<script" not in page


def test_a_suggested_size_is_a_small_table() -> None:
    """Memory, time, the chance that it fits, and where that comes from; escaped."""
    sizer = Sizer()
    for _ in range(5):
        sizer.observe(peak_mb=800.0, duration_sec=60.0)
    text = sizer.suggest()._repr_html_()
    assert "MB" in text
    assert "5 runs" in text
    assert text.startswith("<table>")
    assert "Chance that it fits" in text
    guess = Suggestion(800.0, 60.0, 0.9, 5, "a guess", is_guess=True)
    assert "–" in guess._repr_html_()


def test_other_things_have_no_page() -> None:
    """A wrong type is named."""
    with pytest.raises(TypeError, match="A int has no page"):
        show(3)
