"""Calls with a deadline."""

from __future__ import annotations

import logging
import sys
import threading
from types import ModuleType

import pytest

from mlflow_perf.core.background_call import BackgroundCall


def test_the_result_is_that_of_the_call() -> None:
    """The call runs in a daemon thread of its own, and its result can be read more than once."""
    call = BackgroundCall(threading.current_thread, name="test")
    thread = call.result(30)
    assert thread is call.result(30)
    assert (thread.name, thread.daemon) == ("perf-test", True)


def test_an_exception_is_raised_again() -> None:
    """The exception of the call is raised where its result is read."""

    def fail() -> None:
        raise KeyError("gone")

    with pytest.raises(KeyError, match="gone"):
        BackgroundCall(fail, name="test").result(30)


def test_the_caller_goes_on_at_its_deadline() -> None:
    """A call that takes too long continues after its deadline, and its result comes later."""
    leave = threading.Event()
    call = BackgroundCall(lambda: leave.wait(30), name="test")
    assert not call.done_within(0)
    with pytest.raises(TimeoutError, match="no answer in time"):
        call.result(-1)
    with pytest.raises(TimeoutError, match="no answer within 1 s"):
        call.result(1.2)
    leave.set()
    assert call.done_within(30)
    assert call.result(0) is True


def test_its_thread_does_not_log_retries(caplog: pytest.LogCaptureFixture) -> None:
    """urllib3's line per retry is dropped in our threads and kept in all others."""
    log = logging.getLogger("urllib3.connectionpool")
    BackgroundCall(lambda: log.warning("retry of ours"), name="test").result(30)
    log.warning("retry of the job")
    assert [record.message for record in caplog.records] == ["retry of the job"]


@pytest.mark.parametrize(("module", "name"), [("datetime", "datetime"), ("socket", "socket")])
def test_mlflow_is_not_imported_while_its_base_is_replaced(
    module: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With freezegun's `datetime` its compiled modules crash; gevent's sockets fit one thread."""
    other = type("Other", (), {"__module__": "freezegun.api"})
    monkeypatch.setattr(f"{module}.{name}", other)
    monkeypatch.setitem(sys.modules, "mlflow", ModuleType("mlflow"))
    BackgroundCall(lambda: None, name="test").result(30)
    monkeypatch.delitem(sys.modules, "mlflow")
    with pytest.raises(RuntimeError, match="cannot be imported now: freezegun replaces Other"):
        BackgroundCall(lambda: None, name="test")
