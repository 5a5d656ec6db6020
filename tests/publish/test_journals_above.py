"""A run that a process above this one records is known by its journal."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from mlflow_perf.node.exit_cause import boot_id
from mlflow_perf.publish.journals_above import is_recorded_above

RUN = "5df774eae1dc444eb89f0b7a682b3e23"


def write(folder: Path, pid: int, **changed: Any) -> None:
    """Write the journal of a process, whose run began at 100 s."""
    head = {"boot_id": boot_id(), "delivery": {"run_id": RUN}, "started": 100.0, **changed}
    lines = f"{json.dumps(head)}\n{json.dumps({'rows': []})}\n"
    (folder / f"a-job-{pid}-0123456789ab.journal").write_text(lines, encoding="utf-8")


def test_a_process_above_records_the_run(tmp_path: Path) -> None:
    """From the moment at which its run began."""
    write(tmp_path, os.getppid())
    assert is_recorded_above(RUN, 100.0, tmp_path)
    assert not is_recorded_above(RUN, 99.0, tmp_path)
    assert not is_recorded_above("", 100.0, tmp_path)


@pytest.mark.parametrize(
    "changed",
    [
        {"boot_id": "another host's"},
        {"delivery": {"run_id": None}},
        {"delivery": None},
        {"started": None},
    ],
)
def test_another_journal_of_such_a_process_says_nothing(
    tmp_path: Path, changed: dict[str, Any]
) -> None:
    """The host, the run and the start have to be right."""
    write(tmp_path, os.getppid(), **changed)
    assert not is_recorded_above(RUN, 100.0, tmp_path)


def test_a_process_beside_this_one_measures_nothing_of_it(tmp_path: Path) -> None:
    """Only what a parent records contains its children's work."""
    write(tmp_path, os.getpid())
    assert not is_recorded_above(RUN, 100.0, tmp_path)


@pytest.mark.parametrize("name", ["x.journal", "a-b-c.journal", "-.journal", "7-.journal"])
def test_foreign_and_damaged_files_are_passed_over(tmp_path: Path, name: str) -> None:
    """So is a folder that is not there."""
    (tmp_path / name).write_bytes(b"\xff\n")
    (tmp_path / f"a-{os.getppid()}-b.journal").write_bytes(b"[" * 5000)
    assert not is_recorded_above(RUN, 100.0, tmp_path)
    assert not is_recorded_above(RUN, 100.0, tmp_path / "missing")
