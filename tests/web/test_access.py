"""Reading runs and documents with the rights of the request's user."""

from __future__ import annotations

import html
from typing import Any

import pytest
from tests.reports import html_samples as samples
from tests.web.web_store import Filled

from mlflow_perf.core.json_io import to_json


def test_a_run_without_document_shows_its_gap(client: Any, store: Filled) -> None:
    """A run whose documents are gone still has a page, which says what is missing."""
    from mlflow import MlflowClient

    mlflow_client = MlflowClient(store.uri)
    run = mlflow_client.create_run(store.experiments["forecast"], run_name="bare")
    try:
        answer = client.get(f"/perf/run?id={run.info.run_id}")
        assert answer.status_code == 200
        assert "No performance data has been reported so far." in answer.text
    finally:
        mlflow_client.delete_run(run.info.run_id)


def test_a_document_of_a_later_version_is_named(client: Any, store: Filled) -> None:
    """A node whose document cannot be shown is missing aloud: which file it is, and why."""
    from mlflow import MlflowClient

    mlflow = MlflowClient(store.uri)
    run_id = mlflow.create_run(store.experiments["forecast"], run_name="later").info.run_id
    try:
        mlflow.log_text(run_id, '{"schema": "mlflow-perf/9", "nodes": {}}', "perf/node-0.json")
        text = html.unescape(client.get(f"/perf/run?id={run_id}").text)
        assert "perf/node-0.json cannot be shown: This document has the schema" in text
        assert "Upgrade mlflow-perf" in text
        assert "> · run" not in text, "no separator where nothing stands before it"
    finally:
        mlflow.delete_run(run_id)


@pytest.mark.parametrize("folder", ["figures", "train/fig[1]"])
def test_documents_in_another_folder_arelist_shown(client: Any, store: Filled, folder: str) -> None:
    """What `artifact_path=…` put elsewhere has its curves on the page too."""
    from mlflow import MlflowClient

    mlflow = MlflowClient(store.uri)
    run_id = mlflow.create_run(store.experiments["forecast"], run_name="elsewhere").info.run_id
    text = to_json(samples.document(1, rows=5).as_dict())
    try:
        mlflow.log_text(run_id, text, f"{folder}/node-0.json")
        shown = client.get(f"/perf/run?id={run_id}").text
        assert 'id="charts"' in shown
        assert "without reports" not in shown
    finally:
        mlflow.delete_run(run_id)


def test_figures_without_document_arelist_shown(client: Any, store: Filled) -> None:
    """Where a run's documents cannot be read, its metrics still make a headline."""
    from mlflow import MlflowClient

    mlflow_client = MlflowClient(store.uri)
    run = mlflow_client.create_run(
        store.experiments["forecast"], tags={"mlflow_perf.component": "far"}
    )
    try:
        mlflow_client.log_metric(run.info.run_id, "duration_sec", 75.0)
        text = client.get(f"/perf/run?id={run.info.run_id}").text
        assert "1 min 15 s" in text
        assert "without reports" in text
    finally:
        mlflow_client.delete_run(run.info.run_id)
