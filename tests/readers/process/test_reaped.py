"""Ended children: their accounts, and commands that end before the first interval does."""

from __future__ import annotations

import mmap
import os
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.alone import alone
from tests.readers.trees import read

from mlflow_perf.readers.process.process import ProcessTable
from mlflow_perf.readers.process.reaped import find_ended_child
from mlflow_perf.readers.process.tree import ProcessTreeReader
from mlflow_perf.sampling.sampler import PerformanceMetricsCollector
from mlflow_perf.testing import FakeClock

pytestmark = pytest.mark.e2e

MB = 1 << 20
HOLD = "x = bytearray(b'x') * ({} << 20); del x"


class Held:
    """A fork of this process that executes a command when `run` is called.

    Args:
        code: The command, in Python.
        before: Called in the fork, between being told and becoming the command.
    """

    def __init__(self, code: str, before: Callable[[], object] = lambda: None) -> None:
        held, self._go = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                os.close(self._go)
                os.read(held, 1)
                before()
                os.execv(sys.executable, [sys.executable, "-S", "-c", code])
            finally:  # or the fork goes on with the tests
                os._exit(127)
        os.close(held)

    def has_ended(self) -> bool:
        """Return whether it is over; it is still to be waited for."""
        flags = os.WEXITED | os.WNOWAIT | os.WNOHANG
        return os.waitid(os.P_PID, self.pid, flags) is not None

    def run(self) -> None:
        """Let it run to its end, without waiting for it."""
        os.close(self._go)
        os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)

    def reap(self) -> resource.struct_rusage:
        """Wait for it and return the kernel's account."""
        return os.wait4(self.pid, 0)[2]


@pytest.fixture
def ballast() -> bytearray:
    """Give this process, and so each fork of it, more memory than any command here has."""
    return bytearray(b"x") * (150 * MB)


def watched_peak_mb(child: Held) -> float:
    """Let a command run to its end while it is watched; return its peak memory."""
    reader = ProcessTreeReader(child.pid)
    os.close(child._go)
    while not child.has_ended():
        reader.sample_peak()
    report = read(reader)
    child.reap()
    reader.close()
    return report["job_mem_peak_mb"]


def test_the_account_of_an_ended_child_is_the_kernels() -> None:
    """CPU time and peak of a child that ended and that nobody waited for yet."""
    child = Held(HOLD.format(300))
    if find_ended_child(os.getpid()) is None and sys.platform != "linux":
        pytest.skip("only Linux tells it")
    assert find_ended_child(child.pid) is None, "it has not ended"
    child.run()
    found = find_ended_child(child.pid)
    usage = child.reap()
    assert found is not None
    assert found.cpu_sec == pytest.approx(usage.ru_utime + usage.ru_stime)
    assert found.peak_bytes == usage.ru_maxrss * 1024 > 300 * MB
    assert find_ended_child(child.pid) is None, "nobody is left"


def test_the_memory_of_a_fork_is_not_the_commands(ballast: bytearray) -> None:
    """A command that ended unseen, no larger than the fork it began as, has no peak."""
    child = Held("import time; time.sleep(0.2)")
    reader = ProcessTreeReader(child.pid)
    assert ProcessTable().is_copy(child.pid)
    held = [read(reader) for _ in range(3)]
    child.run()
    reader.sample_peak()
    report = read(reader)
    child.reap()
    reader.close()
    for one in (*held, report):
        assert one.keys().isdisjoint({"job_mem_mb", "job_mem_peak_mb"})


def test_a_command_shorter_than_the_interval_has_its_true_peak() -> None:
    """With an hour between samples, the peak of a command of milliseconds is the kernel's."""
    child = Held(HOLD.format(400))
    collector = PerformanceMetricsCollector(
        interval=3600, readers=[ProcessTreeReader(child.pid)], clock=FakeClock()
    )
    collector.start()
    child.run()
    collector.finalize()
    usage = child.reap()
    metrics = collector.metrics()
    # The kernel's own figure is that of the fork where this process is larger than the command.
    assert 400 < metrics["job_max_mem_mb"] <= usage.ru_maxrss / 1024 * 1.01
    true_hours = (usage.ru_utime + usage.ru_stime) / 3600
    assert metrics["job_cpu_hours"] == pytest.approx(true_hours, rel=0.01)


def test_a_small_command_is_seen_while_it_runs(ballast: bytearray) -> None:
    """A command smaller than its parent is measured in its first milliseconds."""
    child = Held("print(end='', flush=True); import time; time.sleep(0.3)")
    assert 0.3 < watched_peak_mb(child) < 50


def test_a_copy_grows_until_it_becomes_the_command(tmp_path: Path, ballast: bytearray) -> None:
    """A fork finds the files that this process has mapped only as it touches them."""
    (tmp_path / "mapped").write_bytes(bytes(64 * MB))
    with (tmp_path / "mapped").open("rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    sum(mapped[:: mmap.PAGESIZE])
    child = Held("import time; time.sleep(0.3)", before=lambda: sum(mapped[:: mmap.PAGESIZE]))
    assert 0.3 < watched_peak_mb(child) < 50


@alone
def test_workers_of_a_short_block_are_summed() -> None:
    """Two children that hold 60 MB each between two samples are 120 MB together, once seen."""
    code = "x = bytearray(b'x') * (60 << 20); print(flush=True); input()"
    reader = ProcessTreeReader()
    before = read(reader)["job_processes"]
    children = [
        subprocess.Popen(
            [sys.executable, "-S", "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        for _ in range(2)
    ]
    for child in children:
        assert child.stdout is not None
        child.stdout.readline()
    reader.sample_peak()
    for child in children:
        child.communicate(b"\n")
    report = read(reader)
    reader.close()
    assert report["job_processes"] == before
    own = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / MB
    assert report["job_mem_peak_mb"] > 110 + 0.5 * own


def test_a_process_knows_that_it_has_no_child() -> None:
    """The question waits for no child: an ended child can still be waited for."""
    code = (
        "import subprocess, time\nfrom mlflow_perf.readers.process.reaped import is_childless\n"
        "assert is_childless()\nchild = subprocess.Popen(['true'])\ntime.sleep(0.2)\n"
        "assert not is_childless()\nassert child.wait() == 0\nassert is_childless()"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.e2e
def test_a_program_has_its_own_peak_not_that_of_the_one_it_replaced() -> None:
    """The kernel's account of a process keeps the peak of the program that it ran before."""
    code = (
        "from mlflow_perf.readers.process.process import ProcessTable\n"
        "print(ProcessTable().own_peak_bytes() >> 20)"
    )
    larger = "import os\nx = bytearray(b'x') * (150 << 20)\n"
    larger += f"os.execv({sys.executable!r}, [{sys.executable!r}, '-c', {code!r}])"
    done = subprocess.run(
        [sys.executable, "-c", larger], check=True, capture_output=True, text=True
    )
    assert int(done.stdout) < 100
