"""Reading performance data back from MLflow, files and folders."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from mlflow import MlflowClient

from mlflow_perf.core.uris import redact_password
from mlflow_perf.errors import DocumentError, RunNotFoundError, SettingError
from mlflow_perf.model.document import NodeDocument, PerfDocument
from mlflow_perf.tracking.load import is_run_id, load, read_documents, save_nodes
from mlflow_perf.tracking.search import find_children, find_runs, get_run, get_runs


def document(*summaries: Mapping[str, float], component: str = "train") -> PerfDocument:
    nodes = {
        i: NodeDocument(
            {"index": i, "count": len(summaries), "hostname": f"host{i}", "cpu_count": 4},
            component=component,
            status="FINISHED",
            started=1000.0,
            duration_sec=s.get("duration_sec", 10.0),
            summary=dict(s),
        )
        for i, s in enumerate(summaries)
    }
    return PerfDocument(nodes)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the address of a new tracking store; making one takes seconds."""
    return f"sqlite:///{tmp_path_factory.mktemp('store')}/mlflow.db"


@pytest.fixture
def client(store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MlflowClient:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", store)
    return MlflowClient(store)


@pytest.fixture
def experiment(client: MlflowClient, tmp_path: Path) -> str:
    return client.create_experiment(tmp_path.name, artifact_location=(tmp_path / "a").as_uri())


def log(
    client: MlflowClient,
    experiment: str,
    doc: PerfDocument,
    *,
    component: str = "train",
    tags: Mapping[str, str] | None = None,
    folder: str = "perf",
) -> str:
    """Log a document as the session does, and return the run's id."""
    all_tags = {"mlflow_perf.component": component, "mlflow_perf.version": "0", **(tags or {})}
    run_id = client.create_run(experiment, tags=all_tags, run_name=component).info.run_id
    for index, node in doc.nodes.items():
        for key, value in node.summary.items():
            client.log_metric(run_id, key, value, step=index)
        text = json.dumps(PerfDocument({index: node}).as_dict())
        client.log_text(run_id, text, f"{folder}/node-{index}.json")
    for key, value in doc.run_summary.items():
        client.log_metric(run_id, key, value, step=0)
    client.set_terminated(run_id)
    return run_id


NODE = {"duration_sec": 10.0, "node_cpu_hours": 1.0, "node_used_cpu_hours": 0.5}


def test_a_run_is_read_back_as_it_was_logged(client: MlflowClient, experiment: str) -> None:
    """The document of a run of several nodes holds every node with its own figures."""
    run_id = log(client, experiment, document(NODE, {**NODE, "duration_sec": 12.0}))
    loaded = load(run_id)
    assert [n.summary["duration_sec"] for n in loaded.nodes.values()] == [10.0, 12.0]
    assert load(f"runs:/{run_id}").as_dict() == loaded.as_dict()


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
    run_id = log(client, experiment, document(NODE), folder="figures")
    assert list(load(run_id).nodes) == [0]
    deeper = log(client, experiment, document(NODE), folder="train/figures")
    assert list(load(deeper).nodes) == [0]


def test_what_does_not_exist_says_so(client: MlflowClient, experiment: str, tmp_path: Path) -> None:
    """A missing run, file, folder or document gets one sentence that names it."""
    empty = client.create_run(experiment).info.run_id
    parent = client.create_run(experiment).info.run_id
    log(client, experiment, document(NODE), tags={"mlflow.parentRunId": parent})
    for source, message in [
        ("0" * 32, "does not exist in the tracking store"),
        (str(tmp_path / "no.json"), "There is no run, file or folder"),
        (str(tmp_path), "holds no node-*.json"),
        (empty, "still going"),
        (parent, "parent of others"),
    ]:
        with pytest.raises(RunNotFoundError, match=message.replace("*", r"\*")):
            load(source)


def test_the_beginning_of_an_id_is_enough(client: MlflowClient, experiment: str) -> None:
    """What tables show of an id names its run, as long as no other begins alike."""
    from mlflow_perf.tracking.load import fetch_run

    run_id = log(client, experiment, document(NODE))
    other = log(client, experiment, document(NODE))
    assert [run.run_id for run in get_runs([run_id[:8], other])] == [run_id, other]
    assert load(run_id[:12]).nodes[0].summary == NODE
    with pytest.raises(RunNotFoundError, match="does not exist"):
        load("0" * 8)

    class Alike:
        """A store with two runs that begin alike."""

        get_run = client.get_run
        search_experiments = client.search_experiments

        def search_runs(self, experiments: list[str], query: str, max_results: int) -> list[object]:
            found = client.search_runs(experiments, query, max_results=max_results)
            return [*found, *found]

    with pytest.raises(RunNotFoundError, match="More than one run begins with"):
        fetch_run(Alike(), run_id[:8])


def test_a_broken_document_is_named(tmp_path: Path) -> None:
    """The error of a document that cannot be read starts with its path."""
    path = tmp_path / "later.json"
    path.write_text('{"schema": "mlflow-perf/9", "nodes": {}}')
    with pytest.raises(DocumentError, match=r"later\.json: .*Upgrade mlflow-perf"):
        load(path)


def test_what_a_run_says_of_itself(client: MlflowClient, experiment: str) -> None:
    """Component, step, dependencies, parent and figures come with the run."""
    tags = {
        "mlflow.parentRunId": "p",
        "mlflow_perf.step": "fit",
        "mlflow_perf.depends_on": "prepare, split",
    }
    run = get_run(log(client, experiment, document(NODE, NODE), tags=tags))
    assert (run.component, run.step, run.parent_id) == ("train", "fit", "p")
    assert run.depends_on == ("prepare", "split")
    assert run.figures["run_node_count"] == 2
    assert run.node_count == 2
    assert run.status == "FINISHED"


def test_a_run_of_one_node_needs_no_document(client: MlflowClient, experiment: str) -> None:
    """The figures of one node come from the run's metrics; those of several would be the last's."""
    one = log(client, experiment, document(NODE))
    two = log(client, experiment, document(NODE, NODE))
    runs = get_runs([two, one], documents=False)
    assert [run.document for run in runs] == [None, None]
    assert runs[0].nodes == {}
    assert runs[1].nodes == {0: NODE}


def test_many_runs_come_in_few_requests(
    client: MlflowClient, experiment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More runs than a handful are searched for together, in the order in which they were named."""
    ids = [log(client, experiment, document(NODE)) for _ in range(6)]
    monkeypatch.setattr(MlflowClient, "get_run", lambda *_: pytest.fail("a request per run"))
    assert [run.run_id for run in get_runs(ids[::-1])] == ids[::-1]


def test_runs_are_found_by_component_and_condition(client: MlflowClient, experiment: str) -> None:
    """A search gives only runs with performance data, newest first."""
    old = log(client, experiment, document(NODE, component="O'Hara"), component="O'Hara")
    new = log(client, experiment, document(NODE, component="O'Hara"), component="O'Hara")
    client.create_run(experiment, tags={"mlflow_perf.component": "O'Hara"})
    client.set_tag(old, "branch", "main")
    assert [r.run_id for r in find_runs("O'Hara")] == [new, old]
    assert [r.run_id for r in find_runs("O'Hara", filter_string="tags.branch = 'main'")] == [old]
    assert [r.run_id for r in find_runs("O'Hara", max_results=1)] == [new]
    with pytest.raises(SettingError, match="cannot search"):
        find_runs(filter_string="this is no condition")
    with pytest.raises(RunNotFoundError, match="no experiment 'nowhere'"):
        find_runs(experiment_names=["nowhere"])


def test_children_come_in_the_order_of_their_start(client: MlflowClient, experiment: str) -> None:
    """A parent's children are its steps; a run without children has none."""
    parent = client.create_run(experiment).info.run_id
    tags = {"mlflow.parentRunId": parent}
    ids = [log(client, experiment, document(NODE), tags=tags) for _ in range(2)]
    found = find_children(get_run(parent))
    assert [run.run_id for run in found] == ids
    assert find_children(found[0]) == []


def test_what_exists_on_disk_is_a_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
    """Where the artifacts lie on a server they are downloaded, whatever their folder."""
    client = MlflowClient(server)
    experiment = client.create_experiment("over-http")
    two = log(client, experiment, document(NODE, {**NODE, "duration_sec": 12.0}))
    elsewhere = log(client, experiment, document(NODE), folder="train/figures")
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
    run_id = log(client, experiment, doc)
    save_nodes(doc, tmp_path / "folder")
    for source in (run_id, tmp_path / "folder"):
        light = get_run(source).document
        assert light is not None
        assert all(not node.reports for node in light.nodes.values())
        assert [index for one in read_documents(source) for index in one.nodes] == list(range(11))
        assert load(source).nodes[3].reports == doc.nodes[3].reports


@pytest.mark.parametrize("statuses", [("FINISHED", "FAILED"), ("FAILED", "FINISHED")])
def test_a_folder_is_as_bad_as_its_worst_node(tmp_path: Path, statuses: tuple[str, str]) -> None:
    """A job of which one node failed has failed, whichever node it was: a gate must not pass it."""
    for index, status in enumerate(statuses):
        node = NodeDocument({"index": index}, status=status, summary={"duration_sec": 1.0})
        PerfDocument({index: node}).save(tmp_path / f"node-{index}.json")
    assert get_run(tmp_path).status == "FAILED"
