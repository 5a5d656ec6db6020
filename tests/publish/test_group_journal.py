"""The steps of a group whose reports are not in MLflow yet are known by their journals."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from mlflow_perf.publish.group_journal import (
    NOTES,
    count_unsent_steps,
    find_step_journals,
    is_at_work,
    open_group_journal,
    remove_left_over_notes,
)
from mlflow_perf.tracking.run_handle import RunHandle

GROUP = "5df774eae1dc444eb89f0b7a682b3e23"
HOLDER = """
import fcntl, sys
file = open(sys.argv[1], "r+b")
fcntl.lockf(file, fcntl.LOCK_EX)
print("held", flush=True)
sys.stdin.read()
"""


def _write(folder: Path, name: str, *lines: dict[str, Any], **head: Any) -> Path:
    """Write a journal of a step of the group."""
    first = {"delivery": {"parent_id": GROUP}} | head
    path = folder / f"{name}.journal"
    path.write_text("".join(f"{json.dumps(line)}\n" for line in (first, *lines)), encoding="utf-8")
    path.write_text(path.read_text().replace('": ', '":'), encoding="utf-8")  # as `Journal` writes
    return path


def test_a_journal_that_is_locked_is_that_of_a_step_at_work(tmp_path: Path) -> None:
    """A step with two nodes is one step, and at work as long as one of them is."""
    step = {"parent_id": GROUP, "run_id": "run"}
    runs = _write(tmp_path, "a", {"rows": []}, delivery=step)
    _write(tmp_path, "b", {"final": {}}, delivery=step)
    kept = _write(tmp_path, "c", {"final": {}})
    command = [sys.executable, "-c", HOLDER, str(runs)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        assert (is_at_work(runs), is_at_work(kept)) == (True, False)
        assert not is_at_work(runs, only_sending=True)
        with runs.open("a") as file:
            file.write('{"final":{}}\n')
        assert is_at_work(runs, only_sending=True)
        assert count_unsent_steps(GROUP, tmp_path) == (1, 1)
        holder.communicate("")
    assert not is_at_work(runs)
    assert count_unsent_steps(GROUP, tmp_path) == (2, 0)


def test_looking_for_steps_leaves_the_groups_own_journal_locked(tmp_path: Path) -> None:
    """A group in another one is a step of that, which waits as long as the journal is locked."""
    run = RunHandle("sqlite:///none.db", parent_id=GROUP)
    _, journal = open_group_journal("inner", run, tmp_path)
    assert find_step_journals(GROUP, tmp_path) == {}
    look = "import sys; from pathlib import Path\n"
    look += "from mlflow_perf.publish.group_journal import is_at_work\n"
    look += "print(is_at_work(Path(sys.argv[1])))"
    command = [sys.executable, "-c", look, str(journal.path)]
    assert subprocess.check_output(command, text=True) == "True\n"
    journal.remove()


def test_the_notes_of_a_killed_group_go_after_its_journal(tmp_path: Path) -> None:
    """Those of a group that runs stay, and so does what only looks like notes."""
    _, journal = open_group_journal("flow", RunHandle("sqlite:///none.db"), tmp_path)
    notes = journal.path.with_suffix(NOTES)
    for file in (notes, tmp_path / "my.notes", tmp_path / "my.group-work.notes"):
        file.touch()
    remove_left_over_notes(tmp_path)
    assert notes.exists()
    journal.remove()
    remove_left_over_notes(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"my.notes", "my.group-work.notes"}


@pytest.mark.parametrize(
    "head", [{"delivery": {"parent_id": None}}, {"delivery": None}, {"removed": True}]
)
def test_another_journal_is_none_of_a_step(tmp_path: Path, head: dict[str, Any]) -> None:
    """Nor is one that was sent, and that its job could not delete."""
    _write(tmp_path, "other", **head)
    (tmp_path / "damaged.journal").write_bytes(b"\xff\n")
    assert find_step_journals(GROUP, tmp_path) == {}
    assert not is_at_work(tmp_path / "gone.journal")
