"""How long threads ran and waited: recorded trees with exact answers, and a crowded CPU."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from contextlib import nullcontext
from pathlib import Path

import pytest
from tests.alone import alone
from tests.readers.trees import put, read, record

from mlflow_perf.core.own_cost import as_own
from mlflow_perf.readers.process.process import Process, ProcessTable
from mlflow_perf.readers.process.tree import ProcessTreeReader
from mlflow_perf.readers.process.tree_threads import TreeThreads

_SEC = 10**9


def processes(table: ProcessTable, *pids: int) -> list[Process]:
    """Return processes, freshly read."""
    found = [process for pid in pids if (process := table.find(pid)) is not None]
    for process in found:
        table.refresh(process)
    return found


def test_only_what_came_after_the_start_counts(tmp_path: Path) -> None:
    """A thread's past is left out; a thread that is new counts from its beginning."""
    record(tmp_path, 10, 1, threads={10: (9 * _SEC, 8 * _SEC)})
    table = ProcessTable(tmp_path, ticks_per_sec=100)
    tree = TreeThreads(table, processes(table, 10))
    assert (tree.ran_sec, tree.waited_sec) == (0.0, 0.0)
    record(tmp_path, 10, 1, threads={10: (10 * _SEC, 8 * _SEC), 12: (3 * _SEC, 2 * _SEC)})
    members = processes(table, 10)
    tree.update(members)
    assert (tree.ran_sec, tree.waited_sec) == (4.0, 2.0)
    assert tree.count(members) == 2
    table.close()


def test_what_others_than_the_busiest_process_ran_is_told_apart(tmp_path: Path) -> None:
    """A process has it in each of its threads, or several processes have it."""
    for pid in (10, 11, 12):
        record(tmp_path, pid, 1, threads={pid: (0, 0)})
    table = ProcessTable(tmp_path, ticks_per_sec=100)
    tree = TreeThreads(table, processes(table, 10, 11, 12))
    record(tmp_path, 10, 1, threads={10: (3 * _SEC, 0), 20: (3 * _SEC, 0)})
    record(tmp_path, 11, 1, threads={11: (1 * _SEC, 0)})
    tree.update(processes(table, 10, 11, 12))
    assert (tree.ran_sec, tree.beside_sec, tree.apart_sec) == (7.0, 3.0, 1.0)
    record(tmp_path, 11, 1, threads={11: (5 * _SEC, 0)})
    tree.update(processes(table, 10, 11, 12))
    assert (tree.ran_sec, tree.beside_sec, tree.apart_sec) == (11.0, 3.0, 1.0)
    table.close()


def test_a_thread_of_the_job_that_works_for_us_for_a_while_keeps_its_past(tmp_path: Path) -> None:
    """A block starts in the main thread: what that did before, such as imports, is left out."""
    pid = os.getpid()
    (tmp_path / "self").symlink_to(str(pid))
    table = ProcessTable(tmp_path, ticks_per_sec=100)
    record(tmp_path, pid, 1, threads={pid: (9 * _SEC, 40 * _SEC)})
    with as_own():
        tree = TreeThreads(table, processes(table, pid))
    for ran, is_ours in ((10, False), (11, True), (12, False)):
        record(tmp_path, pid, 1, threads={pid: (ran * _SEC, 41 * _SEC)})
        with as_own() if is_ours else nullcontext():
            tree.update(processes(table, pid))
    assert (tree.ran_sec, tree.waited_sec) == (3.0, 1.0)
    table.close()


def test_our_threads_in_a_process_of_the_job_are_not_the_jobs(tmp_path: Path) -> None:
    """The stack sampler of a Python child bears our name in the kernel, and is not counted."""
    record(tmp_path, 10, 1, threads={10: (0, 0), 12: (0, 0), 13: (0, 0)})
    put(tmp_path / "10/task/12/comm", "mlflow-perf\n")
    put(tmp_path / "10/task/13/comm", "python\n")
    table = ProcessTable(tmp_path, ticks_per_sec=100)
    members = processes(table, 10)
    tree = TreeThreads(table, members)
    assert tree.count(members) == 2
    record(tmp_path, 10, 1, threads={10: (_SEC, 0), 12: (5 * _SEC, 5 * _SEC), 13: (_SEC, 0)})
    members = processes(table, 10)
    tree.update(members)
    assert (tree.ran_sec, tree.waited_sec, tree.count(members)) == (2.0, 0.0, 2)
    table.close()


def test_a_thread_of_ours_that_names_itself_late_is_not_the_jobs(tmp_path: Path) -> None:
    """On a busy node it may be seen before it has run for the first time."""
    record(tmp_path, 10, 1, threads={10: (0, 0)})
    table = ProcessTable(tmp_path, ticks_per_sec=100)
    tree = TreeThreads(table, processes(table, 10))
    record(tmp_path, 10, 1, threads={10: (_SEC, 0), 12: (0, _SEC)})
    put(tmp_path / "10/task/12/comm", "python\n")
    tree.update(processes(table, 10))
    put(tmp_path / "10/task/12/comm", "mlflow-perf\n")
    for sec in (2, 3):
        record(tmp_path, 10, 1, threads={10: (sec * _SEC, 0), 12: (sec * _SEC, sec * _SEC)})
        members = processes(table, 10)
        tree.update(members)
    assert (tree.ran_sec, tree.waited_sec, tree.count(members)) == (3.0, 1.0, 1)
    table.close()


def test_short_threads_waited_no_longer_than_they_lived_idle(tmp_path: Path) -> None:
    """A look finds a short thread that has waited and hardly run: its ratio is not that of all."""
    record(tmp_path, 10, 1, threads={10: (0, 0)})
    table = ProcessTable(tmp_path, ticks_per_sec=100)
    ticks = iter(range(100))
    tree = TreeThreads(table, processes(table, 10), clock=lambda: float(next(ticks)))
    for second in range(1, 11):  # one thread after another, which ran for nine tenths of the time
        thread = (_SEC // 100, _SEC // 10)
        record(tmp_path, 10, 1, threads={10: (0, 0), 100 + second: thread}, cpu=90 * second)
        tree.update(processes(table, 10), cpu_sec=0.9 * second)
        shutil.rmtree(tmp_path / f"10/task/{100 + second}")
    assert tree.ran_sec == pytest.approx(9.0)
    assert tree.waited_sec == pytest.approx(1.0)
    table.close()


def test_short_threads_that_a_look_finds_runnable_waited_while_they_did_not_run(
    tmp_path: Path,
) -> None:
    """What a thread waits is in its account once it has run again: most had waited 0 until then."""
    record(tmp_path, 10, 1, threads={10: (0, 0)})
    table = ProcessTable(tmp_path, ticks_per_sec=100)
    ticks = iter(range(100))
    tree = TreeThreads(
        table,
        processes(table, 10),
        clock=lambda: float(next(ticks)),
        cpu_clock=lambda: 0.0,  # a look that takes long would be the last for a while
    )
    for second in range(1, 11):  # two at a time, on one CPU; every second pair sleeps
        pair = [100 + 2 * second, 101 + 2 * second]
        threads = {10: (0, 0), **dict.fromkeys(pair, (_SEC // 10, 0))}
        record(tmp_path, 10, 1, threads=threads, cpu=50 * second)
        for thread in pair:
            put(tmp_path / f"10/task/{thread}/stat", f"{thread} (a) b) {'RS'[second % 2]} 1\n")
        tree.update(processes(table, 10), cpu_sec=0.5 * second)
        for thread in pair:
            shutil.rmtree(tmp_path / f"10/task/{thread}")
    assert tree.ran_sec == pytest.approx(5.0)
    assert tree.waited_sec == pytest.approx(10.0 - 5.0)
    table.close()


def test_a_reused_thread_id_counts_from_its_own_beginning(tmp_path: Path) -> None:
    """Counters that are lower than before belong to another thread; nothing is subtracted."""
    record(tmp_path, 10, 1, threads={10: (0, 0), 12: (5 * _SEC, 5 * _SEC)})
    table = ProcessTable(tmp_path, ticks_per_sec=100)
    tree = TreeThreads(table, processes(table, 10))
    record(tmp_path, 10, 1, threads={10: (0, 0), 12: (_SEC, 0)})
    tree.update(processes(table, 10))
    assert (tree.ran_sec, tree.waited_sec) == (0.0, 0.0)
    record(tmp_path, 10, 1, threads={10: (0, 0), 12: (3 * _SEC, _SEC)})
    tree.update(processes(table, 10))
    assert (tree.ran_sec, tree.waited_sec) == (2.0, 1.0)
    table.close()


def test_processes_beyond_the_budget_are_read_later(tmp_path: Path) -> None:
    """With time for one process at each update, every process is read in turn."""
    for pid in (10, 11, 12):
        record(tmp_path, pid, 1)
    table = ProcessTable(tmp_path, ticks_per_sec=100)
    ticks = iter(range(10**6))
    tree = TreeThreads(table, processes(table, 10, 11, 12), clock=lambda: 10.0 * next(ticks),
                       cpu_clock=lambda: 0.0004 * next(ticks))  # fmt: skip
    for pid in (10, 11, 12):
        record(tmp_path, pid, 1, threads={pid: (_SEC, _SEC)})
    found = []
    for _ in range(12):
        tree.update(processes(table, 10, 11, 12))
        found.append(tree.waited_sec)
    assert found[0] < 3.0
    assert found[-1] == 3.0
    table.close()


def test_processes_that_had_work_are_asked_for_their_cpus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that got its CPU, or stopped, lacks none; but the job may use the CPU it has."""
    for pid in (10, 11):
        record(tmp_path, pid, 1, threads={pid: (0, 9 * _SEC)})
    table = ProcessTable(tmp_path, ticks_per_sec=100)
    asked: list[int] = []

    def find_cpus(pid: int) -> frozenset[int]:
        asked.append(pid)
        return frozenset({pid})

    record(tmp_path, 12, 1, threads={12: (0, 0)})
    monkeypatch.setattr(table, "find_cpus", find_cpus)
    tree = TreeThreads(table, processes(table, 10, 11, 12))
    assert tree.list_waiting() == set()
    asked.clear()
    record(tmp_path, 10, 1, threads={10: (_SEC, 10 * _SEC)})
    record(tmp_path, 11, 1, threads={11: (_SEC, 9 * _SEC + _SEC // 100)})
    record(tmp_path, 12, 1, threads={12: (_SEC // 1000, _SEC // 1000)})
    tree.update(processes(table, 10, 11, 12))
    assert sorted(asked) == [10, 11]
    assert tree.list_waiting() == {10}
    assert tree.find_cpus() == {10, 11}
    tree.update(processes(table, 10, 11, 12))
    assert tree.list_waiting() == set()
    assert tree.find_cpus() == frozenset()
    table.close()


@pytest.mark.e2e
@alone
def test_threads_that_share_a_cpu_wait_as_long_as_others_run() -> None:
    """Three processes on one CPU each wait for about two thirds of the time or more."""
    cpu = min(os.sched_getaffinity(0))
    code = (
        f"import os, time\nos.sched_setaffinity(0, [{cpu}])\nwhile time.process_time() < 0.3: pass"
    )
    reader = ProcessTreeReader()
    children = [subprocess.Popen([sys.executable, "-S", "-c", code]) for _ in range(3)]
    report: dict[str, float] = {}
    while any(child.poll() is None for child in children):
        report = read(reader)
        time.sleep(0.02)
    reader.close()
    share = report["job_run_delay_sec"] / (report["job_run_delay_sec"] + report["job_ran_sec"])
    assert 0.4 < share < 1.0
