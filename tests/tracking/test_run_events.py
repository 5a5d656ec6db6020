"""Runs are noticed however they start and end, and MLflow behaves as if nobody looked."""

from __future__ import annotations

import inspect
import signal
from collections.abc import Iterator
from types import SimpleNamespace
from unittest import mock

import mlflow
import pytest
from mlflow import ActiveRun, MlflowClient

from mlflow_perf.core.own_cost import as_own
from mlflow_perf.tracking import run_events
from mlflow_perf.tracking.run_events import StartedRun

PLAIN = {
    (owner, name): getattr(owner, name)
    for owner, name in [
        (MlflowClient, "create_run"),
        (MlflowClient, "set_terminated"),
        (MlflowClient, "update_run"),
        (MlflowClient, "delete_run"),
        (ActiveRun, "__init__"),
    ]
}


class Listener:
    """Remembers what it heard."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, str]] = []
        self.started: list[StartedRun] = []

    def run_started(self, run: StartedRun) -> None:
        """Remember a start."""
        self.started.append(run)
        self.heard.append(("new" if run.is_new else "active", run.run_id))

    def run_ending(self, run_id: str, status: str) -> None:
        """Remember an end."""
        self.heard.append((status, run_id))

    def run_ended(self, run_id: str) -> None:
        """Remember that it is over."""
        self.heard.append(("ended", run_id))

    def run_deleted(self, run_id: str) -> None:
        """Remember a deletion."""
        self.heard.append(("deleted", run_id))

    def run_restored(self, run_id: str) -> None:
        """Remember that it was taken back."""
        self.heard.append(("restored", run_id))


@pytest.fixture
def listener(store: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Listener]:
    """A listener that is told of the test's runs."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", store)
    listener = Listener()
    run_events.listen(listener)
    yield listener
    run_events.stop_listening(listener)


def test_a_slow_server_makes_no_run_of_the_past(
    listener: Listener, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run is of the past by its start before the call, however long the call takes."""
    now = iter([1_700_000_000.0, 1_700_000_010.0])  # the clock is read when each call begins
    monkeypatch.setattr(run_events, "time", SimpleNamespace(time=lambda: next(now)))
    client = MlflowClient()
    for start_ms in (1_700_000_000_500, 1_700_000_005_000):
        client.create_run("0", start_time=start_ms)
    assert [run.is_backdated for run in listener.started] == [False, True]


def test_every_way_to_start_and_end_a_run_is_told(listener: Listener, store: str) -> None:
    """`start_run`, a nested one, a resumed one, and the client's own methods."""
    with mlflow.start_run() as outer, mlflow.start_run(nested=True) as inner:
        pass
    mlflow.start_run(run_id=outer.info.run_id)
    mlflow.end_run("KILLED")
    client = MlflowClient()
    one = client.create_run(outer.info.experiment_id, run_name="mine").info.run_id
    client.update_run(one, "RUNNING")
    client.update_run(one, status="FAILED")
    client.delete_run(one)
    client.restore_run(one)
    a, b = outer.info.run_id, inner.info.run_id
    assert listener.heard == [
        ("new", a), ("active", a), ("new", b), ("active", b),
        ("FINISHED", b), ("ended", b), ("FINISHED", a), ("ended", a),
        ("active", a), ("KILLED", a), ("ended", a),
        ("new", one), ("FAILED", one), ("ended", one), ("deleted", one), ("restored", one),
    ]  # fmt: skip
    assert listener.started[2].parent_id == a
    assert listener.started[-1].name == "mine"
    assert listener.started[-1].tracking_uri == store


def test_the_run_of_a_stand_in_is_not_told(listener: Listener) -> None:
    """The tests of a job may replace the client; a run without a text as its id is in no store."""
    with mock.patch("mlflow.tracking.fluent.MlflowClient"), mlflow.start_run():
        pass
    assert listener.started == []


def test_our_own_runs_are_not_told(listener: Listener) -> None:
    """A run that mlflow-perf itself creates is not the job's."""
    with as_own():
        run = MlflowClient().create_run(mlflow.tracking.fluent._get_experiment_id() or "0")
        MlflowClient().set_terminated(run.info.run_id)
    assert listener.heard == []


def test_signatures_and_errors_stay(listener: Listener) -> None:
    """What a wrapped method takes and raises is what MLflow's takes and raises."""
    for (owner, name), plain in PLAIN.items():
        assert inspect.signature(getattr(owner, name)) == inspect.signature(plain)
        assert getattr(owner, name).__doc__ == plain.__doc__
    with pytest.raises(mlflow.MlflowException):
        MlflowClient().set_terminated("0" * 32)
    with pytest.raises(mlflow.MlflowException):
        MlflowClient().create_run("no such experiment")
    with pytest.raises(TypeError):
        MlflowClient().create_run()  # type: ignore[call-arg]


def test_a_listener_that_fails_harms_no_run(
    listener: Listener, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One warning for each fault; the run goes on and ends, and another listener hears of it."""

    class Failing(Listener):
        def run_started(self, run: StartedRun) -> None:
            raise RuntimeError("ours")

        def run_ending(self, run_id: str, status: str) -> None:
            raise RuntimeError("ours")

    monkeypatch.setattr(run_events, "_warned", set())
    failing = Failing()
    run_events.listen(failing)
    try:
        with mlflow.start_run() as run:
            pass
    finally:
        run_events.stop_listening(failing)
    assert MlflowClient().get_run(run.info.run_id).info.status == "FINISHED"
    assert listener.heard[-1] == ("ended", run.info.run_id)
    said = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert said == ["The performance of a run is not reported: RuntimeError: ours"]


def test_without_a_listener_mlflow_is_as_it_was(listener: Listener) -> None:
    """The last one that leaves restores MLflow; a foreign wrapper around ours stays."""
    original = MlflowClient.create_run
    assert original is not PLAIN[MlflowClient, "create_run"]
    run_events.stop_listening(listener)
    for (owner, name), plain in PLAIN.items():
        assert getattr(owner, name) is plain


def test_an_error_of_the_jobs_signal_handler_passes_through(
    listener: Listener, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A timeout that rings while a report is sent ends the job's call, as without us."""

    def ring(*_: object) -> None:
        raise TimeoutError

    def run_ended(*_: object) -> None:
        signal.raise_signal(signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, ring)
    monkeypatch.setattr(listener, "run_ended", run_ended)
    try:
        with pytest.raises(TimeoutError), mlflow.start_run():
            pass
    finally:
        signal.signal(signal.SIGUSR1, before)
