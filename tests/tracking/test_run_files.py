"""Single files of a run's artifacts."""

from __future__ import annotations

from pathlib import Path

import pytest
from mlflow import MlflowClient
from mlflow.exceptions import MlflowException

from mlflow_perf.tracking.run_files import fetch_file, list_files


def test_a_server_that_knows_no_logged_models_shows_its_files(
    store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One before MLflow 3 answers with 404 when MLflow asks for them; other faults are faults."""
    client = MlflowClient(store)
    run_id = client.create_run("0").info.run_id
    client.log_text(run_id, "{}", "perf/node-0.json")
    assert fetch_file(client, run_id, "perf/node-0.json", tmp_path).read_text() == "{}"
    answer = "API request to endpoint /api/2.0/mlflow/logged-models/search failed with error 404"

    def refuse(*_: object) -> None:
        raise MlflowException(answer)

    monkeypatch.setattr(MlflowClient, "list_artifacts", refuse)
    assert [file.path for file in list_files(client, run_id, "perf")] == ["perf/node-0.json"]
    answer = "too many 500 error responses"
    with pytest.raises(MlflowException, match=answer):
        list_files(client, run_id, "perf")
