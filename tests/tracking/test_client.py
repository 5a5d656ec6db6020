"""Runs of a real store: created, found, ended and deleted through a client."""

from __future__ import annotations

import threading
from functools import partial
from http.server import BaseHTTPRequestHandler, HTTPServer
from types import SimpleNamespace
from typing import Any

import mlflow
import pytest
from mlflow import MlflowClient
from mlflow.entities import Param
from mlflow.exceptions import MlflowException

from mlflow_perf.errors import RunNotFoundError
from mlflow_perf.tracking.client import (
    create_run,
    discard_run,
    end_run,
    find_current_experiment,
    open_client,
    open_run,
    provide_experiment,
    read_chosen_experiment,
    set_tags,
)
from mlflow_perf.tracking.mlflow_call import MlflowCall
from mlflow_perf.tracking.recorded_runs import find_job_run
from mlflow_perf.tracking.run_handle import JOB_TAG, RunHandle


def test_a_run_is_created_found_and_ended(store: str, capfd: pytest.CaptureFixture[str]) -> None:
    """It has its name, tags and start; ending it prints nothing to the job's output."""
    made = create_run("n" * 300, tracking_uri=store, tags={JOB_TAG: "a"}, started=1000.0).info
    assert (made.start_time, made.run_name) == (1_000_000, "n" * 250)
    first, other = RunHandle(store, job_key="a"), RunHandle(store, job_key="b")
    found = find_job_run(first, "0", since=999.0)
    assert found is not None
    assert found.info.run_id == made.run_id
    assert find_job_run(other, "0", since=999.0) is None
    end_run(open_client(store), made.run_id, "FAILED", ended=1001.0)
    assert find_job_run(first, "0", since=1000.5) is not None
    assert find_job_run(first, "0", since=1002.0) is None, "the job's next recording"
    run = open_run(made.run_id, tracking_uri=store)
    assert (run.info.status, run.info.end_time) == ("FAILED", 1_001_000)
    assert capfd.readouterr().out == ""


def test_a_text_with_a_nul_is_a_tag_that_postgresql_takes(store: str) -> None:
    """It may be the last line of a log, or the name of a run."""
    client = open_client(store)
    made = create_run("a\0b", tracking_uri=store, tags={"mlflow_perf.step": "c\0d"})
    set_tags(client, made.info.run_id, {"mlflow_perf.error": "e\0f\udcff"})
    tags = client.get_run(made.info.run_id).data.tags
    assert tags["mlflow.runName"] == "a�b"
    assert (tags["mlflow_perf.step"], tags["mlflow_perf.error"]) == ("c�d", "e�f?")


def test_no_queue_of_mlflows_is_started(store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the job logs asynchronously: its forks would wait for the threads of a queue."""
    monkeypatch.setenv("MLFLOW_ENABLE_ASYNC_LOGGING", "true")
    client = open_client(store)
    run_id = create_run("a", tracking_uri=store, tags={}).info.run_id
    client.log_batch(run_id, params=[Param("rows", "9")])
    client.set_tag(run_id, "name", "value")
    data = client.get_run(run_id).data
    assert (data.params["rows"], data.tags["name"]) == ("9", "value")
    assert not [one for one in threading.enumerate() if one.name.startswith("MLflow")]


def test_an_answer_that_is_no_tracking_servers_is_noticed() -> None:
    """A gateway may answer 200 and nothing; MLflow takes that for an empty answer."""

    class Gateway(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Gateway) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        client = open_client(f"http://127.0.0.1:{server.server_port}")
        # MLflow 3.1 notices by itself.
        with pytest.raises(
            (OSError, MlflowException), match=r"not a tracking server's|not in a valid"
        ):
            end_run(client, "a" * 32, "FINISHED", ended=1.0)
        server.shutdown()


def test_a_deleted_run_and_an_unknown_one_are_not_found(store: str) -> None:
    """The message names the run and says what happened to it."""
    made = create_run("train", tracking_uri=store).info
    discard_run(made.run_id, tracking_uri=store)
    assert MlflowClient(store).get_run(made.run_id).info.status == "KILLED"  # runs no longer
    with pytest.raises(RunNotFoundError, match="was deleted"):
        open_run(made.run_id, tracking_uri=store)
    with pytest.raises(RunNotFoundError, match="There is no MLflow run 'nope'"):
        open_run("nope", tracking_uri=store)


def test_an_answer_without_a_run_is_no_run(store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A gateway may answer every request with 200 and JSON of its own."""
    nobody = SimpleNamespace(info=SimpleNamespace(run_id=""))
    monkeypatch.setattr(MlflowClient, "create_run", lambda *_, **__: nobody)
    with pytest.raises(ConnectionError, match="no run"):
        create_run("train", tracking_uri=store)


def test_the_chosen_experiment_is_created_if_need_be(
    store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An experiment that was chosen by name is looked up when the report is sent, or created."""
    monkeypatch.setattr("mlflow.tracking.fluent._active_experiment_id", None)
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "wanted")
    assert read_chosen_experiment() == (None, "wanted")
    run = RunHandle(store, experiment_name="wanted")
    made = provide_experiment(run)
    assert provide_experiment(run) == made
    experiment = MlflowClient(store).get_experiment_by_name("wanted")
    assert experiment is not None
    assert experiment.experiment_id == made
    assert provide_experiment(RunHandle(store, experiment_id="7")) == "7"
    assert provide_experiment(RunHandle(store)) is None


@pytest.mark.parametrize("by_mlflow", [True, False])
def test_an_experiment_that_another_job_makes_at_the_same_moment_is_used(
    store: str, monkeypatch: pytest.MonkeyPatch, by_mlflow: bool
) -> None:
    """It came between the look and the creation, which the store then refuses."""
    monkeypatch.setattr("mlflow.tracking.fluent._active_experiment_id", None)
    wanted = f"wanted at once {by_mlflow}"
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", wanted)
    mlflow.set_tracking_uri(store)
    find, made = MlflowClient.get_experiment_by_name, []

    def find_too_early(client: MlflowClient, name: str) -> Any:
        found = find(client, name)
        if found is None:
            made.append(client.create_experiment(name))
        return found

    monkeypatch.setattr(MlflowClient, "get_experiment_by_name", find_too_early)
    if by_mlflow:
        assert [find_current_experiment(store)] == made
    else:
        assert [provide_experiment(RunHandle(store, experiment_name=wanted))] == made


def test_a_connection_of_a_thread_of_ours_never_comes_to_the_job(
    store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With gevent it would fail there: a server is asked in the job's own thread, or not at all."""
    server = "http://127.0.0.1:9"
    monkeypatch.setattr("socket.socket", type("Other", (), {"__module__": "gevent._socket3"}))
    open_client(server)
    for ask in (open_client, find_current_experiment):
        with pytest.raises(RuntimeError, match="beside the job: gevent replaces socket"):
            MlflowCall(partial(ask, server), name="test").result(60)
    MlflowCall(lambda: open_client(store), name="test").result(60)
    monkeypatch.undo()
    MlflowCall(lambda: open_client(server), name="test").result(60)
