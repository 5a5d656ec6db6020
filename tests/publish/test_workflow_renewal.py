"""The reports of workflows whose steps report late."""

from __future__ import annotations

from pathlib import Path

import mlflow
import pytest
from mlflow import MlflowClient

import mlflow_perf
from mlflow_perf.publish.workflow_renewal import renew_workflows
from mlflow_perf.publish.workflow_report import log_workflow
from mlflow_perf.publish.workflow_writer import Place, Tracking
from mlflow_perf.tracking.perf_run import COUNT_TAG, GROUP_TAG


@pytest.mark.e2e
def test_a_step_that_cannot_be_read_any_more_stays_counted(
    store: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Its figures stay in the report, and `show` goes on to say how many steps are missing."""
    client = MlflowClient(store)
    parent = client.create_run("0", tags={GROUP_TAG: "true"}).info.run_id
    monkeypatch.setenv("MLFLOW_PERF_PARENT", parent)

    def report(name: str) -> str:
        with mlflow_perf.report(name) as perf:
            pass
        assert perf.run_id is not None
        return perf.run_id

    gone = report("gone")
    report("stays")
    log_workflow(parent, Tracking(Place(store)))
    client.set_terminated(parent)
    assert client.get_run(parent).data.tags[COUNT_TAG] == "2"
    client.delete_run(gone)
    late = report("late")
    capfd.readouterr()
    renew_workflows([(store, late)])
    assert "Downloading" not in capfd.readouterr().err, "a bar on the standard error of a job"
    run = client.get_run(parent)
    assert run.data.tags[COUNT_TAG] == "3"


@pytest.mark.e2e
def test_a_group_that_another_store_kept_from_its_report_gets_it(
    store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where `recover` ends a killed group while MLFLOW_TRACKING_URI names another store."""
    client = MlflowClient(store)
    parent = client.create_run("0", tags={GROUP_TAG: "true"}).info.run_id
    monkeypatch.setenv("MLFLOW_PERF_PARENT", parent)
    with mlflow_perf.report("step"):
        pass
    client.set_terminated(parent)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/other.db")
    mlflow.set_tracking_uri(f"sqlite:///{tmp_path}/other.db")
    renew_workflows([(store, parent)])
    assert COUNT_TAG not in client.get_run(parent).data.tags
    renew_workflows([(store, parent)], switch_store=True)
    assert client.get_run(parent).data.tags[COUNT_TAG] == "1"
    assert not (tmp_path / "other.db").exists()
