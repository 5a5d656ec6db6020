"""`mlflow-perf fleet`."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from mlflow import MlflowClient

Cli = Callable[..., Result]


@pytest.fixture
def client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, _migrated_store: Path) -> MlflowClient:
    """Return a client of a store of its own: the sums are over all runs of it."""
    copy = tmp_path / "own.db"
    shutil.copy(_migrated_store, copy)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{copy}")
    return MlflowClient(f"sqlite:///{copy}")


def test_the_groups_come_most_unused_first(
    cli: Cli, cli_json: Any, log_run: Callable[..., str], tmp_path: Path
) -> None:
    """The keys of the JSON, in the order of the unused hours; a digest as Markdown and HTML."""
    log_run({}, component="small")
    for _ in range(3):
        log_run({"node_unused_cpu_hours": 5.0}, component="large <b>", status="FAILED")
    rows = cli_json("fleet", "--by", "component", "--since", "30d")
    assert [(row["group"], row["runs"], row["failed"]) for row in rows] == [
        ("large <b>", 3, 3),
        ("small", 1, 0),
    ]
    assert rows[0]["unused_cpu_hours"] == 15.0
    assert rows[0]["gpu_hours"] is None
    assert {*rows[0]} == {
        *("group", "runs", "failed", "cpu_hours", "unused_cpu_hours", "gpu_hours"),
        *("unused_gpu_hours", "cost", "unused_cost"),
    }
    assert "4 runs, 3 failed" in cli("fleet").stdout
    for suffix, escaped in (("md", "large \\<b\\>"), ("html", "large &lt;b&gt;")):
        file = tmp_path / f"week.{suffix}"
        result = cli("fleet", "--by", "component", "--digest", str(file))
        assert result.exit_code == 0, result.output
        text = file.read_text()
        assert escaped in text
        assert "left 15.0 CPU hours unused" in text


def test_an_empty_fleet_is_said(cli: Cli, cli_json: Any, client: MlflowClient) -> None:
    """No run is an empty list, and a sentence."""
    assert client.search_experiments()
    assert cli_json("fleet") == []
    assert cli("fleet").stdout == "No run with performance data.\n"


@pytest.mark.parametrize(
    "wrong", [["--since", "x"], ["--digest", "x.pdf"], ["--digest", "x.md", "--since", "1d"]]
)
def test_a_wrong_value_is_one_line_and_2(cli: Cli, wrong: list[str]) -> None:
    """An age or a file that cannot be used."""
    result = cli("fleet", *wrong)
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
