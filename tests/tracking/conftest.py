"""Fixtures for the tests that read from a tracking store."""

from __future__ import annotations

from pathlib import Path

import pytest
from mlflow import MlflowClient


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the URI of a new tracking store; creating one takes seconds."""
    return f"sqlite:///{tmp_path_factory.mktemp('store')}/mlflow.db"


@pytest.fixture
def client(store: str, monkeypatch: pytest.MonkeyPatch) -> MlflowClient:
    """Return a client of the store, which is also MLflow's current one."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", store)
    return MlflowClient(store)


@pytest.fixture
def experiment(client: MlflowClient, tmp_path: Path) -> str:
    """Return the id of a new experiment with its artifacts below `tmp_path`."""
    place = (tmp_path / "a").as_uri()
    return str(client.create_experiment(tmp_path.name, artifact_location=place))
