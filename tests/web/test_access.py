"""Reading runs and documents with the rights of the request's user."""

from __future__ import annotations

import html
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.reports import html_samples as samples
from tests.web.web_store import Filled

from mlflow_perf.core.json_io import to_json
from mlflow_perf.model.document import PerfDocument
from mlflow_perf.web import access


def test_a_run_without_document_shows_its_gap(client: Any, store: Filled) -> None:
    """A run without its documents still has a page, which says that they are missing."""
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
    """For a document that cannot be shown, the page names the file and the reason."""
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


@pytest.mark.parametrize("has_documents", [True, False])
def test_every_component_of_a_run_is_shown(client: Any, store: Filled, has_documents: bool) -> None:
    """The page of a run, and a comparison, have the components below `perf/` too."""
    from mlflow import MlflowClient

    mlflow = MlflowClient(store.uri)
    tags = {"mlflow_perf.component": "train", "mlflow_perf.components": '["exam"]'}
    run_id = mlflow.create_run(store.experiments["forecast"], tags=tags).info.run_id
    try:
        for name, folder, seconds in (("train", "", 5.0), ("exam", "exam/", 75.0)):
            mlflow.log_metric(run_id, f"{folder}duration_sec", seconds)
            document = samples.document(1, rows=5)
            document.nodes[0].component = name
            document.nodes[0].summary["duration_sec"] = seconds
            if has_documents:
                mlflow.log_text(run_id, to_json(document.as_dict()), f"perf/{folder}node-0.json")
        text = client.get(f"/perf/run?id={run_id}").text
        assert "<bdi>exam</bdi>" in text
        assert "1 min 15 s" in text
        other = store.runs["train"]
        compared = client.get(f"/perf/compare?run={other}&run={run_id}").text
        assert "1 min 15 s" in compared
        assert "The step exam is not in" in compared
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


def test_a_run_of_another_experiment_is_no_step(client: Any, store: Filled) -> None:
    """A run that names a parent in another experiment shows there nowhere, and its parent not here.

    MLflow's permissions are those of experiments, so a reader of one must see nothing of another.
    """
    from mlflow import MlflowClient

    mlflow, parent = MlflowClient(store.uri), store.runs["training"]
    plain = mlflow.create_run(store.experiments["forecast"], run_name="plain").info.run_id
    made = [plain]
    try:
        for target in (parent, plain):
            tags = {"mlflow.parentRunId": target, "mlflow_perf.component": "intruder"}
            run = mlflow.create_run(store.experiments["secret"], run_name="intruder", tags=tags)
            mlflow.log_metric(run.info.run_id, "run_cpu_hours", 987654.0)
            made.append(run.info.run_id)
        own = f"experiment={store.experiments['forecast']}"
        listed = client.get(f"/perf?{own}").text
        assert plain not in listed
        assert "2 steps" in listed
        assert "987\u202f654" not in listed
        for address in (f"/perf?workflow={parent}", f"/perf/run?id={parent}"):
            assert "intruder" not in client.get(address).text
        foreign = client.get(f"/perf?experiment={store.experiments['secret']}").text
        assert "intruder" in foreign
        assert parent not in foreign
        assert parent not in client.get(f"/perf/run?id={made[1]}").text
    finally:
        for run_id in made:
            mlflow.delete_run(run_id)


def test_a_step_that_the_parent_names_is_shown_to_those_who_may_read_it(
    client: Any, store: Filled, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A parent's tag names other experiments with steps of it; MLflow decides who may read them."""
    from mlflow import MlflowClient

    mlflow, secret = MlflowClient(store.uri), store.experiments["secret"]
    parent, tag = store.runs["training"], f"mlflow_perf.steps_in.{secret}"
    tags = {"mlflow.parentRunId": parent, "mlflow_perf.component": "far-away"}
    step = mlflow.create_run(secret, run_name="far-away", tags=tags).info.run_id
    ask = access.Access._api

    def refuse(self: access.Access, path: str, query: Mapping[str, str]) -> dict[str, Any]:
        if query == {"experiment_id": secret}:
            raise access.NotAllowedError("no", 403)
        return ask(self, path, query)

    try:
        mlflow.log_metric(step, "duration_sec", 1.0)
        mlflow.set_terminated(step)
        mlflow.set_tag(parent, tag, "true")
        own = f"experiment={store.experiments['forecast']}"
        assert "far-away" in client.get(f"/perf/run?id={parent}").text
        assert "3 steps" in client.get(f"/perf?{own}").text
        assert "far-away" in client.get(f"/perf?workflow={parent}").text
        assert parent in client.get(f"/perf?experiment={secret}").text
        monkeypatch.setattr(access.Access, "_api", refuse)
        assert "far-away" not in client.get(f"/perf/run?id={parent}").text
        assert "2 steps" in client.get(f"/perf?{own}").text
        monkeypatch.setattr(access.Access, "_may_read", lambda *_: False)
        assert parent not in client.get(f"/perf?experiment={secret}").text
    finally:
        mlflow.delete_tag(parent, tag)
        mlflow.delete_run(step)


def test_a_large_document_is_refused_in_a_sentence(
    client: Any, store: Filled, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server reads no more of a file than a document may have, and says which is left out."""
    from mlflow import MlflowClient

    mlflow = MlflowClient(store.uri)
    run_id = mlflow.create_run(store.experiments["forecast"], run_name="large").info.run_id
    try:
        for name in ("perf/node-0.json", "perf/workflow.json"):
            mlflow.log_text(run_id, " " * (9 << 20) + "{}", name)
        monkeypatch.setattr(PerfDocument, "from_json", lambda _: pytest.fail("it was read"))
        answer = client.get(f"/perf/run?id={run_id}")
    finally:
        mlflow.delete_run(run_id)
    assert answer.status_code == 200
    assert "perf/node-0.json is not shown: it has more than 8 MB" in answer.text
    assert "perf/workflow.json is not shown" in answer.text


def test_a_page_reads_a_bounded_sum_of_documents(
    client: Any, store: Filled, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many documents that are each allowed are read up to a total, and the rest is named."""
    monkeypatch.setattr(access, "_MOST_REQUEST_MB", 0.01)
    text = client.get(f"/perf/run?id={store.runs['train']}").text
    assert "node-1.json and those after it are left out" in text
    assert "worker-000" in text


@pytest.fixture
def two_workspaces(client: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """A server with two workspaces that each hold one run: workspace → id of the run."""
    handlers = pytest.importorskip("mlflow.server.handlers")
    helpers = pytest.importorskip("mlflow.server.workspace_helpers")
    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    monkeypatch.setenv("MLFLOW_ENABLE_WORKSPACES", "true")
    monkeypatch.setenv("_MLFLOW_SERVER_FILE_STORE", uri)
    monkeypatch.setenv("_MLFLOW_SERVER_ARTIFACT_ROOT", (tmp_path / "root").as_uri())
    monkeypatch.setattr(handlers, "_tracking_store", None)
    # A server that opens its store makes it the process's own: the next test has another.
    monkeypatch.setattr("mlflow.tracking._tracking_service.utils._tracking_uri", None)
    monkeypatch.setattr(helpers, "_workspace_store", None)
    api = "/ajax-api/2.0/mlflow"
    answer = client.post("/ajax-api/3.0/mlflow/workspaces", json={"name": "team"})
    assert answer.status_code < 300, answer.text
    made = {}
    for workspace in ("default", "team"):
        headers = {"X-MLFLOW-WORKSPACE": workspace}
        new = {"name": f"of-{workspace}"}
        home = client.post(f"{api}/experiments/create", json=new, headers=headers).json
        assert "experiment_id" in home, home
        tags = [{"key": "mlflow_perf.component", "value": f"work-of-{workspace}"}]
        run = {"experiment_id": home["experiment_id"], "tags": tags, "start_time": 1}
        answer = client.post(f"{api}/runs/create", json=run, headers=headers).json
        made[workspace] = answer["run"]["info"]["run_id"]
    return made


def test_a_workspace_is_chosen_in_the_address(client: Any, two_workspaces: dict[str, str]) -> None:
    """Where MLflow has workspaces, the page lists them and reads the workspace of the address."""
    text = client.get("/perf").text
    assert two_workspaces["default"] in text
    assert two_workspaces["team"] not in text
    assert "<option>team</option>" in text
    text = client.get("/perf?workspace=team").text
    assert two_workspaces["team"] in text
    assert two_workspaces["default"] not in text
    assert f"/perf/run?id={two_workspaces['team']}&amp;workspace=team" in text
    shown = client.get(f"/perf/run?id={two_workspaces['team']}&workspace=team")
    assert shown.status_code == 200
    assert client.get(f"/perf/run?id={two_workspaces['team']}").status_code == 404
    for unknown in ("no-such", "../x", '"><xq9'):
        answer = client.get("/perf", query_string={"workspace": unknown})
        assert 400 <= answer.status_code < 500
        assert "<xq9" not in answer.text


@pytest.mark.parametrize("page", ["/perf", "/perf/run"])
def test_a_server_without_workspaces_has_none_of_the_address(client: Any, page: str) -> None:
    """A link from another server names one: it is wrong here, and no fault of the server's."""
    answer = client.get(page, query_string={"workspace": "zz"})
    assert answer.status_code == 400
    assert "This server has no workspaces" in answer.text
