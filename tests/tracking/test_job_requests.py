"""Wrappers of a job's around its requests, which calls of ours pass by, and doubles."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import FunctionType
from typing import Any

import pytest
import requests
import urllib3
from mlflow import MlflowClient
from tests.tracking.own_calls import run_alone

from mlflow_perf.tracking.job_requests import find_double, list_wrappers
from mlflow_perf.tracking.mlflow_call import MlflowCall
from mlflow_perf.tracking.own_functions import own_functions


class _Empty(BaseHTTPRequestHandler):
    """Answers that there is nothing."""

    def do_POST(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"{}")

    do_GET = do_POST  # noqa: N815 - Python's name

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def server() -> Iterator[str]:
    """Yield the address of a server that has nothing."""
    with ThreadingHTTPServer(("127.0.0.1", 0), _Empty) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_what_sets_a_default_for_requests_answers_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """A time-out for all of a job's requests is commonly set so."""
    request = functools.partialmethod(requests.Session.request, timeout=5)
    monkeypatch.setattr(requests.Session, "request", request)
    assert find_double() == ""
    monkeypatch.setattr(requests.Session, "request", lambda *_, **__: None)
    assert find_double() == "tests"


def _wrap_plainly(send: Callable[..., Any], seen: list[str]) -> Callable[..., Any]:
    def call(self: Any, *args: Any, **options: Any) -> Any:
        seen.append(send.__name__)
        return send(self, *args, **options)

    return call


def _wrap_with_its_name(send: Callable[..., Any], seen: list[str]) -> Callable[..., Any]:
    return functools.wraps(send)(_wrap_plainly(send, seen))


def _wrap_twice(send: Callable[..., Any], seen: list[str]) -> Callable[..., Any]:
    return _wrap_plainly(_wrap_with_its_name(send, []), seen)


def _wrap_with_a_default(send: Callable[..., Any], seen: list[str]) -> Any:
    return functools.partialmethod(_wrap_plainly(send, seen))


@pytest.mark.parametrize(
    "wrap", [_wrap_plainly, _wrap_with_its_name, _wrap_twice, _wrap_with_a_default]
)
@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (requests.Session, "request"),
        (requests.Session, "send"),
        (requests.adapters.HTTPAdapter, "send"),
        (urllib3.HTTPConnectionPool, "urlopen"),
    ],
)
def test_a_wrapper_of_the_jobs_sees_the_jobs_requests_alone(
    server: str, kind: Any, name: str, wrap: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It logs, counts or limits all requests, in a script as in a module."""
    seen: list[str] = []
    monkeypatch.setattr(kind, name, wrapper := wrap(getattr(kind, name), seen))
    assert find_double() == ""

    def ask() -> object:
        requests.get(server, timeout=30)  # as a thread of the job's would meanwhile
        return MlflowClient(server).search_experiments()

    def ask_beside() -> None:
        other = threading.Thread(target=requests.get, args=(server,), kwargs={"timeout": 30})
        other.start()
        other.join()
        ask()

    MlflowCall(ask_beside, name="test").result(60)
    assert seen == [name]
    assert vars(kind)[name] is wrapper
    requests.get(server, timeout=30)
    assert seen == [name] * 2


def test_what_a_wrapper_calls_is_looked_for_in_what_it_names(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In its module, in its defaults, or beside the function in the class."""
    send: Any = requests.Session.send
    code = "def call(self, *args, of=None, **options): return (of or {})(self, *args, **options)"
    monkeypatch.setattr(requests.Session, "before", send, raising=False)
    for place, globals_, default in (
        ("before", {"before": send}, None),
        ("self.before", {}, None),
        ("None", {}, {"of": send}),
    ):
        own: dict[str, Any] = {"__name__": "job", **globals_}
        exec(code.format(place), own)
        own["call"].__kwdefaults__ = default or own["call"].__kwdefaults__
        monkeypatch.setattr(requests.Session, "send", own["call"])
        assert [one.wrapped for one in list_wrappers()] == [send]
        assert find_double() == ""


def test_a_librarys_function_that_keeps_what_it_replaces_is_a_double(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It lets some requests through."""
    send: Any = requests.Session.send
    double = _wrap_plainly(send, [])
    code = double.__code__.replace(co_filename="/v/site-packages/double.py")
    closure = double.__closure__
    library = FunctionType(code, {"__name__": "double"}, "call", None, closure)
    monkeypatch.setattr(requests.Session, "send", library)
    assert find_double() == "double"
    assert list_wrappers() == []
    monkeypatch.setattr(requests.Session, "send", _wrap_plainly(library, []))
    assert find_double() == "tests"


def test_what_the_job_sets_meanwhile_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes its wrapper away, or puts another one around it."""
    send: Any = requests.Session.send
    seen: list[str] = []
    monkeypatch.setattr(requests.Session, "send", _wrap_plainly(send, seen))
    with own_functions():
        outer = _wrap_plainly(requests.Session.send, [])
        monkeypatch.setattr(requests.Session, "send", outer)
    assert requests.Session.send is outer
    assert find_double() == ""
    with own_functions():
        monkeypatch.setattr(requests.Session, "send", send)
    assert requests.Session.send is send


_SCRIPT = """
import requests
send = requests.Session.send
def log(self, request, **options):
    print(request.method)
    return send(self, request, **options)
requests.Session.send = log
from mlflow import MlflowClient
from mlflow_perf.tracking.mlflow_call import MlflowCall
found = MlflowCall(MlflowClient("{}").search_experiments, name="test").result(60)
print(len(found))
"""


@pytest.mark.e2e
def test_a_script_that_prints_its_requests_prints_its_own(server: str) -> None:
    assert run_alone(_SCRIPT.format(server)) == (0, "0\n", "")
