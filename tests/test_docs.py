"""The docs are true: examples run, all Python parses, all commands are ours, links lead on."""

from __future__ import annotations

import ast
import importlib.util
import json
import re
import shlex
import sqlite3
import subprocess
import sys
import threading
import types
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import click
import jsonschema
import pytest

import mlflow_perf
from mlflow_perf import spans
from mlflow_perf.analysis.findings import findings_of
from mlflow_perf.cli import main
from mlflow_perf.spans.importers import registry
from mlflow_perf.testing import RecordingSink

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = [
    ROOT / "README.md",
    ROOT / "CHANGELOG.md",
    ROOT / "CONTRIBUTING.md",
    *sorted(DOCS.rglob("*.md")),
]
SCHEMA = json.loads((DOCS / "mlflow-perf-1.schema.json").read_text(encoding="utf-8"))

_EXAMPLE = re.compile(r"<!-- example: (\w+) -->\n```python\n(.*?)```", re.DOTALL)
_PYTHON = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)
_COMMAND = re.compile(r"^\$ (mlflow-perf .*)$", re.MULTILINE)
_PLACEHOLDER = re.compile(r"[…\[\]<>$|]| \.\.\.")


def name_of(page: Path) -> str:
    """Return a page's path in the project."""
    return str(page.relative_to(ROOT))


def examples(page: str) -> dict[str, str]:
    """Return a page's marked examples by name, in order."""
    return dict(_EXAMPLE.findall((DOCS / page).read_text(encoding="utf-8")))


def run(code: str, **names: Any) -> dict[str, Any]:
    """Run an example with some names that its reader would have, and return all its names."""
    exec(compile(code, "docs", "exec"), names)
    return names


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the empty folder in which an example runs."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def train() -> Callable[[], int]:
    """Return the reader's own job."""
    return lambda: sum(range(100_000))


def test_the_reference_has_every_public_name() -> None:
    """What `import mlflow_perf` offers is explained."""
    listed = re.findall(
        r"^::: mlflow_perf\.[\w.]*?(\w+)$", (DOCS / "reference.md").read_text(), re.M
    )
    assert {*mlflow_perf.__all__} - {"__version__", "MlflowPerfError"} <= {*listed}
    assert "errors" in listed


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_all_python_parses(page: Path) -> None:
    """What is shown as Python is Python."""
    for code in _PYTHON.findall(page.read_text(encoding="utf-8")):
        ast.parse(code)


def commands() -> list[tuple[str, str]]:
    """Return each line of our own command in the docs that has no placeholder in it."""
    found = [
        (name_of(page), line.split("  #")[0].split(" | ")[0])
        for page in PAGES
        for line in _COMMAND.findall(page.read_text(encoding="utf-8").replace("\\\n", " "))
    ]
    return [(page, line) for page, line in found if not _PLACEHOLDER.search(line)]


@pytest.mark.parametrize(("page", "line"), commands())
def test_each_command_of_the_docs_is_understood(page: str, line: str) -> None:
    """Names, options and the number of arguments of each command shown are those of the code."""
    words = shlex.split(line.partition(" && ")[0].partition(" > ")[0])[1:]
    command: click.Command = main
    context = click.Context(main)
    while isinstance(command, click.Group):
        found = command.get_command(context, words.pop(0))
        assert found is not None, f"{page}: {line}"
        command, context = found, click.Context(found, parent=context)
    command.parse_args(click.Context(command), words)


def test_each_import_of_the_docs_exists() -> None:
    """Every name of ours that a Python example imports is defined in that module."""
    blocks = [(page, code) for page in PAGES for code in _PYTHON.findall(page.read_text("utf-8"))]
    imports = [
        (name_of(page), node.module, alias.name)
        for page, code in blocks
        for node in ast.walk(ast.parse(code))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("mlflow_perf")
        for alias in node.names
    ]
    assert len(imports) > 20
    for page, module, name in imports:
        found = hasattr(importlib.import_module(str(module)), name)
        assert found or importlib.util.find_spec(f"{module}.{name}"), f"{page}: {module}.{name}"


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_each_link_to_a_file_leads_somewhere(page: Path) -> None:
    """A link or a picture that is no address is a file beside the page."""
    text = page.read_text(encoding="utf-8")
    targets = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text)
    assert [t for t in targets if not (page.parent / t).exists()] == []


@pytest.mark.usefixtures("store")
def test_the_page_of_the_document(folder: Path) -> None:
    """Its examples run one after the other, as a reader would paste them."""
    names: dict[str, Any] = {}
    for code in examples("document.md").values():
        names = run(code, **names)
    assert (folder / "train.json").is_file()


@pytest.mark.usefixtures("store")
def test_the_page_of_training_loops(capsys: pytest.CaptureFixture[str]) -> None:
    """Its loop waits for its data as long as it says, and that is the verdict."""
    shown = examples("training-loops.md")
    names = run(shown["steps"])
    assert 40 < float(capsys.readouterr().out.split()[-1]) < 95
    node = names["perf"].document.nodes[0]
    assert node.steps["step"]["ranks"]["0"]["step"]["count"] == 60
    assert "input" in {finding.kind for finding in findings_of(node)}
    checker = jsonschema.Draft202012Validator(SCHEMA)
    assert list(checker.iter_errors(json.loads(json.dumps(names["perf"].document.as_dict())))) == []
    run(shown["enable"])["training"].disable()


def test_the_verdict_of_the_page_of_advice(capsys: pytest.CaptureFixture[str]) -> None:
    """The figures that it shows lead to the verdict that it names."""
    run(examples("advice.md")["verdict"])
    assert capsys.readouterr().out.startswith("The job waited for disks 55% of the time (")


@pytest.mark.usefixtures("store")
def test_the_switch_of_the_page_without_code() -> None:
    """Its run has a report."""
    try:
        found = run(examples("no-code.md")["switch"])
    finally:
        mlflow_perf.autolog(disable=True)
    assert "duration_sec" in mlflow_perf.load(found["run"].info.run_id).nodes[0].summary


@pytest.mark.usefixtures("store")
def test_the_flat_script_of_the_page_without_code() -> None:
    """Its block ends with `stop`."""
    perf = run(examples("no-code.md")["flat"])["perf"]
    assert perf.summary["duration_sec"] > 0
    assert not perf.is_open


@pytest.mark.usefixtures("store")
def test_what_report_writes_is_as_the_schema_says() -> None:
    """A document with reports, operations and transfers passes; what breaks a promise does not."""
    with mlflow_perf.report("schema", interval=0.05, profile=200) as perf:
        with perf.time("load"):
            for _ in range(60):  # the sampler gets its turn between two of them
                sum(range(50_000))
        perf.add_counter("rows", 3)
        perf.add_attribute("dataset", "higgs")
    transfers = mlflow_perf.NixlKVConnectorStats()
    transfers.record_failed_transfer()
    document = json.loads(json.dumps(perf.document.as_dict()))
    document["nodes"]["0"]["transfers"] = {"nixl": transfers.as_dict()}
    checker = jsonschema.Draft202012Validator(SCHEMA)
    checker.check_schema(SCHEMA)
    assert list(checker.iter_errors(document)) == []
    assert document["nodes"]["0"]["profile"]["functions"]
    assert set(document["nodes"]["0"]) <= set(SCHEMA["$defs"]["node"]["properties"])
    document["nodes"]["0"]["reports"]["timestamp"][0] = "now"
    assert list(checker.iter_errors(document))
    assert list(checker.iter_errors({"schema": "mlflow-perf/2", "nodes": {}}))


@pytest.mark.usefixtures("store", "folder")
def test_from_lightgbm_benchmark(monkeypatch: pytest.MonkeyPatch, train: Callable[[], int]) -> None:
    """Code written for its classes runs with the import changed and nothing else."""
    shown = examples("migrate/lightgbm-benchmark.md")
    seed = types.ModuleType("common.perf")
    seed.PerformanceMetricsCollector = mlflow_perf.PerformanceMetricsCollector  # type: ignore[attr-defined]  # a module made here
    seed.PerfReportPlotter = mlflow_perf.PerfReportPlotter  # type: ignore[attr-defined]  # a module made here
    monkeypatch.setitem(sys.modules, "common", types.ModuleType("common"))
    monkeypatch.setitem(sys.modules, "common.perf", seed)
    logger = RecordingSink()
    run(shown["before"], train=train, metrics_logger=logger)
    assert "cpu_avg_utilization_pct" in logger.of_node(0)
    run(shown["after"], train=train)


@pytest.mark.usefixtures("store", "folder")
def test_from_mlflow_system_metrics(train: Callable[[], int]) -> None:
    """The code before and after the change runs; the latter also logs our metrics to the run."""
    shown = examples("migrate/mlflow-system-metrics.md")
    run(shown["before"], train=train)
    run(shown["after"], train=train)


@pytest.mark.usefixtures("store", "folder")
def test_from_proxystore_metrics(capsys: pytest.CaptureFixture[str]) -> None:
    """A store as it was is gathered within a block, and our own class has its interface."""
    for code in examples("migrate/proxystore-metrics.md").values():
        run(code)
    assert "1.0" in capsys.readouterr().out


def test_from_dnpcsql(folder: Path) -> None:
    """SQL written for dnpcsql gives the same rows on the file itself and through us."""
    with sqlite3.connect(folder / "monitoring.db") as db:
        db.executescript((ROOT / "tests/spans/data/text/monitoring.sql").read_text())
    db.close()
    database = folder / "spans.sqlite3"
    spans.import_sources([folder / "monitoring.db"], database)
    shown = examples("migrate/dnpcsql.md")
    names = run(shown["before"], database=database)
    before = names["rows"]
    after = run(shown["after"], database=database, QUERY=names["QUERY"])["rows"]
    assert before
    assert [tuple(row.values()) for row in after] == before


@pytest.mark.usefixtures("store", "folder")
def test_a_reader_of_ones_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """The reader that is shown gives its curve and its metrics."""
    monkeypatch.setattr("mlflow_perf.readers.defaults._added", [])
    run(examples("extend.md")["reader"])
    with mlflow_perf.report("queue", interval=0.05) as perf:
        pass
    assert perf.summary["max_t_queue_length"] == 3.0
    assert set(perf.document.nodes[0].reports["queue_length"]) == {3.0}


@pytest.mark.usefixtures("store", "folder")
def test_a_sink_of_ones_own() -> None:
    """The sink that is shown sends each node's figures to a real server."""
    bodies: list[dict[str, Any]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            bodies.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Keep the test's output clean."""

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.handle_request, daemon=True).start()
        webhook = f"http://127.0.0.1:{server.server_address[1]}"
        run(examples("extend.md")["sink"], webhook=webhook)
    assert bodies[0]["component"] == "train"
    assert bodies[0]["duration_sec"] >= 0


def test_an_importer_of_ones_own(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The importer that is shown takes its lines, counts the others, and is idempotent."""
    importer = run(examples("extend.md")["importer"])["TimesImporter"]()
    monkeypatch.setattr(registry, "IMPORTERS", (importer,))
    (folder / "a.times").write_text("load 1763640000 1763640002.5\nnonsense\n")
    for _ in range(2):
        spans.import_sources([folder / "a.times"], folder / "spans.sqlite3")
    rows = spans.sql(folder / "spans.sqlite3", "SELECT type, name, end - start AS s FROM interval")
    assert rows == [{"type": "times.step", "name": "load", "s": 2.5}]


@pytest.mark.e2e
def test_the_site_is_built_strictly(tmp_path: Path) -> None:
    """Every page has its place, every link and every name of the reference is found."""
    build = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet"]
    done = subprocess.run(
        [*build, "--site-dir", str(tmp_path / "site")],
        cwd=ROOT,
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "site" / "mlflow-perf-1.schema.json").is_file()
