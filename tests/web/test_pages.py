"""The page's views inside MLflow's Flask app, on a sqlite store."""

from __future__ import annotations

import html
import json
import re
from pathlib import Path
from typing import Any

import pytest
from mlflow import MlflowClient
from tests.reports import html_samples as samples
from tests.web.web_store import NOW_MS, Filled, list_shown

from mlflow_perf.model.document import NodeDocument, PerfDocument
from mlflow_perf.tracking.page_probe import PAGE_HEADER
from mlflow_perf.tracking.perf_run import PerfRun
from mlflow_perf.web import list_views, pages, table
from mlflow_perf.web.access import Access


def test_every_run_with_figures_is_listed(client: Any, store: Filled) -> None:
    """The list holds all runs with figures and the workflows that they belong to, newest first."""
    answer = client.get("/perf")
    assert answer.status_code == 200
    ids = list_shown(answer.text)
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


def test_the_page_of_a_deleted_run_says_that_it_is(client: Any, store: Filled) -> None:
    """A link to it still works, but whoever follows it should know that somebody gave it up."""
    mlflow_client, run_id = MlflowClient(store.uri), store.runs["run19"]
    said = f"The run {run_id} is deleted"
    assert said not in client.get(f"/perf/run?id={run_id}").text
    mlflow_client.delete_run(run_id)
    try:
        answer = client.get(f"/perf/run?id={run_id}")
        assert answer.status_code == 200
        assert said in answer.text
    finally:
        mlflow_client.restore_run(run_id)


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
    assert set(list_shown(steps)) == {store.runs["prepare"], store.runs["train"]}
    assert parent in steps


@pytest.mark.parametrize("method", ["post", "put", "delete", "patch"])
def test_the_page_is_read_only(client: Any, method: str) -> None:
    """No path of ours takes anything but GET."""
    for path in pages.ROUTES:
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
    assert set(list_shown(answer.text)) == {store.runs[name] for name in names}


def test_pages_follow_each_other(client: Any, store: Filled) -> None:
    """With a limit the pages together hold every run once."""
    seen: list[str] = []
    address = "/perf?limit=7&sort=name"
    while address:
        text = client.get(address).text
        seen += list_shown(text)
        more = re.search(r'href="([^"]+)">More runs', text)
        address = html.unescape(more[1]) if more else ""
    assert len(seen) == len(set(seen)) == len(store.runs)


@pytest.mark.parametrize("path", ["/perf", "/perf/trend", "/perf/scatter"])
def test_pages_of_many_runs_read_no_document(
    client: Any, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lists and sums come from the tables: MLflow is asked for no artifact."""
    asked: list[str] = []
    ask = Access._ask

    def count(access: Access, route: str, *more: Any, **options: Any) -> Any:
        asked.append(route)
        return ask(access, route, *more, **options)

    monkeypatch.setattr(Access, "_ask", count)
    assert client.get(f"{path}?since={'9' * 20}d").status_code == 200  # since ever
    assert asked == ["/ajax-api/2.0/mlflow/experiments/search"]


def test_a_list_is_cut_at_the_largest_size(
    client: Any, store: Filled, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page that would be too large has fewer runs, and the next page goes on after them."""
    monkeypatch.setattr(list_views, "_FEWEST_RUNS", 2)
    whole = client.get("/perf")
    most = len(whole.data) * 8 // 10
    monkeypatch.setattr(list_views, "_MOST_BYTES", most)
    seen, address, pages = [], "/perf", 0
    while address:
        answer = client.get(address)
        assert len(answer.data) <= most
        seen += list_shown(answer.text)
        found = re.search(r'href="([^"]*)">More runs', answer.text)
        address, pages = html.unescape(found.group(1)) if found else "", pages + 1
    assert seen == list_shown(whole.text)
    assert pages > 1


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
    """Any runs can be compared; one alone, or none, is refused in a sentence."""
    address = f"/perf/compare?run={store.runs['run1']}&run={store.runs['train']}"
    text = client.get(address).text
    assert "cpu_avg_utilization_pct" in text
    assert "2 runs compared" in text
    answer = client.get(f"/perf/compare?run={store.runs['run1']}")
    assert answer.status_code == 400
    assert "Choose from 2 to 50 runs" in answer.text


def test_only_workflows_are_searched_for_steps(
    client: Any, store: Filled, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A search for children reads the tags of all steps in the store: single runs need none."""
    asked: list[str | None] = []
    children = Access.children

    def watch(access: Access, run: PerfRun) -> list[PerfRun]:
        asked.append(run.name)
        return children(access, run)

    monkeypatch.setattr(Access, "children", watch)
    ids = [store.runs[name] for name in ("train", "training", "prepare")]
    assert client.get(f"/perf/compare?run={'&run='.join(ids)}").status_code == 200
    assert asked == ["training"]


def test_a_workflow_is_compared_step_by_step(client: Any, store: Filled) -> None:
    """A workflow is compared with a run by the figures of its steps."""
    address = f"/perf/compare?run={store.runs['training']}&run={store.runs['train']}"
    answer = client.get(address)
    assert answer.status_code == 200
    assert "The step prepare is not in" in answer.text
    assert "run_duration_sec" in answer.text


def test_a_compared_workflow_has_what_the_documents_of_its_steps_tell(
    client: Any, store: Filled, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Steps come with the user's rights from the server's store, and with their documents."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "sqlite:////nowhere/else.db")
    address = f"/perf/compare?run={store.runs['training']}&run={store.runs['train']}"
    answer = client.get(address)
    assert answer.status_code == 200
    assert "<h2>Held back by" in answer.text


@pytest.mark.parametrize(
    ("address", "status", "said"),
    [
        ("/perf/run?id=0123456789abcdef0123456789abcdef", 404, "not found"),
        ("/perf/compare?run=12345678&run=2", 404, "whole id, 32 characters"),
        ("/perf/run", 400, "names no run"),
        ("/perf?sort=nothing", 400, "no column"),
        ("/perf/trend?component=nothing&metric=x", 200, "No finished run"),
        ("/perf/trend?component=train&metric=duratoin_sec", 400, "did you mean"),
        ("/perf/trend?component=train&param=depth", 400, "no parameter"),
        ("/perf/scatter?y=nothing", 200, "No run has both"),
        ("/perf/fleet?by=colour", 400, "not by"),
        ("/perf/fleet?since=ever", 400, "no age"),
        ("/perf/runs.csv?sort=nothing", 400, "no column"),
        ("/perf?filter=a+condition", 400, "a name needs metrics."),
        ("/perf?limit=" + "9" * 5000, 400, "must be a whole number"),
        ("/perf?q=a%00b", 400, "a zero byte"),
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
    """An invalid page number in the address shows the first page."""
    answer = client.get(f"/perf?limit=3&page={page}")
    assert answer.status_code == 200
    assert len(list_shown(answer.text)) == 3


def test_a_wrong_page_of_mlflows_search_is_named(
    client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where MLflow's own search answers, the page is its token; a wrong one gets a sentence."""
    monkeypatch.setattr(table, "can_search", lambda _: False)
    answer = client.get("/perf?filter=attributes.status+%3D+%27X%27&page=%C2%B2")
    assert (answer.status_code, "no such page" in answer.text) == (400, True)


@pytest.mark.parametrize("path", ["/perf", "/perf/scatter", "/perf/trend", "/perf/fleet"])
def test_no_part_of_an_address_is_markup(client: Any, path: str) -> None:
    """Each page escapes every part of its address, in style sheets too."""
    names = ["component", "q", "filter", "sort", "status", "experiment", "page", "col", "group",
             "since", "user", "x", "y", "metric", "param", "by"]  # fmt: skip
    for name in names:
        for value in ('\'"><xq9 a="', '</style><xq9>"}', 'params.</style><xq9>"}'):
            answer = client.get(path, query_string={name: value, "component": "train"})
            assert answer.status_code < 500
            assert "<xq9" not in answer.text


def test_a_wrong_condition_keeps_the_form(client: Any, store: Filled) -> None:
    """What is wrong is said above the form, which keeps all that was typed."""
    asked = {"filter": "metrics.auc >", "q": "kept", "component": "train", "group": "status"}
    answer = client.get("/perf", query_string=asked)
    assert answer.status_code == 400
    assert "Not shown:" in answer.text
    for value in ("metrics.auc &gt;", 'value="kept"', 'value="train"'):
        assert value in answer.text
    assert '<option value="status" selected>' in answer.text


def test_hostile_names_are_escaped(client: Any, store: Filled) -> None:
    """Every page shows markup in a name as text."""
    for address in ("/perf", f"/perf/run?id={store.runs['hostile']}"):
        text = client.get(address).text
        assert "<img" not in text
        assert html.escape(samples.HOSTILE[:20]) in text


def test_templates_are_packaged() -> None:
    """The page's templates lie in the package."""
    folder = Path(pages.__file__).parent / "templates"
    assert {p.name for p in folder.glob("*.html")} >= {"perf_list.html", "perf_run.html"}


def test_a_step_without_figures_is_on_the_page_of_its_workflow(client: Any, store: Filled) -> None:
    """A step that failed before it reported is in the Gantt chart and is the first finding."""
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


def test_a_parent_that_measured_itself_did_not_wait(client: Any, store: Filled) -> None:
    """The page of a run reads when its own block was: here until its child began."""
    mlflow, experiment = MlflowClient(store.uri), store.experiments["forecast"]
    parent = mlflow.create_run(experiment, NOW_MS, run_name="flow").info.run_id
    tags = {"mlflow.parentRunId": parent, "mlflow_perf.component": "fit"}
    child = mlflow.create_run(experiment, NOW_MS + 60_000, tags, "fit").info.run_id
    mlflow.log_metric(child, "duration_sec", 30.0)
    for run_id in (child, parent):
        mlflow.set_terminated(run_id, end_time=NOW_MS + 90_000)
    try:
        before = client.get(f"/perf/run?id={parent}").text
        own = NodeDocument(started=NOW_MS / 1000, summary={"duration_sec": 60.0})
        text = json.dumps(PerfDocument({0: own}).as_dict())
        mlflow.log_text(parent, text, "perf/node-0.json")
        after = client.get(f"/perf/run?id={parent}").text
    finally:
        for run_id in (child, parent):
            mlflow.delete_run(run_id)
    assert "Waiting took 1 min of the critical path" in before
    assert "Timeline" in after
    assert "Waiting took" not in after


def test_a_step_that_never_ran_is_skipped_everywhere(client: Any, store: Filled) -> None:
    """A pipeline's step whose input failed has a run, which MLflow can only call killed."""
    mlflow = MlflowClient(store.uri)
    tags = {"mlflow_perf.component": "unrun", "mlflow_perf.status": "SKIPPED"}
    run_id = mlflow.create_run(store.experiments["forecast"], tags=tags).info.run_id
    mlflow.set_terminated(run_id, "KILLED")
    try:
        assert run_id not in list_shown(client.get("/perf?status=KILLED").text)
        assert "Skipped" in _row(client.get("/perf").text, run_id)
        assert "Skipped" in client.get(f"/perf/run?id={run_id}").text
    finally:
        mlflow.delete_run(run_id)


def test_a_failed_block_is_failed_everywhere(client: Any, store: Filled) -> None:
    """A block that failed in a run that went on is found, listed and shown as failed."""
    mlflow = MlflowClient(store.uri)
    tags = {"mlflow_perf.component": "flaky", "mlflow_perf.status": "FAILED"}
    run_id = mlflow.create_run(store.experiments["forecast"], tags=tags).info.run_id
    mlflow.set_terminated(run_id, "FINISHED")
    try:
        assert list_shown(client.get("/perf?status=FAILED").text) == [run_id]
        assert run_id not in list_shown(client.get("/perf?status=FINISHED").text)
        assert "Failed" in _row(client.get("/perf").text, run_id)
        assert "Failed" in client.get(f"/perf/run?id={run_id}").text
    finally:
        mlflow.delete_run(run_id)
