"""Rules for a command whose runs cannot be noticed."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mlflow_perf.session.command_runs import CommandRuns


@pytest.fixture
def runs(tmp_path: Path) -> CommandRuns:
    """The runs of a command that may be joined."""
    recording: Any = SimpleNamespace(
        run=SimpleNamespace(run_id=None), node=SimpleNamespace(world_size=1), join=lambda _: None
    )
    (tmp_path / "unseen-1.spool").write_text("/opt/theirs/bin/python")
    return CommandRuns(recording, tmp_path, may_join=True)


def test_one_line_says_whose_runs_cannot_be_noticed(
    runs: CommandRuns, caplog: pytest.LogCaptureFixture
) -> None:
    """It names the interpreter and says what to do; the report goes to a run of its own."""
    assert runs.decide()
    assert len(caplog.records) == 1
    assert "/opt/theirs/bin/python, which has no mlflow-perf" in caplog.text
    assert "--own-run" in caplog.text


def test_a_run_that_was_noticed_needs_no_line(
    runs: CommandRuns, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Another process of the command started it, and the report joins it."""
    run = {
        "run_id": "a" * 32, "experiment_id": "1", "name": "mine", "parent_id": None, "start_ms": 1,
        "tracking_uri": "sqlite:///mlflow.db", "is_new": True,
    }  # fmt: skip
    (tmp_path / f"run-{'a' * 32}.spool").write_text(json.dumps(run))
    assert runs.decide()
    assert caplog.records == []
