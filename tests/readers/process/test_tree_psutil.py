"""The job's processes through psutil, compared with the kernel's own files."""

from __future__ import annotations

import os
import subprocess
import sys
from types import SimpleNamespace

import psutil
import pytest
from tests.alone import alone
from tests.readers.trees import read

from mlflow_perf import readers
from mlflow_perf.errors import SourceUnavailableError
from mlflow_perf.readers import job
from mlflow_perf.readers.process.tree import ProcessTreeReader
from mlflow_perf.readers.process.tree_psutil import PsutilProcessTreeReader

BURN = "import time\nwhile time.process_time() < {}: pass"


@pytest.mark.e2e
@alone
def test_it_agrees_with_procfs() -> None:
    """CPU time, memory and processes of a real tree are those of the kernel's own files."""
    ours, portable = ProcessTreeReader(), PsutilProcessTreeReader()
    at_first, at_first_portable = read(ours), read(portable)
    before = at_first["job_processes"]
    subprocess.run([sys.executable, "-S", "-c", BURN.format(0.3)], check=True)
    hold = "x = bytearray(b'x') * (50 << 20); print(flush=True); input()"
    child = subprocess.Popen(
        [sys.executable, "-S", "-c", hold], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert child.stdout is not None
    child.stdout.readline()
    expected, found = read(ours), read(portable)
    child.communicate(b"\n")
    assert found["job_processes"] == expected["job_processes"] == before + 1
    assert found["job_cpu_sec"] == pytest.approx(expected["job_cpu_sec"], rel=0.15, abs=0.05)
    # It cannot tell what two processes share, which then counts twice.
    assert found["job_mem_mb"] >= expected["job_mem_mb"] * 0.95
    assert 40 <= found["job_mem_mb"] - at_first_portable["job_mem_mb"] <= 90
    after = read(portable)
    assert after["job_processes"] == before
    assert after["job_cpu_sec"] >= found["job_cpu_sec"], "what has ended is not taken away"
    ours.close()


@pytest.mark.e2e
def test_without_procfs_the_job_has_its_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without procfs, the default readers provide the same columns through psutil."""

    def missing(*_: object, **__: object) -> None:
        raise SourceUnavailableError("no procfs here")

    monkeypatch.setattr(job, "ProcessTable", missing)
    found = [reader for reader in readers.default_readers() if reader.name == "processes"]
    assert [type(reader) for reader in found] == [PsutilProcessTreeReader]
    assert read(found[0])["job_mem_mb"] > 1


class Recorded:
    """A process as a platform shows it that adds no ended child to its parent and counts no IO."""

    def __init__(self, pid: int, cpu: float, rss: int) -> None:
        self.pid, self.cpu, self.rss = pid, cpu, rss
        self.error: psutil.Error | None = None
        self.below: list[Recorded] = []

    def ppid(self) -> int:
        return 1

    def children(self, *, recursive: bool) -> list[Recorded]:
        return self.below if recursive else []

    def oneshot(self) -> Recorded:
        return self

    def __enter__(self) -> None:
        if self.error is not None:
            raise self.error

    def __exit__(self, *_: object) -> None:
        return None

    def status(self) -> str:
        return "running"

    def cpu_times(self) -> SimpleNamespace:
        if self.error is not None:
            raise self.error
        return SimpleNamespace(user=self.cpu, system=0.0)

    def memory_info(self) -> SimpleNamespace:
        return SimpleNamespace(rss=self.rss << 20)


def test_a_platform_that_forgets_ended_children_and_counts_no_io() -> None:
    """As on macOS: ended and forbidden children keep their values, and disk I/O is zero."""
    root, child, other = Recorded(5, 10.0, 100), Recorded(6, 1.0, 50), Recorded(7, 2.0, 20)
    root.below = [child, other]
    fake = SimpleNamespace(
        Process=lambda pid: root, Error=psutil.Error, NoSuchProcess=psutil.NoSuchProcess,
        STATUS_ZOMBIE="zombie",
    )  # fmt: skip
    ticks = iter(range(100))
    reader = PsutilProcessTreeReader(5, fake, clock=lambda: float(next(ticks)))
    root.cpu, child.cpu = 11.0, 4.0
    assert read(reader)["job_cpu_sec"] == pytest.approx(4.0)
    child.error, other.error = psutil.NoSuchProcess(6), psutil.AccessDenied(7)
    root.below = [other]
    report = read(reader)
    assert report["job_cpu_sec"] == pytest.approx(4.0)
    assert report["job_processes"] == 2.0
    assert (report["job_mem_mb"], report["job_io_write_mb"]) == (120.0, 0.0)
    root.error = psutil.NoSuchProcess(5)
    assert read(reader)["job_cpu_sec"] == pytest.approx(4.0), "its root ended: nothing is lost"


def test_no_such_process_is_an_unavailable_source() -> None:
    """A PID without a process raises SourceUnavailableError."""
    with pytest.raises(SourceUnavailableError, match="cannot be read"):
        PsutilProcessTreeReader(2**22 + os.getpid())


def test_a_process_that_may_not_be_read_is_an_unavailable_source() -> None:
    """In a sandbox that forbids the files of procfs its CPU time is unknown, and no 0."""
    root = Recorded(5, 10.0, 100)
    root.error = psutil.AccessDenied(5)
    fake = SimpleNamespace(Process=lambda pid: root, Error=psutil.Error)
    with pytest.raises(SourceUnavailableError, match="Process 5 cannot be read"):
        PsutilProcessTreeReader(5, fake)


@pytest.mark.skipif(sys.platform != "linux", reason="others forget an ended process")
def test_a_command_that_ends_between_two_readings_has_its_cpu_time() -> None:
    """Its memory is not known then: at the first reading it may be a copy of this process."""
    busy = "import time\nwhile time.process_time() < 0.3: pass"
    child = subprocess.Popen([sys.executable, "-S", "-c", busy])
    first: dict[str, float] = {}
    last: dict[str, float] = {}
    try:
        reader = PsutilProcessTreeReader(child.pid)
        reader.read(first)
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        reader.read(last)
    finally:
        child.wait(60)
    assert first["job_cpu_sec"] == 0.0
    assert last["job_cpu_sec"] >= 0.25
    assert "job_mem_mb" not in {**first, **last}
