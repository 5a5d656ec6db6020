"""`mlflow-perf watch`."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest
from click.testing import Result

Cli = Callable[..., Result]


@pytest.fixture
def webhook() -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Return the address of a webhook, and what it was sent."""
    bodies: list[dict[str, Any]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            length = int(self.headers["Content-Length"])
            bodies.append(json.loads(self.rfile.read(length)))
            self.send_response({"/ok": 200, "/moved": 302}.get(self.path, 500))
            self.send_header("Location", "/ok")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", bodies
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_regression_ends_with_1_and_is_sent(
    cli: Cli, log_run: Callable[..., str], webhook: tuple[str, list[dict[str, Any]]]
) -> None:
    """Noise passes in silence; a slow run is sent with its reasons; a refusal changes nothing."""
    address, bodies = webhook
    for value in (10.0, 10.2, 9.9, 10.1, 10.0, 9.8):
        log_run({"duration_sec": value}, component="watched")
    watch = ("watch", "--component", "watched", "--limit", "auto", "--post")
    assert cli(*watch, f"{address}/ok").exit_code == 0
    assert bodies == []
    slow = log_run({"duration_sec": 20.0}, component="watched")
    result = cli(*watch, f"{address}/ok")
    assert result.exit_code == 1
    assert bodies[0]["run_id"] == slow
    assert bodies[0]["passed"] is False
    assert "auto (+5%): Beyond the limit" in bodies[0]["text"]
    result = cli(*watch, f"{address}/token-abc")
    assert result.exit_code == 1
    assert "127.0.0.1 did not take it: HTTP 500" in result.stderr
    assert "abc" not in result.output
    assert "127.0.0.1 did not take it: HTTP 302" in cli(*watch, f"{address}/moved").stderr


def test_the_first_run_has_only_absolute_limits(cli: Cli, log_run: Callable[..., str]) -> None:
    """Without a past the others cannot be judged; a run before --since is not judged again."""
    run = ("watch", "--component", "first")
    log_run({"duration_sec": 10.0}, component="first")
    result = cli(*run, "--limit", "duration_sec=+10%")
    assert result.exit_code == 2
    assert "cannot judge (1 limit)" in result.stdout
    assert cli(*run, "--limit", "duration_sec=90").exit_code == 0
    assert cli(*run, "--limit", "duration_sec=5").exit_code == 1
    assert cli(*run, "--limit", "duration_sec=5", "--since", "0min").exit_code == 0


def test_auto_with_two_runs_before_is_neither_passed_nor_sent(
    cli: Cli, log_run: Callable[..., str], webhook: tuple[str, list[dict[str, Any]]]
) -> None:
    """The noise needs three; it ended with 0 whatever the newest run's figures."""
    address, bodies = webhook
    for value in (10.0, 10.0, 90.0):
        log_run({"duration_sec": value}, component="young")
    watch = ("watch", "--component", "young", "--limit", "auto", "--post", f"{address}/ok")
    result = cli(*watch, "--json")
    assert result.exit_code == 2
    found = json.loads(result.stdout)
    assert found["passed"] is False
    assert "young cannot be judged" in found["text"]
    assert "needs 3 runs with this metric, not 2" in found["unjudged"][0]
    assert bodies == []


def test_each_run_since_then_is_judged(cli: Cli, log_run: Callable[..., str]) -> None:
    """A slow run before a good newest one is found; without --since only the newest counts."""
    for value in (10.0, 10.1, 9.9):
        log_run({"duration_sec": value}, component="often")
    slow = log_run({"duration_sec": 20.0}, component="often")
    log_run({"duration_sec": 10.0}, component="often")
    watch = ("watch", "--component", "often", "--limit", "duration_sec=+50%", "--json")
    assert cli(*watch).exit_code == 0
    result = cli(*watch, "--since", "1h")
    assert result.exit_code == 1
    found = json.loads(result.stdout)
    assert found["passed"]
    first = [one["run_id"] for one in found["earlier"] if one["unjudged"]]
    assert [one["run_id"] for one in found["earlier"] if not one["passed"]] == [slow, *first]
    assert len(first) == 1  # it has no past


@pytest.mark.parametrize(
    "wrong",
    [
        ["--since", "soon"],
        ["--post", "file:///etc/passwd"],
        ["--post", "http:///x"],
        ["--post", "http://[x"],
        ["--post", "https://a:b@c/d"],
        ["--component", "nobody"],
    ],
)
def test_a_wrong_value_is_one_line_and_2(
    cli: Cli, log_run: Callable[..., str], wrong: list[str]
) -> None:
    """An age, an address and a component that cannot be used."""
    log_run({}, component="wrong")
    result = cli("watch", "--component", "wrong", "--limit", "duration_sec=+10%", *wrong)
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
