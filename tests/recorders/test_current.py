"""Rules of the current recorders: records of any process of the job arrive once."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import forkserver
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import mlflow_perf
from mlflow_perf import NixlKVConnectorStats, OperationMetrics
from mlflow_perf.recorders import current, spool
from mlflow_perf.recorders.collect import collect_operations, collect_transfers

TELEMETRY: Any = SimpleNamespace(xferDuration=1000, postDuration=10, totalBytes=2**20, descCount=2)


Session = tuple[OperationMetrics, Path]


@pytest.fixture
def session(tmp_path: Path) -> Iterator[Session]:
    """An active session: its recorder and its spool folder."""
    # A server that an earlier test started has that test's environment.
    forkserver._forkserver._stop()  # type: ignore[attr-defined] # there is no public way
    folder = spool.create(tmp_path)
    recorder = OperationMetrics()
    current.activate(recorder, folder=folder)
    yield recorder, folder
    current.deactivate()


def _work(number: int) -> int:
    """Record one operation in whatever process this is."""
    with mlflow_perf.time("work", number):
        pass
    recorder = current.recorder()
    assert recorder is not None
    recorder.add_counter("done", None, 1)
    return os.getpid()


def _kill_after(number: int) -> None:
    _work(number)
    os.kill(os.getpid(), signal.SIGKILL)


def _collect(folder: Path) -> OperationMetrics:
    recorder = OperationMetrics()
    collect_operations(folder, recorder)
    return recorder


def _count(recorder: OperationMetrics, name: str = "work") -> int:
    times = recorder.aggregate_times()
    return times[name].count if name in times else 0


def _transfer(kill: bool = False) -> None:
    stats = current.record_transfers("nixl")
    for _ in range(3):
        stats.record_transfer(TELEMETRY)
    stats.record_failed_transfer()
    if kill:
        os.kill(os.getpid(), signal.SIGKILL)


def _sums(session: Session) -> tuple[int, float]:
    found = collect_transfers(session[1], current.process.transfers)
    stats = found.get("nixl", NixlKVConnectorStats())
    return stats.num_successful_transfers, stats.figures()["num_failed_transfers"]


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_pool_that_is_terminated(session: Session, method: str) -> None:
    """What a multiprocessing pool recorded arrives, though leaving its block kills the workers."""
    recorder, folder = session
    with multiprocessing.get_context(method).Pool(2) as pool:
        processes = set(pool.map(_work, range(20), chunksize=1))
    collect_operations(folder, recorder)
    assert os.getpid() not in processes
    assert _count(recorder) == 20
    assert recorder.aggregate_counters() == {"done": 20}
    assert recorder.get_metrics(7) is not None


def test_executor(session: Session) -> None:
    """The records of a process pool executor arrive, and those of the session itself stay."""
    recorder, folder = session
    _work(100)
    with ProcessPoolExecutor(2) as executor:
        list(executor.map(_work, range(20)))
    collect_operations(folder, recorder)
    assert _count(recorder) == 21


def test_killed_process_loses_nothing(session: Session) -> None:
    """A process killed by SIGKILL right after a record has not lost it."""
    recorder, folder = session
    process = multiprocessing.get_context("fork").Process(target=_kill_after, args=(1,))
    process.start()
    process.join()
    collect_operations(folder, recorder)
    assert process.exitcode == -signal.SIGKILL
    assert _count(recorder) == 1


def test_grandchildren(session: Session) -> None:
    """A child of a worker reports for itself; the worker's own records count once."""
    recorder, folder = session
    child = os.fork()
    if child == 0:
        _work(1)
        grandchild = os.fork()
        _work(2)
        if grandchild:
            os.waitpid(grandchild, 0)
        os._exit(0)
    os.waitpid(child, 0)
    collect_operations(folder, recorder)
    assert _count(recorder) == 3


def test_command_below_the_session(session: Session, tmp_path: Path) -> None:
    """A program that the job starts finds the session by itself, at the first timer."""
    recorder, folder = session
    script = tmp_path / "program.py"
    script.write_text(
        textwrap.dedent(
            """
            import os
            import mlflow_perf

            @mlflow_perf.time("f")
            def f(): pass

            f(); f()
            os._exit(3)
            """
        )
    )
    assert subprocess.run([sys.executable, str(script)], check=False).returncode == 3
    collect_operations(folder, recorder)
    assert _count(recorder, "f") == 2


def test_process_that_records_nothing_writes_nothing(session: Session) -> None:
    """A child without a record leaves no file."""
    _, folder = session
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    assert list(folder.iterdir()) == []


def test_forking_while_other_threads_record(session: Session) -> None:
    """A child forked while a thread holds the recorder's lock does not hang, and counts once."""
    recorder, folder = session
    stop = threading.Event()

    def busy() -> None:
        while not stop.is_set():
            recorder.add_time("busy", None, 1.0)

    threads = [threading.Thread(target=busy) for _ in range(3)]
    for thread in threads:
        thread.start()
    for _ in range(15):
        child = os.fork()
        if child == 0:
            _work(1)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        assert status == 0
    stop.set()
    for thread in threads:
        thread.join()
    busy_here = _count(recorder, "busy")
    collect_operations(folder, recorder)
    assert _count(recorder) == 15
    assert _count(recorder, "busy") == busy_here


def test_own_file_is_not_counted_again(tmp_path: Path) -> None:
    """A recorder that writes to the spool does not collect its own file; another one does."""
    folder = spool.create(tmp_path)
    recorder = OperationMetrics()
    recorder.add_time("work", None, 1.0)
    current.activate(recorder, folder=folder, spooled=True)
    _work(1)
    current.deactivate()
    collect_operations(folder, recorder)
    assert _count(recorder) == 2
    assert _count(_collect(folder)) == 2


class TestSession:
    """A session begins and ends, and the one above it continues."""

    def test_environment_is_restored(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Deactivate puts back the folder of a session above this process."""
        monkeypatch.setenv(spool.VARIABLE, "/above")
        current.activate(OperationMetrics(), folder=tmp_path)
        assert os.environ[spool.VARIABLE] == str(tmp_path)
        current.deactivate()
        assert os.environ[spool.VARIABLE] == "/above"
        current.deactivate()
        assert current.recorder() is None

    def test_without_a_spool_children_record_nothing(self) -> None:
        """When a session has no spool folder, a forked child is outside any session."""
        current.activate(OperationMetrics(), folder=None)
        child = os.fork()
        if child == 0:
            os._exit(0 if current.recorder() is None else 1)
        _, status = os.waitpid(child, 0)
        current.deactivate()
        assert os.waitstatus_to_exitcode(status) == 0


def test_without_a_session_statistics_are_just_statistics() -> None:
    """Record works without a session, and nothing is kept of it."""
    stats = current.record_transfers("nixl")
    stats.record_failed_transfer()
    assert not stats.is_empty()
    assert current.process.transfers == {}


def test_resetting_takes_nothing_from_the_session(session: Session) -> None:
    """Statistics can be handed over and emptied, as a connector does: the session's sums stay."""
    stats = current.record_transfers("nixl")
    for _ in range(3):
        stats.record_transfer(TELEMETRY)
        stats.clone_and_reset()
    current.record_transfers("nixl").record_failed_transfer()
    assert _sums(session) == (3, 1)


def test_aggregating_counts_once(session: Session) -> None:
    """Aggregated statistics count for the session, unless their records have counted already."""
    foreign = NixlKVConnectorStats()
    foreign.record_failed_transfer()
    known = current.record_transfers("nixl")
    known.record_failed_transfer()
    current.record_transfers("nixl").aggregate(foreign).aggregate(known)
    assert _sums(session) == (0, 2)


@pytest.mark.parametrize("method", ["fork", "spawn"])
@pytest.mark.parametrize("kill", [False, True])
def test_all_processes_arrive(session: Session, method: str, kill: bool) -> None:
    """What children recorded arrives once, killed right after it or not; the parent's stays."""
    _transfer()
    context: Any = multiprocessing.get_context(method)
    children = [context.Process(target=_transfer, args=(kill,)) for _ in range(2)]
    for child in children:
        child.start()
    for child in children:
        child.join()
    assert _sums(session) == _sums(session) == (9, 3)


def test_statistics_made_before_a_fork_go_on_in_the_child(session: Session) -> None:
    """Statistics that a child inherits count for the child from the fork on."""
    stats = current.record_transfers("nixl")
    stats.record_failed_transfer()
    child = os.fork()
    if child == 0:
        stats.record_failed_transfer()
        os._exit(0)
    os.waitpid(child, 0)
    stats.record_failed_transfer()
    assert _sums(session) == (0, 3)


def test_own_transfers_in_a_file_are_not_counted_again(session: Session) -> None:
    """A process that writes to the folder does not count its own file twice; another one does."""
    recorder, folder = session
    current.activate(recorder, folder=folder, spooled=True)
    _transfer()
    assert _sums(session) == (3, 1)
    current.activate(recorder, folder=folder)
    assert _sums(session) == (3, 1)


def test_deactivate_returns_the_recorders_of_the_session(tmp_path: Path) -> None:
    """They can still be collected; without a session there are none, and nothing changes."""
    recorder = OperationMetrics()
    current.activate(recorder, folder=tmp_path, spooled=True)
    _transfer()
    ended = current.deactivate()
    assert ended.operations is recorder
    assert collect_transfers(tmp_path, ended.transfers)["nixl"].num_successful_transfers == 3
    assert current.deactivate().operations is None
