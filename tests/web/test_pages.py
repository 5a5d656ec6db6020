"""The page's views inside MLflow's Flask app, on a sqlite store."""

from __future__ import annotations

import csv
import html
import io
import re
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from mlflow import MlflowClient
from mlflow.entities import Metric, Param
from tests.reports import html_samples as samples
from tests.web.web_store import Filled, list_shown

from mlflow_perf.tracking.page_probe import PAGE_HEADER
from mlflow_perf.web import pages
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
    """A workflow is compared with a run by the figures of its steps."""
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
        ("/perf/trend?component=nothing&metric=x", 200, "No finished run"),
        ("/perf/trend?component=train&metric=duratoin_sec", 400, "did you mean"),
        ("/perf/trend?component=train&param=depth", 400, "no parameter"),
        ("/perf/scatter?y=nothing", 200, "No run has both"),
        ("/perf/fleet?by=colour", 400, "not by"),
        ("/perf/fleet?since=ever", 400, "no age"),
        ("/perf/runs.csv?sort=nothing", 400, "no column"),
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
    assert len(list_shown(answer.text)) == 3


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


@pytest.fixture(scope="module")
def trained(client: Any, store: Filled) -> Iterator[list[str]]:
    """Twelve runs of one component with parameters and an accuracy; the last six take longer."""
    mlflow, made = MlflowClient(store.uri), []
    now = int(time.time() * 1000)
    for i in range(12):
        start = now - (20 - i) * 3_600_000
        tags = {"mlflow_perf.component": "fit", "mlflow_perf.bottleneck": "cpu",
                "mlflow.user": "ana"}  # fmt: skip
        run_id = mlflow.create_run(
            store.experiments["forecast"], start, tags=tags, run_name=f"fit {i}"
        ).info.run_id
        seconds = 100.0 + i % 3 + (100.0 if i >= 6 else 0.0)
        figures = {"duration_sec": seconds, "run_duration_sec": seconds, "auc": 0.5 + i / 100,
                   "run_cpu_hours": 2.0, "run_unused_cpu_hours": 1.5}  # fmt: skip
        params = {"leaves": str((i * 7) % 12), "booster": "=cmd()", "fixed": "1"}
        mlflow.log_batch(
            run_id,
            [Metric(k, v, start, 0) for k, v in figures.items()],
            [Param(k, v) for k, v in params.items()],
        )
        mlflow.set_terminated(run_id, "FINISHED", start + int(1000 * seconds))
        made.append(run_id)
    mlflow.set_tag(made[2], "mlflow_perf.baseline", "true")
    yield made
    for run_id in made:
        mlflow.delete_run(run_id)


@pytest.mark.parametrize(
    ("sort", "order"),
    [
        ("-metrics.auc", range(11, -1, -1)),
        ("auc", range(12)),
        ("params.leaves", sorted(range(12), key=lambda i: (i * 7) % 12)),
    ],
)
def test_the_list_sorts_by_the_users_own_fields(
    client: Any, trained: list[str], sort: str, order: Sequence[int]
) -> None:
    """Metrics and parameters of the user's are columns and sort the list; numbers as numbers."""
    text = client.get(f"/perf?component=fit&sort={sort}").text
    assert list_shown(text) == [trained[i] for i in order]
    heads = re.findall(r"<thead>.*</thead>", text)[0]
    assert "auc" in heads
    assert "leaves" in heads
    assert "fixed" not in heads  # the same in all runs
    assert "baseline" in text


def test_columns_are_chosen_in_the_address(client: Any, trained: list[str]) -> None:
    """With `col` the list shows these columns and no others, and every link keeps them."""
    text = client.get("/perf?component=fit&col=params.fixed&col=metrics.auc&group=user").text
    heads = re.findall(r'href="/perf\?([^"]*)"><bdi>([^<]*)', text)
    assert [label for _, label in heads[5:]] == ["fixed", "auc"]
    assert all("col=params.fixed" in address for address, _ in heads)
    assert "12 runs" in text
    assert "ana" in text


def test_the_list_is_csv_too(client: Any, trained: list[str]) -> None:
    """The CSV has a row for each run, over all pages, and no cell that a spreadsheet runs."""
    answer = client.get("/perf/runs.csv?component=fit&limit=5&col=metrics.auc&col=params.booster")
    rows = list(csv.reader(io.StringIO(answer.text)))
    assert answer.headers["Content-Type"].startswith("text/csv")
    assert rows[0][-2:] == ["metrics.auc", "params.booster"]
    assert [row[0] for row in rows[1:]] == trained[::-1]
    assert [float(row[-2]) for row in rows[1:]] == [0.5 + i / 100 for i in range(11, -1, -1)]
    assert {row[-1] for row in rows[1:]} == {"'=cmd()"}


def test_two_fields_are_plotted(client: Any, trained: list[str]) -> None:
    """Each run is a dot that leads to it; a sentence says whether one field follows the other."""
    text = client.get("/perf/scatter?component=fit&x=metrics.auc&y=run_duration_sec").text
    assert text.count('<a tabindex="-1"') == 12
    assert "Duration rises as auc rises" in text
    assert "col=metrics.auc&amp;col=run_duration_sec" in text


def test_a_trend_names_the_run_where_the_level_changed(client: Any, trained: list[str]) -> None:
    """The trend has the change with both runs, the median since, and the pinned baseline."""
    text = html.unescape(client.get("/perf/trend?component=fit").text)
    assert f"/perf/compare?run={trained[5]}&run={trained[6]}" in text
    assert "1 min 41 s → 3 min 21 s (+99.0%)" in text
    assert "Baseline 1 min 42 s: +97.1% now." in text
    assert '<span class="tag worse">worse' in text
    same = client.get("/perf/trend?component=fit&param=leaves").text
    assert "11 runs are left out" in same
    assert "fit" in client.get("/perf/trend").text


def test_the_overview_sums_what_the_user_may_read(
    client: Any, trained: list[str], monkeypatch: pytest.MonkeyPatch, store: Filled
) -> None:
    """Totals, groups, what got worse and what would help are of the readable experiments only."""
    text = html.unescape(client.get("/perf/fleet?by=component&since=7d").text)
    assert "24.0 h" in text
    assert "fit left 18.0 CPU hours unused" in text
    assert "takes longer since" in text
    assert client.get("/perf/fleet?by=experiment").text.count("forecast") >= 2
    secret = {store.experiments["secret"]: "secret"}
    monkeypatch.setattr(Access, "experiments", lambda _: secret)
    hidden = client.get("/perf/fleet?by=component&since=7d").text
    assert "fit" not in re.sub("<style>.*</style>", "", hidden, flags=re.DOTALL).replace(
        "benefit", ""
    )
    assert "24.0 h" not in hidden


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
