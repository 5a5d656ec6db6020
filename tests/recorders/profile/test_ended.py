"""However many processes a job starts and ends, their samples stay in few files."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from mlflow_perf.model.samples import Function, RawStacks, Sample
from mlflow_perf.recorders.collect import collect_stacks
from mlflow_perf.recorders.profile.ended import _AT_ONCE, _KEPT, EndedProcesses, is_written
from mlflow_perf.recorders.profile.windows import StackWindow

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs the leases of Linux")

COUNT = _KEPT + 2 * _AT_ONCE


def sample(folder: Path, number: int) -> StackWindow:
    """Write what a process sampled: a second in a function of all, half of one in its own."""
    window = StackWindow(100.0)
    window.spool_to(folder)
    for name, wall in (("shared", 1.0), (f"own_{number % 3}", 0.5)):
        stack = Sample("child processes", 1, (Function(name, "job.py", 1, False),))
        window.add(stack, 1_700_000_000.0 + number, wall, wall / 2, 100)
    return window


def total(found: list[RawStacks]) -> dict[str, tuple[float, float, int]]:
    """Return function → wall and CPU seconds and samples."""
    sums: dict[str, tuple[float, float, int]] = {}
    for raw in found:
        for _, _, stack, wall, cpu, count in raw.cells:
            name = raw.functions[raw.stacks[stack][2][-1]].name
            had = sums.get(name, (0.0, 0.0, 0))
            sums[name] = had[0] + wall, had[1] + cpu, had[2] + count
    return sums


def test_the_files_of_ended_processes_become_one(tmp_path: Path) -> None:
    """The sums stay the same, and no more files are left than are kept anyway."""
    for number in range(COUNT):
        sample(tmp_path, number).spool_to(None)
    before = total(collect_stacks(tmp_path))
    ended = EndedProcesses(tmp_path, 100.0)
    for _ in range(4):
        ended.merge()
    assert len(list(tmp_path.iterdir())) == _KEPT + 1
    assert total(collect_stacks(tmp_path)) == before, "binary fractions add up exactly"
    assert before["shared"] == (COUNT, COUNT / 2, 100 * COUNT)


def test_the_same_functions_of_many_processes_are_kept_once(tmp_path: Path) -> None:
    """The files are read one by one, and each has functions of its own."""
    for number in range(COUNT):
        window = StackWindow(100.0)
        window.spool_to(tmp_path)
        path = (Function("main", "job.py", 1, False), Function(f"f{number}", "job.py", 2, False))
        window.add(Sample("child processes", 1, path), 1_700_000_000.0, 1.0, 0.5, 100)
        window.spool_to(None)
    ended = EndedProcesses(tmp_path, 100.0)
    ended.merge()
    ended.merge()
    assert ended._window is not None
    mains = {id(sample.path[0]) for sample in ended._window._stacks}
    assert len(ended._window._stacks) == 2 * _AT_ONCE
    assert len(mains) == 1


def test_a_process_that_goes_on_keeps_its_file(tmp_path: Path) -> None:
    """What a process can still write is left alone."""
    windows = [sample(tmp_path, number) for number in range(COUNT)]
    EndedProcesses(tmp_path, None).merge()
    assert len(list(tmp_path.iterdir())) == COUNT
    assert all(map(is_written, tmp_path.iterdir()))
    for window in windows:
        window.spool_to(None)
    assert not any(map(is_written, tmp_path.iterdir()))


def test_unreadable_files_are_left_for_the_end(tmp_path: Path) -> None:
    """A damaged file neither stops the merging nor is lost without a word."""
    for number in range(COUNT):
        sample(tmp_path, number).spool_to(None)
    damaged = min(tmp_path.iterdir(), key=lambda path: path.stat().st_mtime)
    damaged.write_bytes(b"MLPERF1\n" + bytes(100))
    ended = EndedProcesses(tmp_path, None)
    for _ in range(4):
        ended.merge()
    assert damaged.exists()
    assert len(list(tmp_path.iterdir())) < COUNT
    EndedProcesses(tmp_path / "gone", None).merge()
