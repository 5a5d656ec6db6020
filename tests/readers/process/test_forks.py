"""Children that have executed no program yet: copies of their parent, or guests in its memory."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.readers.trees import read

from mlflow_perf.readers.process.process import ProcessTable
from mlflow_perf.readers.process.tree import ProcessTreeReader

_MB = 1 << 20
# The open of a pipe without a writer holds the child between `vfork` and `exec`.
_SPAWNS = """
import os, sys
held = bytearray(100 << 20)
held[::4096] = b"x" * len(held[::4096])
opens = [(os.POSIX_SPAWN_OPEN, 0, sys.argv[1], os.O_RDONLY, 0)]
os.waitpid(os.posix_spawn("/bin/sleep", ["sleep", "60"], os.environ, file_actions=opens), 0)
"""
_FORKS = """
import os, time
held = bytearray(100 << 20)
held[::4096] = b"x" * len(held[::4096])
if os.fork() == 0:
    held[::8192] = b"y" * len(held[::8192])
time.sleep(60)
"""

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(sys.platform != "linux", reason="needs procfs"),
]


@contextmanager
def _start(table: ProcessTable, *argv: str) -> Iterator[tuple[int, int]]:
    """Run a script; yield its PID and that of its child."""
    with subprocess.Popen([sys.executable, "-S", "-c", *argv], start_new_session=True) as parent:
        try:
            yield parent.pid, _wait_for_child(table, parent.pid)
        finally:
            os.killpg(parent.pid, signal.SIGKILL)


def _wait_for_child(table: ProcessTable, parent: int) -> int:
    until = time.monotonic() + 60
    while time.monotonic() < until:
        for pid in table.pids():
            found = table.find(pid)
            if found is not None and found.parent == parent:
                return pid
        time.sleep(0.01)
    raise AssertionError("the script has no child")


@pytest.fixture
def table() -> Iterator[ProcessTable]:
    """Return this machine's processes."""
    table = ProcessTable()
    yield table
    table.close()


def test_a_child_of_vfork_counts_when_it_has_executed_its_program(
    table: ProcessTable, tmp_path: Path
) -> None:
    """Until then its memory is its parent's, which counts once, and so does the peak."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with _start(table, _SPAWNS, str(pipe)) as (parent, child):
        assert table.uses_memory_of(child, parent)
        reader = ProcessTreeReader(parent)
        alone = read(reader)
        assert alone["job_processes"] == 2
        assert alone["job_mem_mb"] == pytest.approx(table.read_resident(parent)[0] / _MB, rel=0.02)
        assert 100 < alone["job_mem_peak_mb"] < 130
        pipe.write_text("")
        until = time.monotonic() + 60
        while table.uses_memory_of(child, parent) and time.monotonic() < until:
            time.sleep(0.01)
        assert not table.is_fork(child, parent)
        both = read(reader)
        assert alone["job_mem_mb"] <= both["job_mem_mb"] < alone["job_mem_mb"] + 10
        reader.close()


def test_a_fork_has_memory_of_its_own(table: ProcessTable) -> None:
    """What it writes to is copied, and counts."""
    with _start(table, _FORKS) as (parent, child):
        until = time.monotonic() + 60
        found = table.find(child)
        assert found is not None
        while found.faults < 12_800 and time.monotonic() < until:
            table.refresh(found)
            time.sleep(0.01)
        assert found.may_borrow
        assert not table.uses_memory_of(child, parent)
        reader = ProcessTreeReader(parent)
        assert 145 < read(reader)["job_mem_mb"] < 180
        reader.close()
