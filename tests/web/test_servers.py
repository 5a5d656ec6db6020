"""The page in real servers: uvicorn below a prefix, gunicorn, basic-auth, PostgreSQL."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from mlflow.entities import Param
from tests.reports.html_browser import Browser, wait_for
from tests.web.web_store import Filled, fill, get, server

import mlflow_perf
from mlflow_perf.tracking.page_probe import has_page
from mlflow_perf.web.choice import Choice, build_search
from mlflow_perf.web.table import query_runs, query_steps

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

_ADMIN, _BOB = "admin:a-long-password-1", "bob:bobs-long-password"


@pytest.fixture(scope="module")
def site(store: Filled, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A uvicorn server below a static prefix."""
    with server(store, tmp_path_factory.mktemp("uvicorn"), "--static-prefix", "/ml") as address:
        yield address


def _addresses(store: Filled) -> dict[str, str]:
    runs = store.runs
    return {
        "list": "/perf",
        "filtered": "/perf?component=train&sort=-run_cpu_hours",
        "run": f"/perf/run?id={runs['hostile']}",
        "workflow": f"/perf/run?id={runs['training']}",
        "grouped": "/perf?group=params.said&col=params.said&col=run_duration_sec",
        "wrong": "/perf?filter=nonsense",
        "fleet": "/perf/fleet?since=3650d",
        "trends": "/perf/trend",
        "trend": "/perf/trend?component=train",
        "scatter": "/perf/scatter?x=run_cpu_hours&group=params.said",
        "compare": f"/perf/compare?run={runs['prepare']}&run={runs['hostile']}",
    }


@pytest.mark.parametrize(
    ("name", "dark"),
    [
        ("list", False),
        ("list", True),
        ("grouped", False),
        ("fleet", False),
        ("fleet", True),
        ("trend", True),
        ("scatter", False),
        ("run", False),
        ("workflow", False),
        ("compare", True),
    ],
)
def test_each_page_in_a_browser(
    name: str, dark: bool, site: str, store: Filled, browser: Browser, axe: str
) -> None:
    """No page writes to the console, asks another host, breaks a rule of axe, or runs a name."""
    for width in (1300, 390):
        browser.show(site + _addresses(store)[name], width=width, dark=dark)
        assert browser.messages() == []
        assert browser.hosts() == {"127.0.0.1"}
        assert browser.violations(axe) == []
    assert browser.js("return document.querySelectorAll('img').length") == 0


def test_from_the_list_to_a_comparison(site: str, browser: Browser) -> None:
    """Two runs that are ticked come side by side, by clicks alone."""
    browser.show(f"{site}/perf")
    for box in browser.driver.find_elements("css selector", "input[name=run]")[:2]:
        box.click()
    browser.driver.find_element("css selector", "form.table button").click()
    wait_for(browser, "return document.body.textContent.includes('2 runs compared')")
    assert "/ml/perf/compare?run=" in browser.driver.current_url


def test_mlflow_itself_goes_on(site: str) -> None:
    """The server's own UI and API answer as before, and our pages are only below the prefix."""
    assert get(f"{site}/")[0] == 200
    assert get(f"{site}/version")[0] == 200
    assert get(f"{site.removesuffix('/ml')}/perf")[0] == 404
    assert get(f"{site}/perf", method="POST", data=b"{}")[0] == 405


def test_a_job_on_this_server_links_to_the_page(
    site: str, store: Filled, browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run's Overview in MLflow's UI leads to the run's own page, below the prefix too."""
    import mlflow

    assert not has_page(site.removesuffix("/ml"))
    monkeypatch.setenv("MLFLOW_EXPERIMENT_ID", store.experiments["forecast"])
    mlflow.set_tracking_uri(site)
    try:
        with mlflow_perf.report("linked") as perf:
            assert perf._recording is not None
            finder = perf._recording.finder
            assert finder.page_probe is not None
            finder.page_probe.result(60)
            assert perf._recording.run.has_page
        at = f"#/experiments/{store.experiments['forecast']}/runs/{perf.run_id}"
        browser.show(f"{site}/{at}?workflowType=machine_learning")
        link = "[...document.querySelectorAll('a')].find(a => a.textContent === 'Performance page')"
        wait_for(browser, f"return Boolean({link})", timeout_sec=90)
        assert browser.js(f"return {link}.href") == f"{site}/perf/run?id={perf.run_id}"
    finally:
        mlflow.MlflowClient().delete_run(
            str(perf.run_id)
        )  # the other tests know what the store holds
        mlflow.set_tracking_uri(None)  # type: ignore[arg-type]  # it takes None


def test_a_foreign_host_name_is_refused(site: str) -> None:
    """MLflow's check of the Host header holds for the page too."""
    from urllib.error import HTTPError
    from urllib.request import Request, urlopen

    with pytest.raises(HTTPError) as refused:
        urlopen(Request(f"{site}/perf", headers={"Host": "evil.example"}), timeout=30)
    assert refused.value.code == 403


@pytest.mark.skipif(shutil.which("gunicorn") is None, reason="gunicorn is not installed")
def test_gunicorn(store: Filled, tmp_path: Path) -> None:
    """The page is there under gunicorn, where the app is a plain WSGI one."""
    with server(store, tmp_path, "--gunicorn-opts", "--log-level=warning") as address:
        status, text = get(f"{address}/perf")
        assert status == 200
        assert store.runs["train"] in text
        assert get(f"{address}/")[0] == 200


def _auth(folder: Path) -> dict[str, str]:
    (folder / "auth.ini").write_text(
        "[mlflow]\n"
        "default_permission = NO_PERMISSIONS\n"
        f"database_uri = sqlite:///{folder / 'auth.db'}\n"
        "admin_username = admin\n"
        f"admin_password = {_ADMIN.partition(':')[2]}\n"
        "authorization_function = mlflow.server.auth:authenticate_request_basic_auth\n"
    )
    return {
        "MLFLOW_AUTH_CONFIG_PATH": str(folder / "auth.ini"),
        "MLFLOW_FLASK_SERVER_SECRET_KEY": "for-this-test-only",
    }


def _let_bob_read(api: str, experiment_id: str) -> None:
    def post(path: str, **data: str) -> int:
        body = json.dumps(data).encode()
        return int(get(f"{api}/{path}", user=_ADMIN, method="POST", data=body)[0])

    name, _, word = _BOB.partition(":")
    assert post("2.0/mlflow/users/create", username=name, password=word) == 200
    what = {"username": name, "permission": "READ"}
    new = post("3.0/mlflow/users/permissions/grant", resource_type="experiment",
               resource_id=experiment_id, **what)  # fmt: skip
    # Before MLflow 3.10 or so it was another route.
    old = "2.0/mlflow/experiments/permissions/create"
    assert new == 200 or post(old, experiment_id=experiment_id, **what) == 200


def test_basic_auth(store: Filled, tmp_path: Path) -> None:
    """Nobody reads without signing in; whoever has, reads what MLflow lets him read, no more."""
    pytest.importorskip("flask_wtf", reason="MLflow's basic-auth needs mlflow[auth]")
    with server(store, tmp_path, **_auth(tmp_path)) as address:
        for path in _addresses(store).values():
            assert get(address + path)[0] == 401
        assert not has_page(address)
        assert has_page(address.replace("://", f"://{_ADMIN}@"))
        assert store.runs["hidden"] in get(f"{address}/perf", user=_ADMIN)[1]

        _let_bob_read(f"{address}/api", store.experiments["forecast"])
        assert has_page(address.replace("://", f"://{_BOB}@"))
        status, text = get(f"{address}/perf", user=_BOB)
        assert status == 200
        assert store.runs["train"] in text
        assert store.runs["hidden"] not in text
        assert "secret" not in text
        for path in ("/perf/fleet?since=3650d", "/perf/trend?component=hidden", "/perf/scatter",
                     "/perf/runs.csv", f"/perf/fleet?experiment={store.experiments['secret']}",
                     "/perf/trend"):  # fmt: skip
            status, text = get(address + path, user=_BOB)
            assert status == 200, path
            assert "secret" not in text, path
            assert store.runs["hidden"] not in text, path
            assert ">hidden<" not in text, path
        hidden = f"/perf/run?id={store.runs['hidden']}"
        assert get(address + hidden, user=_BOB)[0] == 403
        pair = f"/perf/compare?run={store.runs['hidden']}&run={store.runs['train']}"
        assert get(address + pair, user=_BOB)[0] == 403
        asked = f"/perf?experiment={store.experiments['secret']}"
        assert store.runs["hidden"] not in get(address + asked, user=_BOB)[1]
        assert get(f"{address}/perf/run?id={store.runs['train']}", user=_BOB)[0] == 200

        # An agent of Bob's reads as Bob, and one of nobody reads nothing.
        train, hidden = store.runs["train"], store.runs["hidden"]
        shown, refused, runs, hours = _ask_agent(address, _BOB, train, hidden)
        assert "### Findings" in shown[1]
        assert refused[0]
        assert train in runs[1]
        assert json.loads(hours[1])["groups"] == 1
        assert hidden not in runs[1]
        answers = _ask_agent(address, "", train, hidden)
        assert all(is_error for is_error, _ in answers)
        for _, text in (shown, refused, runs, hours, *answers):
            assert "long-password" not in text
            assert str(tmp_path) not in text


def _ask_agent(address: str, user: str, *runs: str) -> list[tuple[bool, str]]:
    """Return whether each tool of `mlflow-perf mcp` refuses a user of a server, and its answer."""
    fastmcp = pytest.importorskip("fastmcp")
    from mlflow_perf.cli._agent_tools import make_server

    name, _, word = user.partition(":")
    asked: list[tuple[str, dict[str, Any]]] = [("explain_run", {"run_id": run}) for run in runs]
    asked += [("search_runs", {"limit": 50}), ("fleet", {"since": "9999d"})]

    async def ask() -> list[tuple[bool, str]]:
        async with fastmcp.Client(make_server()) as client:
            found = [await client.call_tool(*one, raise_on_error=False) for one in asked]
            return [(answer.is_error, str(answer.content[0].text)) for answer in found]

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MLFLOW_TRACKING_URI", address)
        patch.setenv("MLFLOW_TRACKING_USERNAME", name)
        patch.setenv("MLFLOW_TRACKING_PASSWORD", word)
        return asyncio.run(ask())


@pytest.fixture
def postgres() -> Iterator[str]:
    """A PostgreSQL of its own on a socket; yields the address of a database."""
    pytest.importorskip("psycopg2")
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    if not found:
        pytest.skip("PostgreSQL is not installed (Debian: postgresql).")
    root = os.geteuid() == 0
    if root and not shutil.which("runuser"):
        pytest.skip("PostgreSQL does not run as root, and there is no runuser.")
    prefix = ["runuser", "-u", "postgres", "--"] if root else []
    folder = Path(tempfile.mkdtemp(prefix="perf-pg-"))
    if root:
        shutil.chown(folder, "postgres")
    binaries = found[-1].parent

    def run(*command: str) -> None:
        subprocess.run([*prefix, *command], check=True, capture_output=True, cwd="/")

    run(str(binaries / "initdb"), "-D", f"{folder}/data", "-U", "perf", "-A", "trust")
    options = f"-k {folder} -c listen_addresses= -c fsync=off"
    control = [str(binaries / "pg_ctl"), "-D", f"{folder}/data", "-w", "-l", f"{folder}/log"]
    run(*control, "-o", options, "start")
    try:
        yield f"postgresql+psycopg2://perf@/postgres?host={folder}"
    finally:
        run(*control, "-m", "immediate", "stop")
        shutil.rmtree(folder, ignore_errors=True)


def test_postgresql(postgres: str, tmp_path: Path) -> None:
    """On PostgreSQL the list, its filters and orders find what MLflow's own search finds."""
    from mlflow.entities import ViewType
    from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore

    filled = fill(postgres, tmp_path / "artifacts", more=3)
    store: Any = SqlAlchemyStore(postgres, str(tmp_path / "artifacts"))  # type: ignore[no-untyped-call]
    experiments = list(filled.experiments.values())
    for sort in ("-started", "started", "name", "-component", "-run_cpu_hours", "status"):
        for equal in ({}, {"component": "train"}, {"workflow": filled.runs["training"]}):
            choice = Choice(sort=sort, equal=equal)
            condition, order = build_search(choice)
            found = store.search_runs(
                experiments, condition, ViewType.ACTIVE_ONLY, 100, order, None
            )
            # MLflow's language cannot ask for a component, see `build_search`.
            if component := equal.get("component"):
                found = [r for r in found if r.data.tags["mlflow_perf.component"] == component]
            listed = query_runs(store, experiments, choice)
            assert listed is not None
            rows = listed.runs
            workflows = {r.run_id for r in rows if not r.component}
            assert workflows == ({filled.runs["training"]} if not equal else set())
            rows = [r for r in rows if r.component]
            assert {r.run_id for r in rows} == {r.info.run_id for r in found}
            by_id = {r.info.run_id: r.data.metrics for r in found}
            for row in rows:
                assert row.metrics.items() <= by_id[row.run_id].items()
                assert "run_cpu_hours" in row.metrics
    by_hours = query_runs(store, experiments, Choice(sort="-run_cpu_hours"))
    assert by_hours is not None
    values = [r.metrics["run_cpu_hours"] for r in by_hours.runs if r.component]
    assert by_hours.runs[-1].run_id == filled.runs["training"]
    steps = query_steps(store, by_hours.runs, lambda _: False)
    assert {k: {s.run_id for s in v} for k, v in steps.items()} == {
        filled.runs["training"]: {filled.runs["prepare"], filled.runs["train"]}
    }
    assert {(s.name, s.ended is None) for s in steps[filled.runs["training"]]} == {
        ("prepare", False),
        ("train", False),
    }
    assert values == sorted(values, reverse=True)
    assert len(values) == len(filled.runs) - 1
    _check_parameters(store, filled)


def _check_parameters(store: Any, filled: Filled) -> None:
    """Parameters sort as numbers where they are numbers; a text finds runs, whatever the case."""
    for name, value in (("run0", "10"), ("run1", "9"), ("run2", "1e999999"), ("train", "deep")):
        store.log_param(filled.runs[name], Param("leaves", value))
    experiments = list(filled.experiments.values())
    found = query_runs(store, experiments, Choice(sort="params.leaves"))
    assert found is not None
    ids = {run_id: name for name, run_id in filled.runs.items()}
    order = [ids[str(run.run_id)] for run in found.runs]
    assert order[:4] == ["run1", "run0", "run2", "train"]
    assert [field.name for field in found.columns] == ["params.leaves"]
    text = query_runs(store, experiments, Choice(text="PREP", since="10000d"))
    assert text is not None
    assert [ids[str(run.run_id)] for run in text.runs] == ["prepare"]
