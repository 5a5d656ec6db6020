"""The page's views inside MLflow's Flask app, on a sqlite store."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.reports import html_samples as samples
from tests.web.web_store import Filled

from mlflow_perf.core.json_io import to_json
from mlflow_perf.tracking.page_probe import PAGE_HEADER
from mlflow_perf.web.access import Access
from mlflow_perf.web.listing import COLUMNS, Choice


@pytest.fixture(scope="module")
def client(store: Filled) -> Iterator[Any]:
    """A client of MLflow's app with the page, as a server on `store` has it."""
    from mlflow.server import BACKEND_STORE_URI_ENV_VAR, handlers
    from mlflow.server import app as flask_app

    from mlflow_perf.web.app import register

    patch = pytest.MonkeyPatch()
    patch.setenv(BACKEND_STORE_URI_ENV_VAR, store.uri)
    patch.setattr(handlers, "_tracking_store", None)
    register(flask_app)
    import mlflow

    yield flask_app.test_client()
    patch.undo()
    mlflow.set_tracking_uri(None)


def _shown(text: str) -> list[str]:
    return re.findall(r'name="run" value="([0-9a-f]{32})"', text)


def test_every_run_with_figures_is_listed(client: Any, store: Filled) -> None:
    """The list holds all runs with figures and the workflows that they belong to, newest first."""
    answer = client.get("/perf")
    assert answer.status_code == 200
    ids = _shown(answer.text)
    assert set(ids) == set(store.runs.values())
    assert ids[0] == store.runs["run19"]
    assert f"/perf/run?id={store.runs['training']}" in html.unescape(answer.text)
    assert answer.headers["Cache-Control"] == "no-store"


def test_a_job_learns_that_the_page_is_here(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """HEAD is answered with the page's sign and without a look at any run."""
    monkeypatch.setattr(Access, "experiments", lambda _: pytest.fail("runs were read"))
    answer = client.head("/perf")
    assert (answer.status_code, answer.data) == (200, b"")
    assert PAGE_HEADER in answer.headers


def _row(text: str, run_id: str) -> str:
    """Return the row of a run, tags taken off."""
    row = next(r for r in text.split("<tr>") if f'value="{run_id}"' in r)
    return " ".join(re.sub("<[^>]+>", " ", html.unescape(row)).split())


def test_a_workflow_stands_for_its_steps(client: Any, store: Filled) -> None:
    """A workflow's row says how many steps it has, sums their hours, and leads to their list."""
    text = client.get("/perf").text
    parent = store.runs["training"]
    row = _row(text, parent)
    assert "2 steps" in row
    assert "2 min" in row
    address = f"/perf?workflow={parent}"
    assert address in html.unescape(text)
    steps = client.get(address).text
    assert set(_shown(steps)) == {store.runs["prepare"], store.runs["train"]}
    assert parent in steps


@pytest.mark.parametrize("method", ["post", "put", "delete", "patch"])
def test_the_page_is_read_only(client: Any, method: str) -> None:
    """No path of ours takes anything but GET."""
    for path in ("/perf", "/perf/run", "/perf/compare"):
        assert getattr(client, method)(path).status_code == 405


@pytest.mark.parametrize(
    ("query", "names"),
    [
        ("component=train", {"train"}),
        ("q=PREP", {"prepare"}),
        ("filter=tags.`mlflow_perf.component` = 'hidden'", {"hidden"}),
        ("component=no+such", set()),
        ("component=%27+OR+1=1+--", set()),
        ("experiment=999", set()),
    ],
)
def test_filters_stand_in_the_address(
    client: Any, store: Filled, query: str, names: set[str]
) -> None:
    """Each filter shows the runs that it names and no others."""
    answer = client.get(f"/perf?{query}")
    assert answer.status_code == 200
    assert set(_shown(answer.text)) == {store.runs[name] for name in names}


def test_pages_follow_each_other(client: Any, store: Filled) -> None:
    """With a limit the pages together hold every run once."""
    seen: list[str] = []
    address = "/perf?limit=7&sort=name"
    while address:
        text = client.get(address).text
        seen += _shown(text)
        more = re.search(r'href="([^"]+)">More runs', text)
        address = html.unescape(more[1]) if more else ""
    assert len(seen) == len(set(seen)) == len(store.runs)


@pytest.mark.parametrize(
    "sort", ["started", "-started", "name", "component", "-status", "-run_cpu_hours"]
)
@pytest.mark.parametrize("equal", [{}, {"component": "train"}, {"status": "FINISHED"}])
def test_the_tables_agree_with_mlflows_search(
    client: Any, store: Filled, sort: str, equal: dict[str, str]
) -> None:
    """The fast way finds the same runs with the same figures as MLflow's own search."""
    choice = Choice(sort=sort, equal=equal)
    # A condition that always holds makes `Access` take MLflow's search.
    general = Choice(sort=sort, equal=equal, query="attributes.run_id != 'x'")
    experiments = list(store.experiments.values())
    with client.application.test_request_context():
        fast = Access("").runs(experiments, choice).runs
        slow = Access("").runs(experiments, general).runs
    # A condition of MLflow's search cannot ask for the workflows of what it finds.
    assert {r.run_id for r in fast} - {r.run_id for r in slow} <= {store.runs["training"]}
    fast = [r for r in fast if r.component]
    keys = {key for column in COLUMNS for key in (column.key, column.instead)}
    assert {r.run_id for r in fast} == {r.run_id for r in slow}
    if sort in ("started", "-started"):
        assert [r.started for r in fast] == [r.started for r in slow]
    by_id = {run.run_id: run for run in slow}
    for run in fast:
        other = by_id[run.run_id]
        assert run.metrics == {k: v for k, v in other.metrics.items() if k in keys}
        assert (run.name, run.component, run.status) == (other.name, other.component, other.status)


def test_one_run_shows_its_report(client: Any, store: Filled) -> None:
    """A run's page is its report with every node's curves, and links to MLflow and its workflow."""
    text = client.get(f"/perf/run?id={store.runs['train']}").text
    assert "worker-001" in text
    assert 'id="curves"' in text
    assert f"/runs/{store.runs['train']}?workflowType=machine_learning" in text
    assert store.runs["training"] in text


def test_a_workflow_shows_its_gantt(client: Any, store: Filled) -> None:
    """The parent's page has a bar per step, with links to the steps' runs."""
    text = client.get(f"/perf/run?id={store.runs['training']}").text
    assert "Timeline" in text
    for step in ("prepare", "train"):
        assert f"/perf/run?id={store.runs[step]}" in text
    assert "× 2" in text


def test_runs_are_compared(client: Any, store: Filled) -> None:
    """Any runs stand side by side; one alone, or none, is refused in a sentence."""
    address = f"/perf/compare?run={store.runs['run1']}&run={store.runs['train']}"
    text = client.get(address).text
    assert "cpu_avg_utilization_pct" in text
    assert "2 runs compared" in text
    answer = client.get(f"/perf/compare?run={store.runs['run1']}")
    assert answer.status_code == 400
    assert "Choose from 2 to 50 runs" in answer.text


def test_a_workflow_is_compared_step_by_step(client: Any, store: Filled) -> None:
    """A workflow stands beside a run with its steps' figures."""
    address = f"/perf/compare?run={store.runs['training']}&run={store.runs['train']}"
    answer = client.get(address)
    assert answer.status_code == 200
    assert "The step prepare is not in" in answer.text
    assert "run_duration_sec" in answer.text


@pytest.mark.parametrize(
    ("address", "status", "said"),
    [
        ("/perf/run?id=0123456789abcdef0123456789abcdef", 404, "not found"),
        ("/perf/run", 400, "names no run"),
        ("/perf?sort=nothing", 400, "no column"),
        ("/perf?filter=not+a+condition", 400, "Invalid"),
        ("/perf?limit=" + "9" * 5000, 400, "must be a whole number"),
        ("/perf?filter=attributes.status+%3D+%27X%27&page=%C2%B2", 400, "no such page"),
        ("/perf/run?id=%3Cimg%20src=x%20onerror=alert(1)%3E", 404, "not found"),
    ],
)
def test_bad_input_gets_a_sentence(client: Any, address: str, status: int, said: str) -> None:
    """What cannot be shown answers with the right status and says why, escaped."""
    answer = client.get(address)
    assert answer.status_code == status
    assert said in answer.text
    assert "<img" not in answer.text


@pytest.mark.parametrize("page", ["9" * 19, "9" * 5000, "%C2%B2", "-1", "x"])
def test_a_page_that_is_none_is_the_first(client: Any, page: str) -> None:
    """What is no number of runs in the address of a page is left out of account."""
    answer = client.get(f"/perf?limit=3&page={page}")
    assert answer.status_code == 200
    assert len(_shown(answer.text)) == 3


@pytest.mark.parametrize(
    "name", ["component", "q", "filter", "sort", "status", "experiment", "page"]
)
def test_no_part_of_an_address_is_markup(client: Any, name: str) -> None:
    """Whatever stands in an address, the page shows it escaped."""
    answer = client.get("/perf", query_string={name: '\'"><xq9 a="'})
    assert answer.status_code < 500
    assert "<xq9" not in answer.text


def test_hostile_names_are_escaped(client: Any, store: Filled) -> None:
    """Markup in a name stands as text on every page."""
    for address in ("/perf", f"/perf/run?id={store.runs['hostile']}"):
        text = client.get(address).text
        assert "<img" not in text
        assert html.escape(samples.HOSTILE[:20]) in text


def test_the_prefix_stands_in_every_address(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a static prefix no link leads outside of it."""
    from flask import Flask

    from mlflow_perf.web import app as web_app

    monkeypatch.setenv("_MLFLOW_STATIC_PREFIX", "/deep/er/")
    other = Flask("other")
    assert web_app.register(other) == [
        "/deep/er/perf",
        "/deep/er/perf/run",
        "/deep/er/perf/compare",
    ]
    assert web_app.register(other)
    text = other.test_client().get("/deep/er/perf/run").text
    links = re.findall(r'(?:href|action)="([^"]+)"', text)
    assert links
    assert all(link.startswith(("/deep/er/", "data:")) for link in links)


def test_the_entry_point_is_light() -> None:
    """Importing the plugin's module loads neither Flask nor MLflow nor the templates."""
    import subprocess
    import sys

    code = "import sys, mlflow_perf.web; print({'flask', 'mlflow', 'jinja2'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "set()"


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
def test_documents_in_another_folder_are_shown(client: Any, store: Filled, folder: str) -> None:
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


def test_figures_without_document_are_shown(client: Any, store: Filled) -> None:
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


def test_templates_are_packaged() -> None:
    """The page's templates lie in the package."""
    from mlflow_perf.web import pages

    folder = Path(pages.__file__).parent / "templates"
    assert {p.name for p in folder.glob("*.html")} >= {"perf_list.html", "perf_run.html"}


def test_the_closed_app_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The app with basic-auth asks for it, and so does the plain one where auth is set up."""
    import mlflow_perf.web as plugin
    from mlflow_perf.web import app as web_app

    monkeypatch.setattr(web_app, "_with_basic_auth", lambda app, paths: "closed")
    monkeypatch.delenv("_MLFLOW_SGI_NAME", raising=False)
    for name in ("MLFLOW_AUTH_CONFIG_PATH", "MLFLOW_FLASK_SERVER_SECRET_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(web_app, "register", lambda app: ["/perf"])
    assert plugin.create_app_with_basic_auth() == "closed"
    assert plugin.create_app() != "closed"
    monkeypatch.setenv("MLFLOW_AUTH_CONFIG_PATH", "/some/file.ini")
    assert plugin.create_app() == "closed"


def test_a_step_without_figures_is_on_the_page_of_its_workflow(client: Any, store: Filled) -> None:
    """A step that failed before it reported stands in the Gantt and first among the findings."""
    from mlflow import MlflowClient

    parent, mlflow = store.runs["training"], MlflowClient(store.uri)
    tags = {"mlflow.parentRunId": parent, "mlflow_perf.step": "publish"}
    experiment = store.experiments["forecast"]
    failed = mlflow.create_run(experiment, tags=tags, run_name="publish").info.run_id
    mlflow.set_terminated(failed, "FAILED")
    try:
        text = client.get(f"/perf/run?id={parent}").text
    finally:
        mlflow.delete_run(failed)
    assert f"/perf/run?id={failed}" in text
    assert "Did not finish: publish (FAILED)." in text
