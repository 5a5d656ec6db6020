"""`mlflow-perf report`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from click.testing import Result
from mlflow import MlflowClient
from tests.cli.conftest import make_document

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


def test_a_parent_that_measured_itself_did_not_wait(
    log_run: Callable[..., str], cli: Call, client: MlflowClient
) -> None:
    """`report` and `show` read when a parent's own block was: here until its child began."""
    experiment = client.get_run(log_run()).info.experiment_id
    parent = client.create_run(experiment, 1_000_000, run_name="flow").info.run_id
    tags = {"mlflow.parentRunId": parent}
    child = client.create_run(experiment, 1_060_000, tags, "fit").info.run_id
    for run_id in (child, parent):
        client.set_terminated(run_id, end_time=1_090_000)

    def tell() -> str:
        return str(cli("report", parent, "-o", "-").stdout + cli("show", parent).stdout)

    assert tell().count("Waiting took 1 min of the critical path") == 2
    own = make_document({"duration_sec": 60.0})
    client.log_text(parent, json.dumps(own.as_dict()), "perf/node-0.json")
    client.set_tag(parent, "mlflow_perf.component", "train")
    assert "Waiting took" not in tell()


def test_a_run_without_documents_says_so(log_run: Callable[..., str], cli: Call) -> None:
    """A run without data ends with 2."""
    result = cli("report", log_run(component="empty"))
    assert result.exit_code == 2
    assert "holds no performance document" in result.stderr
    imported = log_run(component="empty", tags={"mlflow_perf.imported_from": "nextflow"})
    assert "`mlflow-perf show` prints its figures" in " ".join(
        cli("report", imported).stderr.split()
    )


def test_a_file_is_no_run_to_log_to(tmp_path: Path, cli: Call) -> None:
    """`--log` needs a run."""
    path = tmp_path / "d.json"
    path.write_text('{"schema": "mlflow-perf/1", "nodes": {"0": {"summary": {"duration_sec": 1}}}}')
    result = cli("report", str(path), "--log")
    assert result.exit_code == 2
    assert "no run" in result.stderr


def _spans(cli: Call) -> None:
    """Import three tasks of one second into `spans.sqlite3`."""
    events = [{"name": "task", "ph": "X", "ts": i * 1e6, "dur": 1e6, "pid": 1, "tid": i}
              for i in range(3)]  # fmt: skip
    Path("trace.json").write_text(json.dumps({"traceEvents": events}), encoding="utf-8")
    assert cli("spans", "import", "trace.json").exit_code == 0


def test_spans_are_pictures_in_the_report(
    log_run: Callable[..., str], cli: Call, client: MlflowClient
) -> None:
    """`spans log` makes the run's report again with the spans in it, and so does `report` later."""
    # Of a component that other tests ran on several nodes, the report has a picture of its scaling.
    run_id = log_run({}, component="spans only")
    _spans(cli)
    root = json.loads(cli("spans", "types", "--json").stdout)[0]["type"]
    logged = cli("spans", "log", run_id, "--root", root)
    assert logged.exit_code == 0, logged.output
    assert "perf_report.html" in logged.stdout
    page = Path(client.download_artifacts(run_id, "perf_report.html")).read_text("utf-8")
    assert page.count('<img src="data:image/svg') == 2
    assert "spans only" in page
    again = cli("report", run_id)
    assert again.exit_code == 0
    assert "Downloading" not in again.output
    assert Path("perf_report.html").read_text("utf-8").count('<img src="data:image/svg') == 2


def test_a_file_with_spans_beside_it(write_document: Any, cli: Call) -> None:
    """For a file, `--spans` names the database; a database that does not exist is an error."""
    _spans(cli)
    source = write_document({})
    assert cli("report", source, "--spans", "spans.sqlite3").exit_code == 0
    assert "<img src=" in Path("perf_report.html").read_text("utf-8")
    missing = cli("report", source, "--spans", "none.sqlite3")
    assert missing.exit_code == 2
    assert "none.sqlite3" in missing.stderr


def test_a_run_that_has_only_spans(log_run: Callable[..., str], cli: Call) -> None:
    """Of a run without figures the page shows the spans, and says that there is nothing more."""
    run_id = log_run(component="flow")
    _spans(cli)
    root = json.loads(cli("spans", "types", "--json").stdout)[0]["type"]
    assert cli("spans", "log", run_id, "--root", root).exit_code == 0
    assert cli("report", run_id).exit_code == 0
    page = Path("perf_report.html").read_text("utf-8")
    assert "<img src=" in page
    assert "No performance data has been reported so far" in page
