"""The handle of a run: it takes one run, from whoever still has the permission to create it."""

from __future__ import annotations

import json
from dataclasses import asdict
from threading import Thread

import pytest

from mlflow_perf.core.workspaces import working_in
from mlflow_perf.model.document import NodeDocument
from mlflow_perf.tracking.delivery import Delivery
from mlflow_perf.tracking.run_handle import PipelineStep, RunHandle, find_step


def test_the_first_run_is_the_run() -> None:
    """A second run, created meanwhile by another thread, is refused."""
    run = RunHandle("sqlite:///x.db", experiment_name="wanted")
    slow, fast = run.claim(), run.claim()
    assert fast.adopt("r1", own=True, experiment_id="7")
    assert not slow.adopt("r2", own=True, experiment_id="7")
    assert slow.adopt("r1", own=True, experiment_id="7"), "the same run, found by its nonce"
    assert (run.run_id, run.own_run, run.experiment_id) == ("r1", True, "7")
    assert run.experiment_name is None, "the id says it all"


def test_a_run_that_comes_after_its_claim_was_withdrawn_is_refused() -> None:
    """Nobody waits for it any more: the report goes elsewhere."""
    run = RunHandle()
    claim = run.claim()
    claim.withdraw()
    assert not claim.adopt("late", own=True, experiment_id=None)
    assert run.run_id is None
    assert run.claim().adopt("r1", own=False, experiment_id=None), "other claims still hold"


def test_a_new_run_is_a_child_of_the_named_parent(monkeypatch: pytest.MonkeyPatch) -> None:
    """MLFLOW_PERF_PARENT holds for runs that are created later too, from a journal."""
    monkeypatch.setenv("MLFLOW_PERF_PARENT", "the-group")
    header = Delivery(run=RunHandle("sqlite:///x.db")).header()
    monkeypatch.delenv("MLFLOW_PERF_PARENT")
    assert RunHandle().list_tags() == {}
    later = Delivery.from_header({**header, "tags": {}}, NodeDocument())
    assert later.run.list_tags() == {"mlflow.parentRunId": "the-group"}


def test_a_given_run_stays() -> None:
    """A handle that has a run from its beginning takes no other."""
    run = RunHandle(run_id="given")
    assert not run.claim().adopt("other", own=True, experiment_id=None)
    assert (run.run_id, run.own_run) == ("given", False)


@pytest.mark.parametrize(("uri", "waits"), [("sqlite:///x.db", True), ("http://a:1", False)])
def test_a_second_attempt_waits_for_the_first_where_the_store_is_here(
    uri: str, waits: bool
) -> None:
    """It would be as slow, and its run be deleted; a server may answer it and not the first."""
    run, order = RunHandle(uri), list[str]()

    def create() -> None:
        with run.creating():
            order.append("second")

    second = Thread(target=create)
    with run.creating():
        second.start()
        second.join(0.2 if waits else 60)
        order.append("first")
    second.join(60)
    assert order == (["first", "second"] if waits else ["second", "first"])


def test_a_run_is_in_the_workspace_in_which_it_was_created(monkeypatch: pytest.MonkeyPatch) -> None:
    """The journal and the link name that one, wherever the job works by then."""
    pytest.importorskip("mlflow.utils.workspace_context")
    monkeypatch.setenv("MLFLOW_WORKSPACE", "early")
    run = RunHandle("http://server", has_page=True)
    assert Delivery(run=run).header()["workspace"] == "early"
    with working_in("team-a"):
        run.claim().adopt("r1", own=True, experiment_id="7")
    monkeypatch.setenv("MLFLOW_WORKSPACE", "late")
    header = Delivery(run=run).header()
    assert Delivery.from_header({**header, "tags": {}}, NodeDocument()).run.workspace == "team-a"
    assert run.link() == "http://server/perf/run?id=r1&workspace=team-a"


def test_the_runner_of_a_pipeline_makes_the_runs_of_its_steps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A step that began without one has no other; a group inside it has steps of its own."""
    assert not RunHandle("http://server").is_left
    left = PipelineStep("the-pipeline", "load data", "http://server", "0")
    monkeypatch.setenv("MLFLOW_PERF_STEP", json.dumps(asdict(left)))
    assert find_step() == left
    assert RunHandle("http://server").is_left
    assert RunHandle().is_left
    assert not RunHandle("http://server", run_id="given").is_left
    monkeypatch.setenv("MLFLOW_PERF_STEP", json.dumps({**asdict(left), "run_id": "the-steps"}))
    assert not RunHandle("http://server").is_left
    monkeypatch.setenv("MLFLOW_PERF_STEP", json.dumps(asdict(left)))
    monkeypatch.setenv("MLFLOW_PERF_PARENT", "the-group")
    assert not RunHandle("http://server").is_left
    monkeypatch.delenv("MLFLOW_PERF_PARENT")
    for odd in ("", "{", "[]", "3", '{"parent": "x"}'):
        monkeypatch.setenv("MLFLOW_PERF_STEP", odd)
        assert find_step() is None
