"""The report of a whole workflow, logged to its parent run."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import mlflow
import pytest
from mlflow import MlflowClient

from mlflow_perf.publish.workflow_report import log_workflow
from mlflow_perf.publish.workflow_writer import Place, Tracking


@pytest.fixture
def store(tmp_path: Path) -> Iterator[str]:
    """Return the address of a new store, which is MLflow's during the test."""
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    mlflow.set_tracking_uri(uri)
    yield uri
    mlflow.set_tracking_uri(None)  # type: ignore[arg-type]  # takes the setting back


def test_a_workflow_is_logged_to_its_parent(store: str, tmp_path: Path) -> None:
    """The parent gets the data, the page and a description; without children it gets nothing."""
    client = MlflowClient(store)
    experiment = client.create_experiment("flow", artifact_location=(tmp_path / "a").as_uri())
    parent = client.create_run(experiment, run_name="flow").info.run_id
    tracking = Tracking(Place(store))
    assert log_workflow(parent, tracking) == (None, "")
    tags = {"mlflow.parentRunId": parent, "mlflow_perf.component": "fit"}
    child = client.create_run(experiment, run_name="fit", tags=tags).info.run_id
    client.log_metric(child, "duration_sec", 2.0)
    client.set_terminated(child)
    workflow, page = log_workflow(parent, tracking)
    assert workflow is not None
    assert "<html" in page
    assert [f.path for f in client.list_artifacts(parent)] == ["perf", "perf_report.html"]
    logged = json.loads(Path(client.download_artifacts(parent, "perf/workflow.json")).read_text())
    assert [step["name"] for step in logged["steps"]] == ["fit"]
    metrics = client.get_run(parent).data.metrics
    assert metrics["duration_sec"] == metrics["run_duration_sec"] == workflow.duration_sec
    assert "mlflow.note.content" in client.get_run(parent).data.tags
