"""What a pipeline asks of its store, in bounded time."""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path

import pytest
from mlflow.exceptions import MlflowException

from mlflow_perf.pipelines import store_calls
from mlflow_perf.pipelines.store_calls import StoreCalls
from mlflow_perf.tracking.mlflow_call import MlflowCall

URI = "http://user:s3cr3t@127.0.0.1:9"


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(store_calls, "_KNOCK_SEC", 0.2)
    monkeypatch.setattr(store_calls, "_STOPPED_SEC", 0.2)
    monkeypatch.setenv("MLFLOW_PERF_EXIT_TIMEOUT", "0")
    yield
    store_calls._away.clear()


@pytest.fixture
def release() -> Iterator[threading.Event]:
    """What a call waits for that does not come to its end."""
    event = threading.Event()
    yield event
    event.set()


def test_an_answer_is_returned(tmp_path: Path) -> None:
    """Nothing is said, and nothing has failed."""
    store = StoreCalls(URI, tmp_path / "stop")
    assert (store.ask(lambda: 3, "It is missing"), store.has_failed) == (3, False)


def test_a_store_that_is_away_is_waited_for_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, release: threading.Event
) -> None:
    """One warning without password, and the next call is not made before the store answers."""
    store = StoreCalls(URI, tmp_path / "stop")
    assert store.ask(release.wait, "It is missing") is None
    assert store.ask(lambda: pytest.fail("asked"), "It is missing", is_long=True) is None
    assert store.has_failed
    (record,) = caplog.records
    assert record.getMessage() == (
        "MLflow at http://user:***@127.0.0.1:9 does not answer (no answer came in time). "
        "The steps go on."
    )


def test_a_store_that_is_back_is_asked_again(tmp_path: Path, release: threading.Event) -> None:
    """It is knocked at first."""
    store = StoreCalls(f"sqlite:///{tmp_path}/new.db", tmp_path / "stop")
    assert store.ask(release.wait, "It is missing") is None
    store_calls._KNOCK_SEC = 60.0
    assert store.ask(lambda: 3, "It is missing") == 3
    assert not store_calls._away


def test_a_run_that_comes_too_late_is_undone(tmp_path: Path, release: threading.Event) -> None:
    """Nobody knows of it: it would be RUNNING for ever."""
    undone: list[str] = []
    done = threading.Event()

    def undo(run_id: str) -> None:
        undone.append(run_id)
        done.set()

    def make() -> str:
        release.wait()
        return "late"

    assert StoreCalls(URI, tmp_path / "stop").ask(make, "No run", undo=undo) is None
    release.set()
    assert done.wait(30)
    assert undone == ["late"]


@pytest.mark.parametrize("sign", ["fault", "silence", "stop"])
def test_a_long_call_goes_on_until_something_is_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, release: threading.Event, sign: str
) -> None:
    """A broken request, a server that says nothing, or the end of the pipeline."""
    monkeypatch.setattr(store_calls, "_KNOCK_EVERY_SEC", 0.0)
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        uri = f"http://127.0.0.1:{server.getsockname()[1]}"
        server.listen()
        if sign == "fault":
            monkeypatch.setattr(MlflowCall, "find_fault", lambda _: "connection reset")
        elif sign == "stop":
            (tmp_path / "stop").touch()
        assert StoreCalls(uri, tmp_path / "stop").ask(release.wait, "Lost", is_long=True) is None
    assert store_calls._away == {(uri, "Lost")}


def test_a_file_whose_upload_has_no_answer_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The server answers all else, and MLflow would wait for minutes."""
    monkeypatch.setattr(store_calls, "_ANSWER_SEC", 0.2)
    monkeypatch.setattr(store_calls, "_knock", lambda _: MlflowCall(list, name="knock"))
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]

        def upload() -> object:
            connection = HTTPConnection("127.0.0.1", port, timeout=600)
            connection.request("PUT", "/file", b"data")
            return connection.getresponse()

        store = StoreCalls(f"http://127.0.0.1:{port}", tmp_path / "stop")
        for _ in range(2):
            assert store.ask(upload, "The files are lost", is_long=True) is None
    (record,) = caplog.records
    assert "no answer came in time" in record.getMessage()


@pytest.mark.parametrize(
    ("is_long", "fault"), [(True, "HTTP 500"), (False, "HTTP 500"), (False, "")]
)
def test_what_fails_while_the_store_answers_is_waited_for_once(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    release: threading.Event,
    is_long: bool,
    fault: str,
) -> None:
    """Each step of a pipeline would wait for it, and say so."""
    monkeypatch.setattr(store_calls, "_knock", lambda _: MlflowCall(list, name="knock"))
    monkeypatch.setattr(MlflowCall, "find_fault", lambda _: fault)
    lost = "The end of step %r is lost"
    with socket.create_server(("127.0.0.1", 0)) as server:
        store = StoreCalls(f"http://127.0.0.1:{server.getsockname()[1]}", tmp_path / "stop")
        for step, timeout_sec in (("a", "0"), ("b", "3600"), ("c", "3600")):
            monkeypatch.setenv("MLFLOW_PERF_EXIT_TIMEOUT", timeout_sec)
            assert store.ask(release.wait, lost, step, is_long=is_long) is None
            assert store.ask(lambda: 3, "It is missing") == 3
        assert len(caplog.records) == 1
        assert store.ask(lambda: 3, lost, "d", is_long=is_long) == 3
        assert not store_calls._away


def test_a_refusal_is_no_absence(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It has its own line, without a traceback, and the next call is made at once."""

    def refuse() -> None:
        raise MlflowException("Permission denied\nfor this run")

    caplog.set_level(logging.INFO)
    with socket.create_server(("127.0.0.1", 0)) as server:
        store = StoreCalls(f"http://127.0.0.1:{server.getsockname()[1]}", tmp_path / "stop")
        assert store.ask(refuse, "The run of step %r could not be ended", "a") is None
    (record,) = caplog.records
    assert record.getMessage().startswith("The run of step 'a' could not be ended: ")
    assert "Permission denied" in record.getMessage()
    assert record.exc_info is None
    assert "\n" not in record.getMessage()
    assert store.ask(lambda: 3, "It is missing") == 3


def test_a_broken_connection_is_an_absence(tmp_path: Path) -> None:
    """MLflow raises an exception of its own after its last try."""

    def fail() -> None:
        raise MlflowException(
            "API request to http://h/x failed with exception HTTPConnectionPool(host='h', port=9): "
            "Max retries exceeded with url: /x (Caused by NewConnectionError('refused'))"
        )

    assert StoreCalls(URI, tmp_path / "stop").ask(fail, "Lost") is None
    assert store_calls._away == {(URI, "Lost")}


def test_a_database_that_is_down_is_an_absence(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Its driver's error is of many kinds; one line is said of it."""

    def fail() -> None:
        raise MlflowException("(psycopg2.OperationalError) connection failed: refused\n\tIs it on?")

    uri = "postgresql://user:s3cr3t@127.0.0.1:9/db"
    store = StoreCalls(uri, tmp_path / "stop")
    assert store.ask(fail, "Lost") is store.ask(fail, "Lost") is None
    assert store_calls._away == {(uri, "Lost")}
    (record,) = caplog.records
    assert record.getMessage() == (
        "MLflow at postgresql://user:***@127.0.0.1:9/db does not answer "
        "((psycopg2.OperationalError) connection failed: refused). The steps go on."
    )
