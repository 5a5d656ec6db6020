"""`mlflow-perf recover`."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from mlflow_perf.cli import recover as module
from mlflow_perf.publish.recovery import Recovered

Call = Callable[..., Result]


def test_an_empty_folder_has_nothing_to_recover(tmp_path: Path, cli: Call) -> None:
    """The folder is named, and the command ends with 0."""
    result = cli("recover", str(tmp_path))
    assert (result.exit_code, result.output) == (0, f"Nothing to recover in {tmp_path}.\n")


def test_a_folder_that_may_not_be_read_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: Call
) -> None:
    """It may hold journals: nothing to recover would be untrue."""
    closed = tmp_path / "closed"
    closed.mkdir()
    monkeypatch.setattr(os, "access", lambda path, mode: path != closed)
    result = cli("recover", str(closed))
    assert result.exit_code == 2
    assert result.stderr == f"mlflow-perf: {closed} may not be read by this user.\n"


def test_a_folder_that_does_not_exist_is_named(cli: Call) -> None:
    """A wrong folder is bad input."""
    result = cli("recover", "missing")
    assert result.exit_code == 2
    assert result.stderr.startswith("mlflow-perf: missing is no folder")


def test_the_name_of_a_journal_is_spelled_out(
    tmp_path: Path, cli: Call, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever a file is called, the warning is one line and does not act on the terminal."""
    (tmp_path / "two\nlines\x1b[31m.journal").write_text("junk")
    cli("recover", str(tmp_path))
    (line,) = [record.getMessage() for record in caplog.records]
    assert "two\\x0alines\\x1b[31m.journal is skipped: " in line


@pytest.mark.parametrize(
    ("outcomes", "code"),
    [
        (["sent", "known", "not begun"], 0),
        (["running", "other host"], 0),
        (["sent", "kept", "sent"], 2),
        (["kept"], 2),
    ],
)
def test_the_exit_code_says_whether_a_report_stays_unsent(
    outcomes: list[str], code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: Call
) -> None:
    """So `recover && rm -r DIR` deletes no report of an ended job; jobs that run are no failure."""
    results = [Recovered("r1", 0, "why", outcome, "a.journal") for outcome in outcomes]
    monkeypatch.setattr(module, "recover_each", lambda *_, **__: iter(results))
    assert cli("recover", str(tmp_path)).exit_code == code
    result = cli("recover", str(tmp_path), "--json")
    shown = [one["outcome"] for one in json.loads(result.stdout)]
    assert (result.exit_code, shown) == (code, [one for one in outcomes if one != "running"])


def test_each_recovered_node_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: Call, cli_json: Any
) -> None:
    """One line for each node, or the same as JSON; control characters are spelled out."""

    def recover_each(_: Path, *, of_any_host: bool, **__: Any) -> Iterator[Recovered]:
        yield Recovered("r1", 0, "signal \x1b[2J")
        if not of_any_host:
            yield Recovered(None, None, "it is of n2", "other host", "b.journal")

    monkeypatch.setattr(module, "recover_each", recover_each)
    output = cli("recover", str(tmp_path)).output
    assert output.startswith(
        "run r1, node 0: sent now; why not before: signal \\x1b[2J\nb.journal stays: it is of n2\n"
    )
    assert f"recover --any-host {tmp_path}" in output
    assert "any-host" not in cli("recover", "--any-host", str(tmp_path)).output
    found, stays = cli_json("recover", str(tmp_path))
    assert (found["run_id"], found["node"], found["outcome"]) == ("r1", 0, "sent")
    assert (stays["run_id"], stays["outcome"], stays["journal"]) == (
        None, "other host", "b.journal",
    )  # fmt: skip


def test_the_reason_of_the_job_is_told_apart_from_what_happens_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: Call
) -> None:
    """Its server was away then, and has taken the report now."""
    away = "nothing listens at http://a:1"
    results = [
        Recovered("r1", 0, away),
        Recovered("r2", 0, away, "known"),
        Recovered("r3", 0, "killed", "not begun"),
        Recovered(None, 0, "killed", "not begun"),
        Recovered("r4", 1, ""),
    ]
    monkeypatch.setattr(module, "recover_each", lambda *_, **__: iter(results))
    assert cli("recover", str(tmp_path)).output.splitlines() == [
        f"run r1, node 0: sent now; why not before: {away}",
        f"run r2, node 0: the run had these figures already; why its job did not send them: {away}",
        "run r3, node 0: its block had not begun: killed",
        "it had no run, so that nothing was sent: killed",
        "run r4, node 1: sent now",
    ]
