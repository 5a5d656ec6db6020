"""One process, as recorded procfs trees and this machine's own procfs show it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.readers.trees import put, record

from mlflow_perf.core.own_cost import as_own, own_cpu_sec
from mlflow_perf.errors import SourceUnavailableError
from mlflow_perf.readers.process import process as module
from mlflow_perf.readers.process.process import Process, ProcessTable, cpu_clock_sec
from mlflow_perf.readers.process.reaped import read_reaped_sec
from mlflow_perf.readers.process.shares import Shares
from mlflow_perf.readers.process.usage import Usage

MB = 1 << 20


def open_table(proc: Path) -> ProcessTable:
    """Return the table of a recorded procfs, of 100 ticks per second."""
    return ProcessTable(proc, ticks_per_sec=100, page_bytes=4096)


def test_a_process_is_read_with_its_reaped_children(tmp_path: Path) -> None:
    """CPU time is its own and that of its reaped children; memory is pages times their size."""
    record(
        tmp_path, 10, 1, cpu=500, children=100, rss=256, io=(5, 7), calls=(1, 2), called=(30, 40),
        kernel=(150, 50), started=33,
    )  # fmt: skip
    table = open_table(tmp_path)
    process = table.find(10)
    assert process is not None
    assert (process.parent, process.started) == (1, 33)
    assert table.refresh(process)
    assert process.usage == Usage(6.0, 2.0, 5, 7, 1, 2, 70)
    assert (process.children_sec, process.rss_bytes) == (1.0, MB)
    assert table.children_sec(10) == 1.0
    table.close()


def test_a_reused_pid_is_no_longer_the_process(tmp_path: Path) -> None:
    """A process that started at another time is another one."""
    record(tmp_path, 10, 1)
    table = open_table(tmp_path)
    process = table.find(10)
    assert process is not None
    record(tmp_path, 10, 1, started=2)
    assert not table.refresh(process)
    assert table.find(11) is None
    table.close()


def test_files_stay_open_within_a_bound(tmp_path: Path) -> None:
    """Only the first members' files are kept open; the others are read all the same."""
    table = open_table(tmp_path)
    before = len(os.listdir("/proc/self/fd"))
    for pid in range(10, 60):
        record(tmp_path, pid, 1, cpu=pid)
        table.keep(pid)
    assert len(os.listdir("/proc/self/fd")) - before <= 48
    for pid in range(10, 60):
        process = table.find(pid)
        assert process is not None
        assert table.refresh(process)
        assert process.usage.cpu_sec == pytest.approx(pid / 100)
    for pid in range(10, 60):
        table.drop(pid)
    assert len(os.listdir("/proc/self/fd")) == before
    table.close()


def test_a_recorded_procfs_has_no_clocks_of_this_machine(tmp_path: Path) -> None:
    """PIDs of another procfs are never asked of this kernel's clocks, nor waited for."""
    record(tmp_path, os.getpid(), 1, cpu=100)
    table = open_table(tmp_path)
    process = table.find(os.getpid())
    assert process is not None
    assert table.refresh(process)
    assert process.usage.cpu_sec == 1.0
    assert table.own_pid is None
    assert not table.is_childless(os.getpid())
    assert table.find_ended_child(os.getpid()) is None
    assert not table.is_copy(os.getpid())
    assert table.own_peak_bytes() == 0
    table.close()


def test_peaks_and_shares_are_the_kernels_own(tmp_path: Path) -> None:
    """They come from `status`, `smaps_rollup`, `statm` and `stat`, if those exist."""
    record(tmp_path, 10, 1)
    table = open_table(tmp_path)
    process = Process(10, 1, 1)
    assert table.peak_bytes(10) == 0
    assert table.read_shares(10) is None
    assert table.read_resident(10) == (0, 0)
    put(tmp_path / "10/status", "Name: x\nVmHWM:    2048 kB\n")
    put(tmp_path / "10/smaps_rollup", "x\nPss:    1024 kB\nPrivate_Dirty: 4 kB\nAnonymous: 8 kB\n")
    put(tmp_path / "10/statm", "900 512 256 1 0 300 0\n")
    name, _, fields = (tmp_path / "10/stat").read_text().rpartition(") ")
    put(tmp_path / "10/stat", f"{name}) {fields.replace('-1 0 0', '-1 0 3', 1)}")
    assert table.peak_bytes(10) == 2 * MB
    assert table.read_shares(10) == Shares(MB, 4096, 8192)
    assert table.read_resident(10) == (2 * MB, MB)
    table.refresh(process)
    assert table.fault_bytes(process) == 3 * 4096
    table.close()


@pytest.mark.e2e
def test_a_fork_has_its_parents_layout_and_a_program_its_own() -> None:
    """A fork still has its parent's memory; a program that was started has not."""
    table = ProcessTable()
    fork = os.fork()
    if fork == 0:
        time.sleep(60)
    with subprocess.Popen(
        [sys.executable, "-S", "-c", "print(1); input()"], stdin=-1, stdout=-1
    ) as program:
        assert program.stdout is not None
        program.stdout.readline()
        assert table.is_fork(fork, os.getpid())
        assert not table.is_fork(program.pid, os.getpid())
        program.communicate(b"\n")
    os.kill(fork, 9)
    os.waitpid(fork, 0)
    before = table.fault_bytes(Process(os.getpid(), 1, 1))
    pages = bytearray(8 * MB)
    pages[::4096] = b"x" * len(pages[::4096])
    assert table.fault_bytes(Process(os.getpid(), 1, 1)) > before
    table.close()


def test_no_procfs_is_an_unavailable_source(tmp_path: Path) -> None:
    """Without procfs there is no table."""
    with pytest.raises(SourceUnavailableError, match="nowhere"):
        ProcessTable(tmp_path / "nowhere")


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs procfs")
def test_this_process_is_read_to_the_nanosecond() -> None:
    """This process's CPU time comes from the kernel's clock in nanoseconds."""
    table = ProcessTable()
    assert table.own_pid == os.getpid()
    process = table.find(os.getpid())
    assert process is not None
    before = cpu_clock_sec(os.getpid())
    assert table.refresh(process)
    assert before <= process.clock_sec <= cpu_clock_sec(os.getpid())
    assert process.rss_bytes > MB
    assert process.moved
    table.close()


@pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="needs the kernel's counters")
def test_the_kept_file_of_the_first_thread_shows_the_present() -> None:
    """The times of the first thread, read through an open file, are those of this moment."""
    pid = os.getpid()
    table, other = ProcessTable(), ProcessTable()
    table.keep(pid)
    first = table.read_schedule(pid, pid)
    end = time.thread_time() + 0.03
    while time.thread_time() < end:
        pass
    before, kept, after = (t.read_schedule(pid, pid) for t in (other, table, other))
    assert first is not None
    assert before is not None
    assert kept is not None
    assert after is not None
    assert first < before <= kept <= after
    table.close()
    other.close()


@pytest.mark.parametrize("shift", [2**31, -(2**31), 3600])
@pytest.mark.parametrize("is_late", [False, True])
def test_a_clock_that_a_library_shifts_is_not_used(
    shift: int, is_late: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clocks may be shifted (libfaketime), of threads too; the kernel's ticks stay true."""
    shifts = [0.0 if is_late else shift]
    table = ProcessTable(cpu_clock=lambda pid: cpu_clock_sec(pid) + shifts[0])
    process = table.find(os.getpid())
    assert process is not None
    assert table.refresh(process)
    assert (process.clock_sec > 0) is is_late
    first = process.usage.cpu_sec
    shifts[0] = shift
    monkeypatch.setattr(module, "own_cpu_sec", lambda: own_cpu_sec() + shift)
    assert table.refresh(process)
    assert process.clock_sec == -1.0
    # Between two steps of 10 ms, and up to our own part of it.
    least = first - 0.05
    most = time.process_time() + read_reaped_sec() + 0.05
    assert least <= process.usage.cpu_sec <= most
    table.close()


def test_what_a_thread_of_ours_moves_is_not_the_jobs(tmp_path: Path) -> None:
    """Such as one that sends the report of a run within the job's."""
    table = ProcessTable()
    process = table.find(os.getpid())
    assert process is not None
    assert table.refresh(process)
    before = process.usage.write_calls
    with (tmp_path / "file").open("wb", buffering=0) as file:
        with as_own():
            for _ in range(1_000):
                file.write(b"ours")
            burn_until = time.thread_time() + 0.001  # only what has used CPU time is read again
            while time.thread_time() < burn_until:
                pass
            assert table.refresh(process)
        assert process.usage.write_calls - before < 100
        for _ in range(1_000):
            file.write(b"the job's")
        assert table.refresh(process)
    assert 1_000 <= process.usage.write_calls - before < 1_100
    table.close()
