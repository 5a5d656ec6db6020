"""Single files of a run's artifacts."""

from __future__ import annotations

from pathlib import Path

import pytest
from mlflow import MlflowClient
from mlflow.exceptions import MlflowException

from mlflow_perf.tracking.run_files import fetch_file, list_files


def test_files_are_listed_and_read_without_the_runs_logged_models(
    store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """MLflow's own function asks for them, and one before MLflow 3 knows none."""
    client = MlflowClient(store)
    run_id = client.create_run("0").info.run_id
    client.log_text(run_id, "{}", "perf/node-0.json")
    assert fetch_file(client, run_id, "perf/node-0.json", tmp_path).read_text() == "{}"

    def refuse(*_: object) -> None:
        raise MlflowException("logged-models/search failed with error 404")

    monkeypatch.setattr(MlflowClient, "list_artifacts", refuse)
    assert [file.path for file in list_files(client, run_id, "perf")] == ["perf/node-0.json"]
    assert [file.path for file in list_files(client, run_id, None)] == ["perf"]
    assert list_files(client, run_id, "nothing") == []
    with pytest.raises(MlflowException):
        list_files(client, "0" * 32, "perf")


def test_the_errors_of_a_stores_own_library_are_mlflows(
    store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """boto3 has classes of its own for credentials, and may be missing."""
    client = MlflowClient(store)
    run_id = client.create_run("0").info.run_id

    class NoCredentialsError(Exception):
        pass

    def fail(*_: object) -> None:
        raise NoCredentialsError("Unable to locate credentials")

    monkeypatch.setattr(type(client._tracking_client), "_get_artifact_repo", fail)
    for read in (
        lambda: list_files(client, run_id, "perf"),
        lambda: fetch_file(client, run_id, "perf/node-0.json", tmp_path),
    ):
        with pytest.raises(MlflowException, match=r"^NoCredentialsError: Unable to locate"):
            read()
