"""`mlflow-perf report`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from click.testing import Result
from mlflow import MlflowClient

Call = Callable[..., Result]


def test_a_run_becomes_a_page(log_run: Callable[..., str], cli: Call) -> None:
    """The page names the component and holds its figures."""
    assert cli("report", log_run({}), "-o", "r.html").exit_code == 0
    page = Path("r.html").read_text(encoding="utf-8")
    assert page.lstrip().lower().startswith("<!doctype html>")
    assert "train" in page


def test_a_page_can_go_to_standard_output(write_document: Any, cli: Call) -> None:
    """`-o -` prints the page and nothing else."""
    result = cli("report", write_document({}), "-o", "-")
    assert result.stdout.rstrip().endswith("</html>")


def test_a_workflow_becomes_a_page(
    log_run: Callable[..., str], cli: Call, client: MlflowClient
) -> None:
    """Of a parent run the steps are drawn; `--log` puts the page and its data into the run."""
    parent = log_run(component="flow")
    for step in ("prepare_data", "fit_model"):
        log_run({}, component=step, tags={"mlflow.parentRunId": parent})
    assert cli("report", parent).exit_code == 0
    page = Path("perf_report.html").read_text(encoding="utf-8")
    assert "prepare_data" in page
    assert "fit_model" in page
    assert cli("report", parent, "--log").exit_code == 0
    assert [f.path for f in client.list_artifacts(parent)] == ["perf", "perf_report.html"]
    assert [f.path for f in client.list_artifacts(parent, "perf")] == ["perf/workflow.json"]


def test_what_has_no_documents_says_so(log_run: Callable[..., str], cli: Call) -> None:
    """A run without data ends with 2."""
    result = cli("report", log_run(component="empty"))
    assert result.exit_code == 2
    assert "holds no performance document" in result.stderr


def test_a_file_is_no_run_to_log_to(tmp_path: Path, cli: Call) -> None:
    """`--log` needs a run."""
    path = tmp_path / "d.json"
    path.write_text('{"schema": "mlflow-perf/1", "nodes": {"0": {"summary": {"duration_sec": 1}}}}')
    result = cli("report", str(path), "--log")
    assert result.exit_code == 2
    assert "no run" in result.stderr
