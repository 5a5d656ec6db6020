"""The job's random numbers are those that it would draw without us."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import ModuleType
from typing import Any
from unittest import mock

import pytest
import urllib3.util.retry
from mlflow import MlflowClient
from tests.tracking.own_calls import call_as_own

from mlflow_perf.tracking.mlflow_call import MlflowCall
from mlflow_perf.tracking.own_random import separate_random, uses_random


class _Busy(BaseHTTPRequestHandler):
    """Answers that it is busy, three times, and then that there is nothing."""

    asked = 0

    def do_GET(self) -> None:
        _Busy.asked += 1
        self.send_response(503 if _Busy.asked <= 3 else 200)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"{}")

    do_POST = do_GET  # noqa: N815 - Python's name

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def busy() -> Iterator[str]:
    """Yield the address of a server that is busy at first."""
    _Busy.asked = 0
    with ThreadingHTTPServer(("127.0.0.1", 0), _Busy) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_requests_that_are_repeated_leave_the_jobs_numbers(
    busy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """MLflow's client waits a random time before the third try and each later one."""
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR", "0")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "3")  # a command of ours sets fewer
    random.seed(0)
    before = random.getstate()
    MlflowCall(MlflowClient(busy).search_experiments, name="test").result(60)
    assert _Busy.asked == 4
    assert random.getstate() == before


def test_only_our_calls_have_numbers_of_their_own() -> None:
    """The job's use of the same library draws what its seed gives."""
    library: Any = ModuleType("urllib3.test")
    library.random = random
    separate_random(library)
    random.seed(0)
    expected = [random.random(), random.randint(0, 10**9)]
    random.seed(0)
    state = random.getstate()
    assert call_as_own(lambda: library.random.random()) != expected[0]  # noqa: PLW0108
    call_as_own(lambda: library.random.seed(1))
    assert random.getstate() == state
    assert [library.random.random(), library.random.randint(0, 10**9)] == expected
    assert library.random.Random is random.Random


def test_a_mock_of_the_jobs_replaces_what_it_would_have() -> None:
    """Tests of waiting times replace the function through the library's module."""
    separate_random(urllib3.util.retry)
    before = random.random
    with mock.patch("urllib3.util.retry.random.random", return_value=0.5):
        assert random.random() == 0.5
    assert random.random is before


def test_only_the_module_itself_is_exchanged() -> None:
    """Another thing of that name stays."""
    module = ModuleType("mlflow.some")
    module.random = "mine"  # type: ignore[attr-defined]
    separate_random(module)
    assert module.random == "mine"
    assert uses_random("urllib3.util.retry")
    assert not uses_random("torch.utils.data")
