"""What the runner of a pipeline hears of a step's command."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

import pytest
from tests.alone import alone

from mlflow_perf.session.outcome import Outcome
from mlflow_perf.session.step_command import StepCommand


@pytest.mark.parametrize(
    ("status", "noted"), [("FINISHED", "FINISHED"), ("FAILED", "FAILED"), ("KILLED", "ENDED")]
)
def test_the_file_follows_the_command(tmp_path: Path, status: str, noted: str) -> None:
    """A signal's end is none that `recover` may take for the step's own."""
    file = tmp_path / "ended"
    step = StepCommand(file)
    step.note_begin()
    assert file.read_text() == "STARTED"
    step.note_end(Outcome(status))
    assert file.read_text() == noted
    StepCommand(tmp_path / "no folder" / "ended").note_begin()  # harms nobody


def test_a_signal_counts_where_the_runner_stops_the_step_or_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the step's exit code does, as its runner sees it."""
    step = StepCommand(tmp_path / "ended")
    assert step.lives_on
    assert not StepCommand(tmp_path / "ended", runner_pid=1).lives_on
    note = tmp_path / "stopped-1"
    note.write_text("FAILED took longer than its limit of 3 s")
    monkeypatch.setenv("MLFLOW_PERF_STOP_NOTE", str(note))
    assert not step.lives_on


@alone
def test_a_rank_that_srun_started_ends_its_command_once_when_its_runner_says_so(
    tmp_path: Path,
) -> None:
    """All processes of its command get the signal: a shell waits for its program before it acts."""
    ready, told, done = (tmp_path / name for name in ("ready", "told", "done"))
    wait = f"trap 'echo term >> {told}' TERM; echo >> {ready}"
    wait = f"{wait}; until test -e {done}; do sleep 0.05; done"
    child = subprocess.Popen(["bash", "-c", f"({wait}) & {wait}; wait"])
    while not (ready.exists() and ready.read_text() == "\n\n"):
        time.sleep(0.01)
    note = tmp_path / "stopped-1"
    os.environ["MLFLOW_PERF_STOP_NOTE"] = str(note)
    several, local = StepCommand(None, heeds_stop=True), StepCommand(tmp_path / "ended")
    several.note_begin()  # no single command's
    several.look()
    time.sleep(0.2)
    assert not told.exists()
    note.write_text("FAILED took longer than its limit of 3 s")
    for step in (several, several, local):
        step.look()
    while not (told.exists() and told.read_text() == "term\nterm\n"):
        time.sleep(0.01)
    done.touch()
    child.wait()
    assert told.read_text() == "term\nterm\n"
    assert not several.lives_on
