"""Several nodes that write to one run: whoever ends last, or never, the whole is of those there."""

from __future__ import annotations

import json
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, suppress
from pathlib import Path
from threading import Barrier, BrokenBarrierError, Event
from typing import Any
from uuid import uuid4

import mlflow
import pytest
from click.testing import CliRunner
from mlflow import MlflowClient
from mlflow.entities import Run
from mlflow.store.artifact.local_artifact_repo import LocalArtifactRepository
from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore
from packaging.version import Version

from mlflow_perf import load
from mlflow_perf.analysis.step_runs import load_step_runs
from mlflow_perf.cli import main
from mlflow_perf.errors import NotUploadedError
from mlflow_perf.model.document import NodeDocument, PerfDocument
from mlflow_perf.publish import node_writer
from mlflow_perf.publish.node_writer import write_node
from mlflow_perf.publish.slots import REPEATED_TAG, Slot
from mlflow_perf.tracking import client as client_calls
from mlflow_perf.tracking import mlflow_call
from mlflow_perf.tracking.delivery import Delivery
from mlflow_perf.tracking.mlflow_call import MlflowCall
from mlflow_perf.tracking.recorded_runs import RECORDING_TAG
from mlflow_perf.tracking.run_handle import RunHandle
from mlflow_perf.tracking.search import find_children, get_run


def _document(index: int) -> NodeDocument:
    busy = 20.0 * (index + 1)
    return NodeDocument(
        node={"index": index, "count": 3, "hostname": f"node{index}"},
        component="ranks",
        status="FINISHED",
        started=1763640000.0 + index,
        duration_sec=3600.0,
        summary={
            "duration_sec": 3600.0,
            "cpu_avg_utilization_pct": busy,
            "node_cpu_hours": 4.0,
            "node_used_cpu_hours": 4.0 * busy / 100,
            "node_unused_cpu_hours": 4.0 * (1 - busy / 100),
            "max_t_mem_percent": 10.0 * (index + 1),
        },
    )


def test_nodes_whose_run_was_not_ready_report_to_one(store: str) -> None:
    """Of one launch, the first node that sends creates the run; its header may be a journal's."""
    made: list[Delivery] = []
    for index, key in ((1, "launch"), (0, "launch"), (0, "another")):
        header = Delivery(run=RunHandle(store, run_name="train", job_key=key), index=index).header()
        made.append(Delivery.from_header(header, _document(index)))
        write_node(made[-1])
    ids = [delivery.run.run_id for delivery in made]
    assert ids[0] == ids[1] != ids[2]
    assert [delivery.run.own_run for delivery in made] == [True, False, True]
    assert set(load(str(ids[0])).nodes) == {0, 1}


def test_a_clock_that_was_set_back_ends_no_run_before_its_start(
    store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run ends as long after its start as the block took."""
    run = RunHandle(store, run_name="train", started=_document(0).started)
    with monkeypatch.context() as patch:
        patch.setattr("time.time", lambda: 1763640000.0 - 86400)
        run_id = write_node(Delivery(_document(0), run, 0))
    info = MlflowClient(store).get_run(run_id).info
    assert info.end_time - info.start_time == 3_600_000


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1), (1, 2, 0), (2, 1), (0,)])
def test_the_last_to_end_has_written_the_whole(store: str, order: tuple[int, ...]) -> None:
    """The run's figures and its imbalance are those of all nodes that ended, in any order."""
    client = MlflowClient(store)
    run_id = client.create_run("0").info.run_id
    for index in order:
        write_node(Delivery(_document(index), RunHandle(store, run_id=run_id), index))
    whole = PerfDocument({index: _document(index) for index in order}).run_summary
    metrics = client.get_run(run_id).data.metrics
    assert {key: metrics[key] for key in whole} == pytest.approx(whole)
    assert metrics["run_node_count"] == len(order)
    if len(order) == 3:
        # The busiest is at 60%, the mean at 40%.
        assert metrics["run_imbalance_pct"] == pytest.approx(50)
    assert set(load(run_id).nodes) == set(order)
    assert client.get_run(run_id).info.status == "RUNNING"


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_a_killed_node_is_killed_everywhere(store: str, order: tuple[int, ...]) -> None:
    """The run's status, its tag and its host are the same, whichever node ends last."""
    client = MlflowClient(store)
    run_id = client.create_run("0", tags={RECORDING_TAG: "abc"}).info.run_id
    for index in order:
        document = _document(index)
        document.status = "KILLED" if index else "FINISHED"
        tags = {"mlflow_perf.hostname": f"node{index}"}
        handle = RunHandle(store, run_id=run_id, own_run=index == 0)
        write_node(Delivery(document, handle, index, tags=tags))
    run = client.get_run(run_id)
    assert run.info.status == run.data.tags["mlflow_perf.status"] == "KILLED"
    assert run.data.tags["mlflow_perf.hostname"] == "node0"


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1), (1, 2, 0)])
def test_the_run_ends_when_its_last_node_has_ended(store: str, order: tuple[int, ...]) -> None:
    """A workflow takes what follows its first node for waiting otherwise."""
    client = MlflowClient(store)
    run_id = client.create_run("0", tags={RECORDING_TAG: "abc"}).info.run_id
    for index in order:
        document = _document(index)
        document.duration_sec = 10.0 if index == 0 else 60.0 / index
        write_node(Delivery(document, RunHandle(store, run_id=run_id, own_run=index == 0), index))
    info = client.get_run(run_id).info
    assert (info.status, info.end_time) == ("FINISHED", 1000 * (1763640000 + 61))


def test_another_component_does_not_prolong_a_run_that_is_over(store: str) -> None:
    """It reports for itself; the run's own time stays."""
    client = MlflowClient(store)
    run_id = client.create_run("0", tags={RECORDING_TAG: "abc"}).info.run_id
    write_node(Delivery(_report("train", 100.0), RunHandle(store, run_id=run_id, own_run=True)))
    write_node(Delivery(_report("score", 900.0), RunHandle(store, run_id=run_id)))
    assert client.get_run(run_id).info.end_time == 105_000


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_the_tag_has_the_cause_that_show_has(store: str, order: tuple[int, ...]) -> None:
    """It is that of the node that ended first, whichever node writes last."""
    client = MlflowClient(store)
    run_id = client.create_run("0").info.run_id
    causes = {0: "signal SIGTERM", 1: "exit code 3"}
    for index in order:
        document = _document(index)
        document.duration_sec, document.extra["cause"] = 60.0 - 10 * index, causes[index]
        tags = {"mlflow_perf.cause": causes[index]}
        write_node(Delivery(document, RunHandle(store, run_id=run_id), index, tags=tags))
    tag = client.get_run(run_id).data.tags["mlflow_perf.cause"]
    assert tag == get_run(run_id).cause == "exit code 3, node 1"


def test_the_overview_speaks_for_all_nodes(store: str) -> None:
    """A node that ends later brings the note and the tags up to date, in whatever state it ends."""
    client = MlflowClient(store)
    run_id = client.create_run("0").info.run_id
    for index, status in ((1, "FINISHED"), (0, "FAILED"), (2, "FINISHED")):
        document = _document(index)
        document.status = status
        document.extra.update(bottleneck="cpu" if index else "disk", advice=f"Advice {index}.")
        tags = {"mlflow_perf.status": status, "mlflow_perf.bottleneck": "idle"}
        write_node(Delivery(document, RunHandle(store, run_id=run_id), index, tags=tags))
    tags = client.get_run(run_id).data.tags
    assert "3 nodes" in tags["mlflow.note.content"]
    # The verdict is that of all nodes, whatever each of them says of itself.
    verdict, title, *_ = tags["mlflow.note.content"].split("\n\n")
    assert verdict == f"**{tags['mlflow_perf.advice']}**"
    assert title.startswith("**ranks** Failed ")
    assert tags["mlflow_perf.status"] == "FAILED"
    assert tags["mlflow_perf.bottleneck"] == "cpu"


@pytest.mark.parametrize(("count", "brief"), [(1, False), (2, False), (1, True)])
def test_artifacts_that_cannot_be_stored_cost_neither_figures_nor_the_runs_end(
    store: str, tmp_path: Path, count: int, brief: bool
) -> None:
    """The run has the node's figures and has ended; a second try sends the rest."""
    place, client = tmp_path / "in the way", MlflowClient(store)
    place.write_text("a file where the folder of the artifacts must be")
    experiment = client.create_experiment("no place", (place / "artifacts").as_uri())
    run_id = client.create_run(experiment).info.run_id
    document = _document(0)
    document.node["count"] = count
    delivery = Delivery(document, RunHandle(store, run_id=run_id, own_run=True), is_brief=brief)
    with pytest.raises(NotUploadedError, match=r"its artifacts are not: .*Error"):
        write_node(delivery)
    run = client.get_run(run_id)
    assert run.info.status == "FINISHED"
    assert run.data.metrics["max_t_mem_percent"] == 10.0
    assert ("run_node_count" in run.data.metrics) == (count == 1)
    place.unlink()
    write_node(delivery)
    assert client.get_run(run_id).data.metrics["run_node_count"] == 1
    assert set(load(run_id).nodes) == {0}


def test_a_run_ends_before_an_upload_that_takes_long(
    store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A gateway may hold uploads up for longer than a job waits; what is wrong is told."""
    client = MlflowClient(store)
    run_id = client.create_run("0").info.run_id
    ended, free = Event(), Event()
    end_run = client_calls.end_run

    def upload(*_: object) -> None:
        threading.current_thread().fault = "Connection reset by peer"  # type: ignore[attr-defined]
        free.wait(60)

    def end(*args: Any, **options: Any) -> None:
        end_run(*args, **options)
        ended.set()

    monkeypatch.setattr(node_writer, "_SLOW_UPLOAD_SEC", 0.01)
    monkeypatch.setattr(mlflow_call, "_LOOK_SEC", 0.01)
    monkeypatch.setattr(node_writer, "end_run", end)
    monkeypatch.setattr(MlflowClient, "log_artifacts", upload)
    delivery = Delivery(_report("train", 1.0), RunHandle(store, run_id=run_id, own_run=True))
    sending = MlflowCall(lambda: write_node(delivery), name="send")
    assert ended.wait(60)
    run = client.get_run(run_id)
    assert (run.info.status, run.data.metrics["run_node_count"]) == ("FINISHED", 1.0)
    while not sending.fault:
        assert not sending.done_within(0.01)
    with pytest.raises(TimeoutError, match=r"its artifacts are not yet: Connection reset by peer"):
        sending.result(0.01)
    free.set()
    assert sending.result(60) == run_id


def test_figures_that_the_run_has_are_not_logged_again(store: str, tmp_path: Path) -> None:
    """`recover` may try for weeks to send artifacts for which there is no credential."""
    place, client = tmp_path / "in the way", MlflowClient(store)
    place.write_text("a file where the folder of the artifacts must be")
    experiment = client.create_experiment("never", (place / "artifacts").as_uri())
    run_id = client.create_run(experiment).info.run_id
    handle = RunHandle(store, run_id=run_id, own_run=True)
    for _ in range(2):
        with pytest.raises(NotUploadedError):
            write_node(Delivery(_report("train", 1.0), handle))
    assert len(client.get_metric_history(run_id, "run_node_count")) == 1
    with pytest.raises(NotUploadedError):
        write_node(Delivery(_report("train", 2.0), handle))
    assert [one.value for one in client.get_metric_history(run_id, "duration_sec")] == [1.0, 2.0]


def test_two_components_have_their_own_keys_also_without_artifacts(
    store: str, tmp_path: Path
) -> None:
    """The first is known by its figures alone then; what is sent later agrees with them."""
    place, client = tmp_path / "in the way", MlflowClient(store)
    place.write_text("a file where the folder of the artifacts must be")
    experiment = client.create_experiment("no place for two", (place / "artifacts").as_uri())
    run_id = client.create_run(experiment).info.run_id
    reports = [(name, _report(name, at)) for name, at in (("train", 100.0), ("test", 200.0))]
    reports[0][1].status = "FAILED"
    for is_stored in (False, False, True):
        if is_stored:
            place.unlink()
        for name, report in reversed(reports) if is_stored else reports:
            tags = {"mlflow_perf.component": name, "mlflow_perf.version": "1"}
            delivery = Delivery(report, RunHandle(store, run_id=run_id), tags=tags)
            with nullcontext() if is_stored else pytest.raises(NotUploadedError):
                write_node(delivery)
        run = client.get_run(run_id)
        assert run.data.tags["mlflow_perf.component"] == "train"
        assert run.data.tags["mlflow_perf.status"] == "FAILED"
        found = [run.data.metrics[key] for key in ("duration_sec", "test/duration_sec")]
        assert found == [100.0, 200.0]
        if not is_stored:
            assert len(client.get_metric_history(run_id, "duration_sec")) == 1
    assert sorted(str(one.component) for one in load(run_id).all_nodes()) == ["test", "train"]


def test_files_that_vanish_during_an_upload_are_no_report(
    store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """MLflow uploads in silence what is left of a folder."""
    client = MlflowClient(store)
    run_id = client.create_run("0").info.run_id
    upload = MlflowClient.log_artifacts

    def upload_late(self: MlflowClient, run_id: str, local_dir: str) -> None:
        for path in Path(local_dir).rglob("*.json"):
            path.unlink()
        upload(self, run_id, local_dir)

    monkeypatch.setattr(MlflowClient, "log_artifacts", upload_late)
    with pytest.raises(NotUploadedError, match="were removed during the upload"):
        write_node(Delivery(_report("train", 1.0), RunHandle(store, run_id=run_id)))


def test_refused_figures_leave_no_upload_behind(
    store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A deleted run refuses figures at once; the process may end before the files are removed."""
    run_id = MlflowClient(store).create_run("0").info.run_id
    refused, folders = Event(), []

    def refuse(*_: object, **__: object) -> None:
        refused.set()
        raise OSError("refused")

    def log_artifacts(_client: MlflowClient, _run_id: str, folder: str) -> None:
        assert refused.wait(60)
        Event().wait(0.05)
        folders.append(Path(folder))

    monkeypatch.setattr(MlflowClient, "log_batch", refuse)
    monkeypatch.setattr(MlflowClient, "log_artifacts", log_artifacts)
    with pytest.raises(OSError, match="refused"):
        write_node(Delivery(_report("train", 1.0), RunHandle(store, run_id=run_id, own_run=True)))
    assert [folder.exists() for folder in folders] == [False]


def test_an_overview_that_a_person_changed_stays(store: str) -> None:
    """Of our own note, too, not a letter is touched once somebody has edited it."""
    client = MlflowClient(store)
    run_id = client.create_run("0").info.run_id
    run = RunHandle(store, run_id=run_id)
    write_node(Delivery(_document(0), run))
    edited = "Mine! " + client.get_run(run_id).data.tags["mlflow.note.content"]
    client.set_tag(run_id, "mlflow.note.content", edited)
    write_node(Delivery(_document(1), run, 1))
    assert client.get_run(run_id).data.tags["mlflow.note.content"] == edited


def test_a_run_killed_at_its_start_ends_there(store: str) -> None:
    """Its report may come hours later: that moment is no end of the job."""
    client = MlflowClient(store)
    run_id = client.create_run("0", start_time=1_000_000).info.run_id
    document = NodeDocument(component="a", status="KILLED", started=1000.0, duration_sec=0.0)
    write_node(Delivery(document, RunHandle(store, run_id=run_id, own_run=True)))
    assert client.get_run(run_id).info.end_time == 1_000_000


def test_an_overview_written_while_our_own_run_went_on_stays(store: str) -> None:
    """A person may describe a run that `report()` started, too: at its end the text is theirs."""
    client = MlflowClient(store)
    run_id = client.create_run("0", tags={"mlflow.note.content": "Mine."}).info.run_id
    document = _document(0)
    document.node["count"] = 1
    write_node(Delivery(document, RunHandle(store, run_id=run_id, own_run=True)))
    run = client.get_run(run_id)
    assert run.data.tags["mlflow.note.content"] == "Mine."
    assert run.info.status == "FINISHED"


def _report(name: str, started: float, **facts: object) -> NodeDocument:
    document = _document(0)
    document.component, document.started = name, started
    document.node = {"index": 0, "count": 1, "hostname": "host", "pid": 1, **facts}
    document.summary = {**document.summary, "duration_sec": started}
    document.duration_sec = 5.0
    return document


def test_two_components_in_one_run_are_both_there(store: str) -> None:
    """The first keeps the plain keys; the other is below its name, everywhere."""
    client = MlflowClient(store)
    run_id = client.create_run("0").info.run_id
    for name, started in (("train", 100.0), ("test", 200.0)):
        tags = {"mlflow_perf.component": name}
        write_node(Delivery(_report(name, started), RunHandle(store, run_id=run_id), tags=tags))
    run = client.get_run(run_id)
    assert run.data.metrics["duration_sec"] == 100.0
    assert run.data.metrics["test/duration_sec"] == 200.0
    assert run.data.metrics["test/run_duration_sec"] == 200.0
    assert run.data.tags["mlflow_perf.component"] == "train"
    assert run.data.tags["mlflow_perf.components"] == '["test"]'
    files = [file.path for file in client.list_artifacts(run_id, "perf")]
    assert files == ["perf/node-0.json", "perf/test"]
    document = load(run_id)
    assert document.nodes[0].component == "train"
    assert document.components["test"].nodes[0].summary["duration_sec"] == 200.0
    page = Path(client.download_artifacts(run_id, "perf_report.html")).read_text("utf-8")
    assert "<bdi>test</bdi>" in page
    result = CliRunner().invoke(main, ["show", run_id, "--json"])
    shown = json.loads(result.stdout)
    assert shown["nodes"]["0"]["duration_sec"] == 100.0
    assert shown["components"]["test"]["nodes"]["0"]["duration_sec"] == 200.0
    assert list(load_step_runs([run_id])[0].steps) == ["train", "test"]


@pytest.mark.skipif(sys.platform != "linux", reason="the lock is one of Linux")
def test_processes_that_end_together_lose_no_report(
    store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of workers of a pool, none writes over a report that came after it had looked."""
    client = MlflowClient(store)
    run_id = client.create_run("0").info.run_id
    have_looked, first_has_written = Barrier(2, timeout=0.5), Event()
    write_alone = node_writer._NodeWriter._write_alone

    def write_in_turn(writer: node_writer._NodeWriter, slot: Slot) -> None:
        with suppress(BrokenBarrierError):
            have_looked.wait()
            if writer._mine.node["pid"] == 1:
                first_has_written.wait(30)
        write_alone(writer, slot)

    def write(pid: int) -> None:
        report = _report("worker", 100.0 + pid, pid=pid)
        write_node(Delivery(report, RunHandle(store, run_id=run_id)))
        first_has_written.set()

    monkeypatch.setattr(node_writer._NodeWriter, "_write_alone", write_in_turn)
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(write, range(2)))
    files = [file.path for file in client.list_artifacts(run_id, "perf")]
    assert sum("replaced-node-0" in file for file in files) == 1
    assert load(run_id).nodes[0].node["pid"] == 1


@pytest.mark.parametrize("order", [(100.0, 200.0), (200.0, 100.0)])
def test_of_two_attempts_the_later_counts_and_the_other_stays_beside(
    store: str, caplog: pytest.LogCaptureFixture, order: tuple[float, float]
) -> None:
    """In whatever order they arrive, one line says which was kept where."""
    client = MlflowClient(store)
    run_id = client.create_run("0").info.run_id
    for started in order:
        own = started == 100.0  # the first attempt made the run, and is recovered perhaps
        run = RunHandle(store, run_id=run_id, own_run=own)
        document = _report("train", started)
        document.status = "KILLED" if own else "FINISHED"
        write_node(Delivery(document, run))
    assert client.get_run(run_id).data.metrics["duration_sec"] == 200.0
    assert load(run_id).nodes[0].started == 200.0
    names = [file.path for file in client.list_artifacts(run_id, "perf")]
    assert names == ["perf/node-0.json", "perf/replaced-node-0-19700101T000140.000000Z.json"]
    said = [r.getMessage() for r in caplog.records if names[1] in r.getMessage()]
    assert len(said) == 1
    if order[0] > order[1]:
        info = client.get_run(run_id).info
        assert (info.status, info.end_time) == ("FINISHED", 205_000)


@pytest.mark.parametrize("again", [("load",), ("train",), ("load", "train")])
def test_no_component_of_an_earlier_attempt_is_left_beside_the_last_one(
    store: str, again: tuple[str, ...]
) -> None:
    """Its reports stay under other names, whichever of them the repeated job writes again."""
    client = MlflowClient(store)
    run_id = client.create_run("0").info.run_id
    for name, started in (("load", 100.0), ("train", 110.0)):
        tags = {"mlflow_perf.component": name, "mlflow_perf.version": "1"}
        write_node(Delivery(_report(name, started), RunHandle(store, run_id=run_id), tags=tags))
    assert set(get_run(run_id).components) == {"train"}
    client.delete_tag(run_id, "mlflow_perf.version")
    client.set_tag(run_id, REPEATED_TAG, "150.0")
    for i, name in enumerate(again):
        report, tags = _report(name, 200.0 + 10.0 * i), {"mlflow_perf.component": name}
        write_node(Delivery(report, RunHandle(store, run_id=run_id), tags=tags))
    run = get_run(run_id)
    assert (run.component, set(run.components)) == (again[0], set(again[1:]))
    document = load(run_id)
    written = [document, *document.components.values()]
    assert all((node.started or 0.0) >= 200.0 for one in written for node in one.nodes.values())
    found = [client.list_artifacts(run_id, path) for path in ("perf", "perf/train")]
    kept = [file.path for files in found for file in files if "/replaced-node-0" in file.path]
    assert len(kept) == 2


def test_nothing_is_said_to_be_replaced_before_it_is(
    store: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store may refuse the artifacts, and the earlier report is still in its place."""
    client = MlflowClient(store)
    run_id = client.create_run("0").info.run_id
    write_node(Delivery(_report("train", 100.0), RunHandle(store, run_id=run_id)))

    def refuse(self: MlflowClient, run_id: str, local_dir: str) -> None:
        raise PermissionError("read-only")

    monkeypatch.setattr(MlflowClient, "log_artifacts", refuse)
    with pytest.raises(NotUploadedError, match="read-only"):
        write_node(Delivery(_report("train", 200.0), RunHandle(store, run_id=run_id)))
    assert "replaces" not in caplog.text
    assert load(run_id).nodes[0].started == 100.0


def test_a_process_that_takes_the_place_at_the_same_moment_is_noticed(
    store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever finds another report in its place moves: no report is lost."""
    client = MlflowClient(store)
    run_id = client.create_run("0").info.run_id
    theirs = Delivery(_report("train", 99.0, hostname="other"), RunHandle(store, run_id=run_id))
    calls: list[int] = []
    original = node_writer._NodeWriter._write_alone

    def interrupted(writer: node_writer._NodeWriter, slot: Slot) -> None:
        original(writer, slot)
        if not calls:
            calls.append(1)
            original(node_writer._NodeWriter(theirs), slot)

    monkeypatch.setattr(node_writer._NodeWriter, "_write_alone", interrupted)
    write_node(Delivery(_report("train", 100.0), RunHandle(store, run_id=run_id)))
    hosts = {index: node.node["hostname"] for index, node in load(run_id).nodes.items()}
    assert hosts == {0: "other", 1: "host"}


def test_a_run_without_a_report_is_not_searched_for_one(
    store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run's tags say whether it has a report: only a second one lists the artifacts."""
    run_id = MlflowClient(store).create_run("0").info.run_id
    listed: list[str] = []
    original = LocalArtifactRepository.list_artifacts

    def list_artifacts(place: LocalArtifactRepository, path: str | None = None) -> object:
        listed.append(str(path))
        return original(place, path)  # type: ignore[no-untyped-call, unused-ignore]

    monkeypatch.setattr(LocalArtifactRepository, "list_artifacts", list_artifacts)
    write_node(Delivery(_report("train", 100.0), RunHandle(store, run_id=run_id, own_run=True)))
    assert listed == []
    write_node(Delivery(_report("train", 200.0), RunHandle(store, run_id=run_id, own_run=True)))
    assert listed
    assert load(run_id).nodes[0].started == 200.0


def test_a_short_runs_document_is_uploaded_before_its_figures(
    store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """MLflow reads the whole run before an upload: that is cheap while it has no figures."""
    run_id = MlflowClient(store).create_run("0").info.run_id
    upload, read = MlflowClient.log_artifacts, []

    def log_artifacts(client: MlflowClient, run_id: str, folder: str) -> None:
        read.append(client.get_run(run_id).data.metrics)
        upload(client, run_id, folder)

    monkeypatch.setattr(MlflowClient, "log_artifacts", log_artifacts)
    write_node(Delivery(_document(0), RunHandle(store, run_id=run_id), is_brief=True))
    assert read == [{}]
    assert set(load(run_id).nodes) == {0}


def test_a_report_leaves_no_artifact_repository_behind(store: str) -> None:
    """MLflow keeps one with its threads for each run; the job's own one stays."""
    from mlflow.tracking._tracking_service.utils import _artifact_repos_cache

    client = MlflowClient(store)
    ours, jobs = (client.create_run("0").info.run_id for _ in range(2))
    client.log_text(jobs, "of the job", "notes.txt")
    for run_id in (ours, jobs):
        write_node(Delivery(_report("train", 100.0), RunHandle(store, run_id=run_id, own_run=True)))
    assert ours not in _artifact_repos_cache
    assert jobs in _artifact_repos_cache


@pytest.mark.parametrize(("is_brief", "count"), [(False, 1), (True, 0)])
def test_a_run_is_read_once_at_most(
    store: str, monkeypatch: pytest.MonkeyPatch, is_brief: bool, count: int
) -> None:
    """MLflow would read the run, with all its figures, before an upload."""
    info = MlflowClient(store).create_run("0").info
    run = RunHandle(store, run_id=info.run_id, own_run=True, artifact_uri=info.artifact_uri)
    look_up, reads = SqlAlchemyStore.get_run, list[str]()

    def get_run(self: SqlAlchemyStore, run_id: str) -> Run:
        reads.append(run_id)
        return look_up(self, run_id)  # type: ignore[no-any-return, no-untyped-call]

    monkeypatch.setattr(SqlAlchemyStore, "get_run", get_run)
    write_node(Delivery(_report("train", 100.0), run, is_brief=is_brief))
    is_older = Version(mlflow.__version__) < Version("3.15")  # it asks once more
    assert len(reads) == count + is_older
    assert set(load(info.run_id).nodes) == {0}


def test_a_report_that_hangs_holds_up_no_other(store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Until Python 3.12, a `cached_property` has one lock for all objects of its class."""
    hangs, goes_on = Event(), Event()
    get_run = MlflowClient.get_run

    def ask(client: MlflowClient, run_id: str) -> Run:
        is_ill = threading.current_thread().name.startswith("ill")
        if is_ill and sys._getframe(2).f_code.co_name == "_stored":
            hangs.set()
            goes_on.wait(60)
        return get_run(client, run_id)

    monkeypatch.setattr(MlflowClient, "get_run", ask)
    deliveries = [Delivery(_report(name, 1.0), RunHandle(store, run_name=name)) for name in "ab"]
    with ThreadPoolExecutor(1, "ill") as ill, ThreadPoolExecutor(1, "well") as well:
        first = ill.submit(write_node, deliveries[0])
        try:
            assert hangs.wait(60)
            assert well.submit(write_node, deliveries[1]).result(60)
            assert not first.done()
        finally:
            goes_on.set()
        assert first.result(60)


def test_a_step_in_another_experiment_is_found_from_its_parent(
    store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A script may choose its experiment; only who may write to the parent can add steps to it."""
    client = MlflowClient(store)
    parent, other = client.create_run("0").info.run_id, client.create_experiment(uuid4().hex)
    monkeypatch.setenv("MLFLOW_PERF_PARENT", parent)
    runs = [client.create_run(e, tags={"mlflow.parentRunId": parent}).info for e in ("0", other)]
    assert [run.run_id for run in find_children(get_run(parent))] == [runs[0].run_id]
    for run in runs:
        handle = RunHandle(store, run_id=run.run_id, own_run=True, experiment_id=run.experiment_id)
        write_node(Delivery(_report("train", 100.0), handle, is_brief=True))
    found = find_children(get_run(parent))
    assert {run.run_id for run in found} == {run.run_id for run in runs}
    monkeypatch.setenv("MLFLOW_PERF_PARENT", "gone")
    handle = RunHandle(store, run_id=runs[0].run_id, own_run=True, experiment_id="0")
    write_node(Delivery(_report("train", 101.0), handle, is_brief=True))
