"""The commands across runs on stores that hold more than our finished runs, or nothing."""

from __future__ import annotations

import asyncio
import json
import math
import shutil
import sqlite3
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from mlflow import MlflowClient

from mlflow_perf.cli._agent_tools import make_server
from mlflow_perf.tracking.bulk_runs import FinishedRun, write_runs

Cli = Callable[..., Result]

_NAMES = ("a,b", "it's", 'say "hi"', "two\nlines", "päth/漢字", "100%_sql", "../../etc", "<b>|x|",
          "a:b=c", "end ", "--help", "\x1b[31m", "x" * 200)  # fmt: skip
_FIGURES = {"duration_sec": 10.0, "run_cpu_hours": 2.0, "run_unused_cpu_hours": 1.0}


class _AnotherService(BaseHTTPRequestHandler):
    """Answers everything with JSON that is not MLflow's."""

    def do_GET(self) -> None:
        body = b'{"run": {"info": 5}, "runs": [1], "experiments": "x", "experiment": 7}'
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self) -> None:
        self.do_GET()

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.mark.parametrize(
    "args", [("show", 32 * "0"), ("history", "--component", "c"), ("fleet",)], ids=lambda a: a[0]
)
def test_another_service_at_the_address_is_told_in_one_line(
    args: tuple[str, ...], cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it answers is no fault of ours, and none of a limit."""
    with ThreadingHTTPServer(("127.0.0.1", 0), _AnotherService) as server:
        threading.Thread(target=server.serve_forever).start()
        monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://127.0.0.1:{server.server_port}")
        result = cli(*args)
        server.shutdown()
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith("mlflow-perf: ParseError: Failed to parse ")
    assert result.stderr.count("\n") == 1


@pytest.fixture
def empty_store(tmp_path: Path, _migrated_store: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the file of an empty store, which is the one in use."""
    shutil.copy(_migrated_store, tmp_path / "own.db")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path / 'own.db'}")
    return tmp_path / "own.db"


@pytest.fixture
def store(empty_store: Path) -> str:
    """Return the address of a store of the test's own: `advise --all` reads others' runs too."""
    return f"sqlite:///{empty_store}"


@pytest.fixture(scope="module")
def odd_store(tmp_path_factory: pytest.TempPathFactory, _migrated_store: Path) -> str:
    """Return a store with names of any kind, other tools' runs, and runs that are half there."""
    folder = tmp_path_factory.mktemp("odd")
    file = folder / "mlflow.db"
    shutil.copy(_migrated_store, file)
    client = MlflowClient(f"sqlite:///{file}")
    experiment = client.create_experiment("odd <b>'", artifact_location=folder.as_uri())
    now = time.time()

    def run(component: str, i: int, status: str = "FINISHED", **figures: float) -> FinishedRun:
        started = now - 3600 + 60 * i
        tags = {"mlflow_perf.component": component, "mlflow_perf.status": status}
        return FinishedRun(f"run {i}", status, started, started + 10, figures, tags=tags)

    runs = [run(name, i, "FINISHED", **_FIGURES) for name in _NAMES for i in range(4)]
    # 0.1.0 logged no figures of the run as a whole for runs of one node.
    runs.append(run("older", 0, duration_sec=10.0, node_cpu_hours=3.0, node_unused_cpu_hours=1.0))
    runs += [run("half", 0, "RUNNING"), run("half", 1, "RUNNING")]
    runs.append(FinishedRun("other", "FINISHED", now - 60, now, {"loss": 0.5}))
    write_runs(client, experiment, runs)
    client.log_metric(_find(client, "other"), "run_cpu_hours", math.inf)
    return f"sqlite:///{file}"


def _find(client: MlflowClient, name: str) -> str:
    experiments = [one.experiment_id for one in client.search_experiments()]
    found = client.search_runs(experiments, f"attributes.run_name = '{name}'", max_results=1)
    return str(found[0].info.run_id)


def _is_one_line(result: Result) -> bool:
    """Whether a command refused with one line and 2."""
    refused = result.stderr.startswith("mlflow-perf: ") and result.stderr.count("\n") == 1
    return result.exit_code == 2 and refused and result.stdout == ""


def test_any_name_is_found_and_summed_up(
    cli: Cli, cli_json: Any, odd_store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Quotes, line breaks, wildcards and control characters are part of the name, nothing more."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", odd_store)
    hours = {row["group"]: row["cpu_hours"] for row in cli_json("fleet", "--by", "component")}
    assert hours == {**dict.fromkeys(_NAMES, 8.0), "older": 3.0, "half": None}
    shown = cli("fleet", "--by", "component").stdout
    assert "\x1b" not in shown
    assert max(map(len, shown.splitlines())) <= 80
    for name in _NAMES:
        assert len(cli_json("history", f"--component={name}")["points"]) == 4
    for name in _NAMES[:6]:
        limit = f"--component={name}", "--limit", "duration_sec=+10%"
        assert cli("watch", *limit).exit_code == 0
        assert cli("check", *limit, "--new-filter", "", "--base-last", "3").exit_code == 0


def test_what_is_not_there_is_one_line(
    cli: Cli, odd_store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The nearest name is offered; a run of another tool, and one without figures, are named."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", odd_store)
    search = ("--limit", "duration_sec=+10%", "--component")
    for name, hint in (("oldr", "did you mean 'older'?"), ("half", ""), ("\"'", ""), ("", "")):
        for command in (("history", "--component"), ("watch", *search),
                        ("check", "--new-filter", "", "--base-last", "3", *search)):  # fmt: skip
            result = cli(*command, name)
            assert _is_one_line(result), (command, name)
            assert hint in result.stderr
    for option in (
        ("history", "--metric", "run_cpu_hour"),
        ("watch", "--limit", "run_cpu_hour=+1"),
    ):
        assert "did you mean 'run_cpu_hours'?" in cli(*option, "--component", "a,b").stderr
    assert _is_one_line(cli("explain", _find(MlflowClient(odd_store), "other")))
    nothing = json.loads(cli("watch", *search, "a,b", "--since", "1min", "--json").stdout)
    assert (nothing["passed"], nothing["run_id"], nothing["checks"]) == (True, None, [])


def test_a_run_with_very_many_tags(cli_json: Any, empty_store: Path) -> None:
    """A hundred thousand tags of somebody's do not hinder the sums."""
    client = MlflowClient()
    experiment = client.create_experiment("tags", artifact_location=empty_store.parent.as_uri())
    tags = {"mlflow_perf.component": "a"}
    write_runs(client, experiment, [FinishedRun("run", "FINISHED", 1, 2, _FIGURES, tags=tags)])
    run_id = _find(client, "run")
    rows = [(f"tag {i}", "x", run_id) for i in range(100_000)]
    with sqlite3.connect(empty_store) as database:
        database.executemany("INSERT INTO tags (key, value, run_uuid) VALUES (?, ?, ?)", rows)
    database.close()
    assert [row["cpu_hours"] for row in cli_json("fleet")] == [2.0]


def test_an_empty_store_is_said_by_each_command(cli: Cli, cli_json: Any, empty_store: Path) -> None:
    """Nothing was ever logged: sums of nothing, and one line where a run is asked for."""
    assert cli_json("fleet") == []
    for file in ("week.md", "week.html"):
        assert cli("fleet", "--digest", file).exit_code == 0
        assert "0 runs" in Path(file).read_text()
    limit = ("--component", "a", "--limit", "auto")
    for command in (("history", "--component", "a"), ("explain", "0" * 32), ("watch", *limit),
                    ("check", *limit, "--new-filter", "", "--base-last", "3")):  # fmt: skip
        assert _is_one_line(cli(*command)), command
    fastmcp = pytest.importorskip("fastmcp")
    asked: list[tuple[str, dict[str, str]]] = [
        ("search_runs", {}), ("fleet", {}), ("history", {"component": "a"}),
        ("advise", {"component": "a"}), ("explain_run", {"run_id": "0" * 32}),
    ]  # fmt: skip

    async def ask() -> list[tuple[bool, str]]:
        async with fastmcp.Client(make_server()) as client:
            found = [await client.call_tool(*one, raise_on_error=False) for one in asked]
            return [(answer.is_error, str(answer.content[0].text)) for answer in found]

    runs, groups, *refused = asyncio.run(ask())
    assert json.loads(runs[1]) == []
    assert json.loads(groups[1]) == {"groups": 0, "most_unused": []}
    assert all(is_error and "\n" not in text for is_error, text in refused)
    assert not any(str(empty_store.parent) in text for _, text in refused)


def test_a_damaged_document_disables_no_command_but_its_own(
    cli: Cli, log_run: Callable[..., str], client: MlflowClient, tmp_path: Path
) -> None:
    """Commands across runs leave the run out and say so once; the run's own ends with 2."""
    pytest.importorskip("fastmcp")
    good, cut = [log_run({"duration_sec": 10.0}, component="cut") for _ in range(6)][-2:]
    log_run({"duration_sec": 10.0}, component="whole")
    [file] = tmp_path.glob(f"artifacts/{cut}/**/node-0.json")
    file.write_text(file.read_text()[:300])
    limit = ("--limit", "duration_sec=+50%")
    for command in (
        ("history", "--component", "cut"),
        ("watch", "--component", "cut", *limit),
        ("advise", "--component", "cut"),
        ("advise", "--all"),
        ("fleet", "--digest", "digest.md"),
        ("check", "--component", "cut", "--base-filter", "", "--new-filter", "", *limit),
        ("check", good, "--base-filter", "", *limit),
    ):
        result = cli(*command)
        assert result.exit_code == 0, (command, result.output)
        assert result.stderr.count("left out") == 1
        assert f"mlflow-perf: The run {cut} is left out: {file}" in result.stderr
    for command in (("show", cut), ("compare", good, cut), ("check", good, cut, *limit)):
        assert _is_one_line(cli(*command)), command
    for tool, field in (("history", "newest_points"), ("advise", "memory_mb")):
        call = make_server().call_tool(tool, {"component": "cut"})
        data = json.loads(asyncio.run(call).content[0].text)
        assert field in data
        assert cut in data["notes"][0]
        assert str(file) not in data["notes"][0]
    client.delete_run(cut)  # other tests share the store
    client.delete_run(good)
