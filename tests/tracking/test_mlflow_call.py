"""Calls of MLflow."""

from __future__ import annotations

import functools
import io
import logging
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Event, Thread
from types import ModuleType
from unittest.mock import patch

import pytest
import requests
from requests.adapters import HTTPAdapter
from urllib3.util.retry import Retry

from mlflow_perf.core.workspaces import read_workspace, working_in
from mlflow_perf.tracking import mlflow_call
from mlflow_perf.tracking.mlflow_call import MlflowCall, refuse_replaced_network


@pytest.mark.parametrize(
    "name", ["urllib3.connectionpool", "mlflow.store.db.utils", "mlflow.utils.git_utils"]
)
def test_its_thread_does_not_log_retries(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A line per retry, a traceback per statement, half a page for git: only in other threads."""
    monkeypatch.setitem(sys.modules, "mlflow", ModuleType("mlflow"))
    log, lines = logging.getLogger(name), io.StringIO()
    # MLflow's loggers do not reach the root, and making a database disables them.
    monkeypatch.setattr(log, "disabled", False)
    level = log.level
    log.setLevel(logging.ERROR)
    log.addHandler(shown := logging.StreamHandler(lines))
    try:
        MlflowCall(lambda: log.error("retry of ours"), name="test").result(30)
        log.error("retry of the job")
    finally:
        log.removeHandler(shown)
        log.setLevel(level)
    assert lines.getvalue() == "retry of the job\n"


@pytest.mark.parametrize(
    "name", ["requests.adapters.HTTPAdapter.send", "urllib3.HTTPConnectionPool.urlopen"]
)
def test_no_double_of_a_job_gets_our_requests(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A test of the job may count the requests, and a recorder would keep ours."""
    uri = "http://127.0.0.1:5000"
    with patch(name), pytest.raises(RuntimeError, match="unittest answers the job's requests"):
        refuse_replaced_network(uri)
    refuse_replaced_network(uri)
    with patch(name):
        refuse_replaced_network("sqlite:///mlflow.db")
    # What measures or caches the requests of a job answers none.
    monkeypatch.setattr("requests.sessions.Session", type("Cache", (requests.Session,), {}))
    refuse_replaced_network(uri)
    send = requests.Session.send
    monkeypatch.setattr(requests.Session, "send", functools.wraps(send)(lambda *_: None))
    refuse_replaced_network(uri)


_RETRIES = {
    "urllib3.connectionpool": ("Retry (%r) after '%r'", 5, OSError("no ca of http://a:x@host")),
    "mlflow.store.db.utils": ("%s\nagain in %.1f s", OSError("no ca of db://a:x@host"), 0.1),
}


@pytest.mark.parametrize("name", _RETRIES)
def test_a_call_without_an_answer_says_what_was_wrong_so_far(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A certificate that nobody trusts is repeated for minutes; the reason is not the time."""
    monkeypatch.setitem(sys.modules, "mlflow", ModuleType("mlflow"))
    log, said, over = logging.getLogger(name), Event(), Event()
    # `recover` and making a database, in other tests, leave them so.
    monkeypatch.setattr(log, "disabled", False)
    monkeypatch.setattr(log, "isEnabledFor", lambda _: True)

    def call() -> None:
        log.warning(*_RETRIES[name])
        said.set()
        over.wait(30)

    calling = MlflowCall(call, name="test")
    said.wait(30)
    with pytest.raises(TimeoutError, match=r"it was not done in time: .*no ca of .*\*\*\*@"):
        calling.result(0.0)
    over.set()
    calling.result(30)


@pytest.mark.parametrize(("module", "name"), [("datetime", "datetime"), ("socket", "socket")])
def test_mlflow_is_not_imported_while_its_base_is_replaced(
    module: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With freezegun's `datetime` its compiled modules crash; gevent's sockets fit one thread."""
    other = type("Other", (), {"__module__": "freezegun.api"})
    monkeypatch.setattr(f"{module}.{name}", other)
    monkeypatch.setitem(sys.modules, "mlflow", ModuleType("mlflow"))
    MlflowCall(lambda: None, name="test").result(30)
    monkeypatch.delitem(sys.modules, "mlflow")
    with pytest.raises(RuntimeError, match="cannot be imported now: freezegun replaces Other"):
        MlflowCall(lambda: None, name="test")


@pytest.mark.parametrize(
    "name", ["builtins.open", "subprocess.run", "subprocess.Popen", "subprocess.check_output"]
)
def test_mlflow_is_not_called_where_a_mock_would_count_it(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its import asks `uname -p`, and Python would keep the mock's answer for the job."""
    monkeypatch.delitem(sys.modules, "mlflow")
    with (
        patch(name) as mock,
        pytest.raises(RuntimeError, match=f"a mock replaces {name.rpartition('.')[2]}"),
    ):
        MlflowCall(lambda: None, name="test")
    assert mock.mock_calls == []


def test_mlflow_is_not_called_without_memory_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where memory is nearly used up, the call is refused before native code ends the process."""

    def refuse(*_: object, **__: object) -> None:
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr(mlflow_call, "_map", refuse)
    with pytest.raises(RuntimeError, match="too little memory is left to call MLflow"):
        MlflowCall(lambda: None, name="test")


def test_mlflow_is_not_imported_where_the_control_group_has_no_room_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The kernel would kill the job; where MLflow is loaded already, a call is made."""
    monkeypatch.setattr(mlflow_call, "find_memory_room", lambda _: 100 << 20)
    monkeypatch.setitem(sys.modules, "mlflow", ModuleType("mlflow"))
    MlflowCall(lambda: None, name="test").result(30)
    monkeypatch.delitem(sys.modules, "mlflow")
    with pytest.raises(RuntimeError, match="call MLflow: 100 MB in the control group"):
        MlflowCall(lambda: None, name="test")


def test_mlflow_is_not_called_where_the_limit_of_cpu_time_is_near(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The kernel would end the job, or the wrapper after its command."""
    used_sec = time.process_time()
    limits = {5: (int(used_sec) + 6, resource.RLIM_INFINITY), 60: (int(used_sec) + 60,) * 2}
    monkeypatch.setattr(resource, "getrlimit", lambda _: limits[5])
    monkeypatch.setitem(sys.modules, "mlflow", ModuleType("mlflow"))
    MlflowCall(lambda: None, name="test").result(30)
    monkeypatch.delitem(sys.modules, "mlflow")
    with pytest.raises(RuntimeError, match="too little CPU time is left"):
        MlflowCall(lambda: None, name="test")
    monkeypatch.setattr(resource, "getrlimit", lambda _: limits[60])
    monkeypatch.setattr(mlflow_call, "import_mlflow", lambda: None)
    MlflowCall(lambda: None, name="test").result(30)


def test_many_processes_load_mlflow_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call that waits for its turn says so, and what was missing when the time is up."""
    held, free = Event(), Event()
    loaded: list[str] = []

    @contextmanager
    def hold(names: list[str], **_: float) -> Iterator[None]:
        assert len(set(names)) == os.cpu_count()
        held.set()
        free.wait(30)
        yield

    monkeypatch.setattr(mlflow_call, "holding", hold)
    monkeypatch.setattr(mlflow_call, "import_mlflow", lambda: loaded.append("mlflow"))
    monkeypatch.delitem(sys.modules, "mlflow")
    calling = MlflowCall(lambda: loaded.append("called"), name="test")
    assert held.wait(30)
    assert calling.waits
    with pytest.raises(
        TimeoutError, match="it was not done in time: MLflow was still being loaded"
    ):
        calling.result(0.0)
    free.set()
    calling.result(30)
    assert (loaded, calling.waits) == (["mlflow", "called"], False)


class _Broken(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_error(500)

    def log_message(self, *_: object) -> None:
        pass


def test_a_request_that_a_server_refuses_again_and_again_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """MLflow repeats it for minutes, and urllib3 logs no answers, as of a full artifact store."""
    monkeypatch.setitem(sys.modules, "mlflow", ModuleType("mlflow"))
    server = HTTPServer(("127.0.0.1", 0), _Broken)
    Thread(target=server.serve_forever, daemon=True).start()
    session, over = requests.Session(), Event()
    retries = Retry(total=20, backoff_factor=0.1, backoff_max=0.1, status_forcelist=[500])
    session.mount("http://", HTTPAdapter(max_retries=retries))
    place = f"127.0.0.1:{server.server_port}"

    def ask() -> None:
        with suppress(requests.RequestException):
            session.get(f"http://{place}/", timeout=5)
        over.wait(30)

    try:
        calling = MlflowCall(ask, name="test")
        while not calling.find_fault():
            assert not calling.done_within(0.01)
        with pytest.raises(TimeoutError, match=f"in time: HTTP 500 from {place}$"):
            calling.result(0.01)
        above = MlflowCall(lambda: calling.done_or_told(0.02, "not uploaded yet"), name="above")
        assert above.result(30) is False
        assert above.fault == f"not uploaded yet: HTTP 500 from {place}"
    finally:
        over.set()
        server.shutdown()
        server.server_close()
    calling.result(30)


def test_a_time_limit_of_the_job_is_no_missing_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is often a `TimeoutError`, too, and reaches the job as it was raised."""

    class TooLateError(TimeoutError):
        pass

    def expire(*_: object) -> None:
        raise TooLateError

    def wait(*_: object) -> bool:
        signal.raise_signal(signal.SIGUSR1)
        return False

    over = Event()
    calling = MlflowCall(over.wait, name="test")
    calling.fault = "connection refused"
    before = signal.signal(signal.SIGUSR1, expire)
    try:
        with monkeypatch.context() as patch:
            patch.setattr(calling, "done_within", wait)
            with pytest.raises(TooLateError):
                calling.result(30)
    finally:
        signal.signal(signal.SIGUSR1, before)
    over.set()
    calling.result(30)


def test_a_call_works_in_the_workspace_of_its_caller_or_in_a_given_one() -> None:
    """MLflow's own threads take that of the process, which the job may change meanwhile."""
    pytest.importorskip("mlflow.utils.workspace_context")
    with working_in("there"):
        assert MlflowCall(read_workspace, name="test").result(30) == "there"
    assert MlflowCall(read_workspace, name="test", workspace="given").result(30) == "given"
    assert MlflowCall(read_workspace, name="test").result(30) == ""


_HEARS = """
import platform, signal, sys
heard = []
if "handler" in sys.argv:
    signal.signal(signal.SIGCHLD, lambda *_: heard.append(1))
from mlflow_perf.tracking.mlflow_call import MlflowCall
MlflowCall(lambda: None, name="first").result(120)
print(len(heard), "processor" in vars(platform.uname()))
"""


@pytest.mark.e2e
@pytest.mark.parametrize("argument", ["handler", "none"])
def test_no_child_of_mlflows_import_ends_where_the_job_would_hear_it(argument: str) -> None:
    """A handler that reaps the job's workers would not know it; without one all is as usual."""
    command = [sys.executable, "-c", _HEARS, argument]
    said = subprocess.check_output(command, text=True).split()
    assert said == ["0", str(argument == "none")]
