"""Loading of performance documents from runs, files and folders."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from mlflow import MlflowClient
from mlflow.exceptions import MlflowException
from mlflow.tracking._tracking_service.client import TrackingServiceClient
from tests.tracking.samples import NODE, document, log_run

from mlflow_perf.core.uris import redact_password
from mlflow_perf.errors import DocumentError, RunNotFoundError
from mlflow_perf.tracking.load import fetch_run, is_run_id, load, read_documents, save_nodes
from mlflow_perf.tracking.notices import tell
from mlflow_perf.tracking.search import find_runs, get_run, get_runs


def test_a_run_is_read_back_as_it_was_logged(client: MlflowClient, experiment: str) -> None:
    """The document of a run of several nodes holds every node with its own figures."""
    run_id = log_run(client, experiment, document(NODE, {**NODE, "duration_sec": 12.0}))
    loaded = load(run_id)
    assert [n.summary["duration_sec"] for n in loaded.nodes.values()] == [10.0, 12.0]
    assert load(f"runs:/{run_id}").as_dict() == loaded.as_dict()


def test_a_deleted_run_is_read_and_said_to_be(client: MlflowClient, experiment: str) -> None:
    """Whoever compares with it should know that somebody gave it up."""
    kept, gone = (log_run(client, experiment, document(NODE)) for _ in range(2))
    client.delete_run(gone)
    said: list[str] = []
    token = tell.set(said.append)
    try:
        assert [run.run_id for run in get_runs([kept, gone])] == [kept, gone]
        assert list(load(gone).nodes) == [0]
    finally:
        tell.reset(token)
    assert [text.split(";")[0] for text in said] == [f"The run {gone} is deleted"] * 2


def test_a_file_and_folders_are_sources_too(tmp_path: Path) -> None:
    """A document, a folder of node files and a folder that holds `perf/` load alike."""
    doc = document(NODE, NODE)
    path = doc.save(tmp_path / "doc.json")
    names = [p.name for p in save_nodes(doc, tmp_path / "run" / "perf")]
    assert names == ["node-0.json", "node-1.json"]
    for source in (path, str(path), tmp_path / "run", tmp_path / "run" / "perf"):
        assert load(source).as_dict() == doc.as_dict()


def test_a_run_with_another_artifact_path_is_found(client: MlflowClient, experiment: str) -> None:
    """Documents that `artifact_path=…` put elsewhere are found, on this machine and over HTTP."""
    run_id = log_run(client, experiment, document(NODE), folder="figures")
    assert list(load(run_id).nodes) == [0]
    deeper = log_run(client, experiment, document(NODE), folder="train/figures")
    assert list(load(deeper).nodes) == [0]


def test_a_missing_run_file_or_folder_says_so(
    client: MlflowClient, experiment: str, tmp_path: Path
) -> None:
    """A missing run, file, folder or document gets one sentence that names it."""
    empty = client.create_run(experiment).info.run_id
    parent = client.create_run(experiment).info.run_id
    log_run(client, experiment, document(NODE), tags={"mlflow.parentRunId": parent})
    for source, message in [
        ("0" * 32, "does not exist in the tracking store"),
        ("", "The name of a run is empty"),
        (str(tmp_path / "no.json"), "There is no run, file or folder"),
        (str(tmp_path), "holds no node-*.json"),
        (empty, "is RUNNING"),
        (parent, "parent of others"),
    ]:
        with pytest.raises(RunNotFoundError, match=message.replace("*", r"\*")):
            load(source)


def test_the_beginning_of_an_id_is_enough(
    client: MlflowClient, experiment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first characters of an id, which tables show, name a run if no other run shares them."""
    run_id = log_run(client, experiment, document(NODE))
    other = log_run(client, experiment, document(NODE))
    assert [run.run_id for run in get_runs([run_id[:8], other])] == [run_id, other]
    assert load(run_id[:12]).nodes[0].summary == NODE
    with pytest.raises(RunNotFoundError, match="does not exist"):
        load("0" * 8)

    def search_twice(experiments: list[str], query: str, max_results: int) -> list[object]:
        found = search(experiments, query, max_results=max_results)
        return [*found, *found]

    search = client.search_runs
    monkeypatch.setattr(client, "search_runs", search_twice)
    with pytest.raises(RunNotFoundError, match="More than one run begins with"):
        fetch_run(client, run_id[:8])


def test_a_broken_document_is_named(tmp_path: Path) -> None:
    """The error of a document that cannot be read starts with its path."""
    path = tmp_path / "later.json"
    path.write_text('{"schema": "mlflow-perf/9", "nodes": {}}')
    with pytest.raises(DocumentError, match=r"later\.json: .*Upgrade mlflow-perf"):
        load(path)


def test_a_name_that_exists_on_disk_is_a_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name is a run id unless a file of that name exists; `runs:/` always means a run."""
    monkeypatch.chdir(tmp_path)
    assert is_run_id("abc123")
    (tmp_path / "abc123").mkdir()
    assert not is_run_id("abc123")
    assert is_run_id("runs:/abc123")
    assert not is_run_id("some/where.json")
    assert not is_run_id("/abc123")


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Run a real tracking server that keeps the artifacts itself, and return its address."""
    port = _free_port()
    command = [
        *(sys.executable, "-m", "mlflow", "server", "--workers", "1", "--host", "127.0.0.1"),
        *("--port", str(port), "--backend-store-uri", f"sqlite:///{tmp_path}/s.db"),
        *("--artifacts-destination", str(tmp_path / "kept")),
    ]
    environment = {**os.environ, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
    address = f"http://127.0.0.1:{port}"
    with (tmp_path / "log").open("w") as log_file:
        process = subprocess.Popen(
            command, env=environment, stdout=log_file, stderr=log_file, start_new_session=True
        )
    try:
        _wait_for(f"{address}/health", process)
        monkeypatch.setenv("MLFLOW_TRACKING_URI", address)
        yield address
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(timeout=30)


def _wait_for(address: str, process: subprocess.Popen[bytes]) -> None:
    for _ in range(600):
        assert process.poll() is None, "the server ended"
        try:
            with urllib.request.urlopen(address, timeout=1):
                return
        except OSError:
            time.sleep(0.2)
    pytest.fail("the server did not answer")


@pytest.mark.e2e
def test_documents_come_over_http(server: str) -> None:
    """Artifacts on a server are downloaded, from any folder."""
    client = MlflowClient(server)
    experiment = client.create_experiment("over-http")
    two = log_run(client, experiment, document(NODE, {**NODE, "duration_sec": 12.0}))
    elsewhere = log_run(client, experiment, document(NODE), folder="train/figures")
    empty = client.create_run(experiment).info.run_id
    assert [n.summary["duration_sec"] for n in load(two).nodes.values()] == [10.0, 12.0]
    assert list(load(elsewhere).nodes) == [0]
    later = client.create_run(experiment).info.run_id
    client.log_text(later, '{"schema": "mlflow-perf/9", "nodes": {}}', "perf/node-0.json")
    with pytest.raises(DocumentError, match=f"^run {later}, perf/node-0.json: .* Upgrade"):
        load(later)
    assert get_run(empty).document is None
    assert {run.run_id for run in find_runs("train")} == {two, elsewhere}
    with pytest.raises(RunNotFoundError, match="does not exist in the tracking store http"):
        load("0" * 32)


@pytest.mark.e2e
@pytest.mark.parametrize(
    ("uri", "why"),
    [
        ("http://me:secret@127.0.0.1:{port}", "nothing listens there"),
        ("postgresql://me:secret@127.0.0.1:{port}/db", "nothing listens there"),
        ("sqlite:///{folder}/none.db", "there is no .*/none.db"),
        ("foo://me:secret@host", "foo"),
        ("http://[bad", "Invalid IPv6"),
    ],
)
def test_a_store_that_cannot_be_used_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, uri: str, why: str
) -> None:
    """One line says which store and why, at once, without a password, and no store is made."""
    uri = uri.format(port=_free_port(), folder=tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    for ask in (lambda: load("0" * 32), lambda: find_runs("train")):
        with pytest.raises(RunNotFoundError, match=why) as caught:
            ask()
        assert redact_password(uri) in str(caught.value)
        assert "\n" not in str(caught.value)
        assert "secret" not in str(caught.value)
    assert not (tmp_path / "none.db").exists()


def test_curves_are_read_only_where_they_are_asked_for(
    client: MlflowClient, experiment: str, tmp_path: Path
) -> None:
    """A run comes without its curves; `read_documents` gives them node by node, by number."""
    doc = document(*[NODE] * 11)
    for node in doc.nodes.values():
        node.reports = {"timestamp": [1.0], "cpu_pct_per_cpu_avg": [5.0]}
    run_id = log_run(client, experiment, doc)
    save_nodes(doc, tmp_path / "folder")
    for source in (run_id, tmp_path / "folder"):
        light = get_run(source).document
        assert light is not None
        assert all(not node.reports for node in light.nodes.values())
        assert [index for one in read_documents(source) for index in one.nodes] == list(range(11))
        assert load(source).nodes[3].reports == doc.nodes[3].reports


def test_documents_are_read_one_by_one(tmp_path: Path) -> None:
    """A caller that stops early does not read the rest, and a broken file is named."""
    save_nodes(document(*[NODE] * 3), tmp_path)
    (tmp_path / "node-2.json").write_text("{", encoding="utf-8")
    documents = read_documents(tmp_path)
    assert [list(next(documents).nodes) for _ in range(2)] == [[0], [1]]
    with pytest.raises(DocumentError, match=r"node-2\.json: This is not a JSON document"):
        next(documents)


def test_artifacts_that_cannot_be_read_are_named(
    client: MlflowClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store answers, and has the run: only its artifacts cannot be read."""
    place = client.create_experiment("far away", "mlflow-artifacts:/far")
    run_id = client.create_run(place).info.run_id

    def refuse(*_: object) -> None:
        raise MlflowException("too many 500 error responses")

    far = SimpleNamespace(list_artifacts=refuse)
    monkeypatch.setattr(TrackingServiceClient, "_get_artifact_repo", lambda *_: far)
    why = f"The folder {run_id}/artifacts cannot be read from .*: too many 500 error responses$"
    with pytest.raises(RunNotFoundError, match=why):
        load(run_id)
