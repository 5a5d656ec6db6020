"""`mlflow-perf mcp`: the tools as an agent's client sees them."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from itertools import count
from typing import Any

import pytest

from mlflow_perf.cli import _agent_tools
from mlflow_perf.cli._agent_tools import ANSWER_MAX, TOOLS, make_server
from mlflow_perf.tracking.notices import tell

fastmcp = pytest.importorskip("fastmcp")


def _call(server: Any, tool: str, **arguments: Any) -> str:
    async def ask() -> str:
        async with fastmcp.Client(server) as client:
            answer = await client.call_tool(tool, arguments, raise_on_error=False)
            text: str = answer.content[0].text
            return f"Error: {text}" if answer.is_error else text

    return asyncio.run(ask())


def test_every_tool_answers_in_bounded_text(log_run: Callable[..., str]) -> None:
    """Each tool, with a run's id or a component; the errors are sentences too."""
    ids = [log_run({"duration_sec": value}, component="asked") for value in (10.0, 20.0)]
    server = make_server()
    asked: list[tuple[str, dict[str, Any], str]] = [
        ("search_runs", {"component": "asked"}, ids[0]),
        ("explain_run", {"run_id": ids[0]}, "### Findings"),
        ("compare_runs", {"run_id": ids[0], "other_run_id": ids[1]}, "### What changed"),
        ("history", {"component": "asked"}, '"newest_points"'),
        ("advise", {"component": "asked"}, '"memory_mb"'),
        ("fleet", {"by": "component"}, "unused_cpu_hours"),
        ("profile", {"run_id": ids[0]}, "Error: The run"),
        ("explain_run", {"run_id": "/etc/passwd"}, "Error: Give the id of a run"),
        ("profile", {"run_id": ""}, "Error: Give the id of a run"),
        ("history", {"component": "askd"}, "did you mean 'asked'"),
    ]
    assert {tool.__name__ for tool in TOOLS} == {name for name, _, _ in asked}
    for name, arguments, expected in asked:
        text = _call(server, name, **arguments)
        assert expected in text, name
        assert len(text) <= ANSWER_MAX + 100


def test_a_workflow_is_advised_on_as_by_the_command(
    log_run: Callable[..., str], cli_json: Any
) -> None:
    """An agent is given what `advise RUN --json` says: each step from all of its tasks."""
    parent = log_run(component="flow")
    tags = {"mlflow.parentRunId": parent}
    for memory in (500.0, 520.0, 3000.0):
        log_run({"job_max_mem_mb": memory}, component="fit", tags=tags)
    server = make_server()
    asked = json.loads(_call(server, "advise", run_id=parent))
    assert asked == cli_json("advise", parent)
    assert asked["runs"] == 3
    assert asked["memory_mb"] > 3000
    log_run({"job_max_mem_mb": 900.0}, component="prepare", tags=tags)
    asked = json.loads(_call(server, "advise", run_id=parent))
    assert asked == cli_json("advise", parent)
    assert set(asked["steps"]) == {"fit", "prepare"}


def test_steps_that_do_not_fit_into_an_answer_are_counted(
    log_run: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An agent is told that there are more steps than it is shown."""
    monkeypatch.setattr(_agent_tools, "_ROWS_MAX", 2)
    parent = log_run(component="flow")
    for name in "abc":
        log_run({}, component=name, tags={"mlflow.parentRunId": parent})
    asked = json.loads(_call(make_server(), "advise", run_id=parent))
    assert (len(asked["steps"]), asked["left_out"]) == (2, 1)


def test_an_explanation_keeps_the_names_of_its_functions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Markdown's backslashes are no paths: `<module>` and `_fit` stay readable."""
    said = "- \\<module\\> (train.py:3), Tree.\\_fit (tree.py:467)"
    monkeypatch.setattr(_agent_tools, "explain", lambda *_: said)
    assert _call(make_server(), "explain_run", run_id="a" * 32) == said


def test_what_was_left_out_stands_before_an_explanation(monkeypatch: pytest.MonkeyPatch) -> None:
    """An agent that sees only some steps of a workflow is told so, each thing once."""

    def explain(*_: str) -> str:
        for _run in range(2):
            tell.get()("flow in /home/ada/store: 1 of 2 steps cannot be read")
        return "## flow: cpu"

    monkeypatch.setattr(_agent_tools, "explain", explain)
    text = _call(make_server(), "explain_run", run_id="a" * 32)
    assert text == "> flow in …/store: 1 of 2 steps cannot be read\n\n## flow: cpu"


@pytest.mark.parametrize(("length", "shown"), [(300, 20), (900, 5), (9000, 0)])
def test_a_long_answer_is_cut(monkeypatch: pytest.MonkeyPatch, length: int, shown: int) -> None:
    """No answer is longer than the bound; it stays JSON as long as one row fits, and says so."""
    monkeypatch.setattr(_agent_tools, "sum_fleet", lambda *_, **__: [_Row("x" * length)] * 30)
    text = _call(make_server(), "fleet")
    assert len(text) < ANSWER_MAX + 100
    if shown == 20:
        assert len(json.loads(text)["most_unused"]) == 20
    elif shown:
        *rows, last = json.loads(text)["most_unused"]
        assert (len(rows), last) == (shown, {"left_out": 15})
    else:
        assert text.endswith("ask for less.")


class _Row:
    def __init__(self, name: str) -> None:
        self.name = name

    def as_dict(self) -> dict[str, str]:
        return {"group": self.name}


@pytest.mark.e2e
def test_the_command_serves_until_interrupted(store: str, log_run: Callable[..., str]) -> None:
    """It lists read-only tools and answers; Ctrl-C ends it even while its input stays open."""
    run_id = log_run({})
    with subprocess.Popen(
        [sys.executable, "-m", "mlflow_perf", "mcp"], stdin=subprocess.PIPE,
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        env={**os.environ, "MLFLOW_TRACKING_URI": store},
    ) as process:  # fmt: skip
        assert process.stdin is not None
        assert process.stdout is not None
        numbers = count(1)

        def send(**message: Any) -> None:
            print(json.dumps({"jsonrpc": "2.0", **message}), file=process.stdin, flush=True)

        def ask(method: str, **params: Any) -> Any:
            send(id=next(numbers), method=method, params=params)
            assert process.stdout is not None
            return json.loads(process.stdout.readline())["result"]

        client = {"name": "test", "version": "1"}
        ask("initialize", protocolVersion="2025-03-26", capabilities={}, clientInfo=client)
        send(method="notifications/initialized")
        tools = ask("tools/list")["tools"]
        answer = ask("tools/call", name="search_runs", arguments={"limit": 50})
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == -signal.SIGINT
    assert {tool["name"] for tool in tools} == {tool.__name__ for tool in TOOLS}
    assert all(tool["annotations"]["readOnlyHint"] for tool in tools)
    assert run_id in {row.get("run_id") for row in json.loads(answer["content"][0]["text"])}
