"""Rules of the spool: what any process recorded arrives once, whatever becomes of the process."""

from __future__ import annotations

import json
import logging
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlflow_perf import OperationMetrics
from mlflow_perf.recorders import spool
from mlflow_perf.recorders.operations import current as context
from mlflow_perf.recorders.operations.operation_spool import OperationSpool, drain

record = st.tuples(
    st.sampled_from(["time", "count", "big", "float", "attribute"]),
    st.sampled_from(["a", "b.c"]),
    st.sampled_from([None, "k", ("k", 1)]),
    st.integers(min_value=0, max_value=1000),
)


@pytest.fixture
def session(tmp_path: Path) -> Iterator[tuple[OperationMetrics, Path]]:
    """A session that is on: its recorder and its spool folder."""
    # One that an earlier test has started has that test's environment.
    forkserver._forkserver._stop()  # type: ignore[attr-defined] # there is no public way
    folder = spool.create(tmp_path)
    recorder = OperationMetrics()
    context.activate(recorder, spool=folder)
    yield recorder, folder
    context.deactivate()


def _work(number: int) -> int:
    """Record one operation in whatever process this is."""
    with context.time("work", number):
        pass
    current = context.recorder()
    assert current is not None
    current.add_counter("done", None, 1)
    return os.getpid()


def _kill_after(number: int) -> None:
    _work(number)
    os.kill(os.getpid(), signal.SIGKILL)


def _drained(folder: Path) -> OperationMetrics:
    recorder = OperationMetrics()
    drain(folder, recorder)
    return recorder


def _count(recorder: OperationMetrics, name: str = "work") -> int:
    times = recorder.aggregate_times()
    return times[name].count if name in times else 0


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_pool_that_is_terminated(session: Any, method: str) -> None:
    """What a multiprocessing pool recorded arrives, though leaving its block kills the workers."""
    recorder, folder = session
    with multiprocessing.get_context(method).Pool(2) as pool:
        processes = set(pool.map(_work, range(20), chunksize=1))
    drain(folder, recorder)
    assert os.getpid() not in processes
    assert _count(recorder) == 20
    assert recorder.aggregate_counters() == {"done": 20}
    assert recorder.get_metrics(7) is not None


def test_executor(session: Any) -> None:
    """What a process pool executor recorded arrives, and what the session itself did stays."""
    recorder, folder = session
    _work(100)
    with ProcessPoolExecutor(2) as executor:
        list(executor.map(_work, range(20)))
    drain(folder, recorder)
    assert _count(recorder) == 21


def test_killed_process_loses_nothing(session: Any) -> None:
    """A process killed by SIGKILL right after a record has not lost it."""
    recorder, folder = session
    process = multiprocessing.get_context("fork").Process(target=_kill_after, args=(1,))
    process.start()
    process.join()
    drain(folder, recorder)
    assert process.exitcode == -signal.SIGKILL
    assert _count(recorder) == 1


def test_grandchildren(session: Any) -> None:
    """A child of a worker reports for itself; the worker's own records are not told twice."""
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
    drain(folder, recorder)
    assert _count(recorder) == 3


def test_command_below_the_session(session: Any, tmp_path: Path) -> None:
    """A program that the job starts finds the session by itself, at the first timer."""
    recorder, folder = session
    script = tmp_path / "program.py"
    script.write_text(
        textwrap.dedent(
            """
            import os
            from mlflow_perf.recorders.operations import current as context

            @context.time("f")
            def f(): pass

            f(); f()
            os._exit(3)
            """
        )
    )
    assert subprocess.run([sys.executable, str(script)], check=False).returncode == 3
    drain(folder, recorder)
    assert _count(recorder, "f") == 2


def test_process_that_records_nothing_writes_nothing(session: Any) -> None:
    """A child without a record leaves no file."""
    _, folder = session
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    assert list(folder.iterdir()) == []


def test_draining_twice_changes_nothing(session: Any) -> None:
    """Drain counts each process once, however often it is called; merging keeps that in mind."""
    recorder, folder = session
    with ProcessPoolExecutor(1) as executor:
        list(executor.map(_work, range(5)))
    drain(folder, recorder)
    drain(folder, recorder)
    whole = OperationMetrics()
    whole.merge(recorder)
    drain(folder, whole)
    assert _count(recorder) == _count(whole) == 5


def test_threads_of_a_worker(tmp_path: Path) -> None:
    """What several threads of one worker record is in its file, each record once."""
    folder = spool.create(tmp_path)
    recorder = OperationMetrics()
    recorder.attach(OperationSpool(folder, recorder))

    def work(number: int) -> None:
        for _ in range(3000):
            recorder.add_time("work", number % 2, 1.0)
            recorder.add_counter("done", None, 1)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    drained = _drained(folder)
    recorder.attach(None)
    assert _count(drained) == 12_000
    assert drained.aggregate_counters() == {"done": 12_000}


def test_forking_while_other_threads_record(session: Any) -> None:
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
    drain(folder, recorder)
    assert _count(recorder) == 15
    assert _count(recorder, "busy") == busy_here


def test_file_grows_with_what_is_recorded(tmp_path: Path) -> None:
    """A process that records little takes little room; one that records much has few files made."""
    sizes = []
    for count in (1, 100_000):
        folder = spool.create(tmp_path)
        recorder = OperationMetrics()
        recorder.attach(OperationSpool(folder, recorder))
        for _ in range(count):
            recorder.add_time("work", None, 1.0)
        (file,) = folder.iterdir()
        sizes.append(file.stat().st_size)
        assert _count(_drained(folder)) == count
        recorder.attach(None)
    assert sizes[0] < 10_000
    assert sizes[1] < 600_000


def test_own_file_is_not_counted_again(tmp_path: Path) -> None:
    """A recorder that writes to the spool itself does not drain its own file; another one does."""
    folder = spool.create(tmp_path)
    recorder = OperationMetrics()
    recorder.add_time("work", None, 1.0)
    context.activate(recorder, spool=folder, spooled=True)
    _work(1)
    context.deactivate()
    drain(folder, recorder)
    assert _count(recorder) == 2
    assert _count(_drained(folder)) == 2


@settings(deadline=None)
@given(st.lists(record, max_size=20), st.integers(min_value=1, max_value=60))
def test_replay_gives_what_was_recorded(made: list[Any], copies: int) -> None:
    """At any instant the file gives exactly what its process recorded, through new files too."""
    with tempfile.TemporaryDirectory() as name, pytest.MonkeyPatch.context() as patch:
        patch.setattr(spool, "_FIRST_ROOM", 480)
        patch.setattr(spool, "_ROOM", 480)
        patch.setattr(spool, "_ROOM_PER_SNAPSHOT", 0)
        recorder = OperationMetrics()
        journal = OperationSpool(Path(name), recorder)
        recorder.attach(journal)
        for kind, operation, key, value in made * copies:
            if kind == "time":
                recorder.add_time(operation, key, float(value))
            elif kind == "attribute":
                recorder.add_attribute(operation, key, {"value": value})
            else:
                amount: float = {"count": value, "big": 10**20, "float": value / 2}[kind]
                recorder.add_counter(operation, key, amount)
        again = _drained(Path(name))
        recorder.attach(None)
        assert again.as_dict(max_keys=None) == recorder.as_dict(max_keys=None)


def test_file_that_goes_on_is_whole(session: Any) -> None:
    """Reading while the writer is still at work gives what it has written so far."""
    _, folder = session
    other = OperationMetrics()
    journal = OperationSpool(folder, other)
    other.attach(journal)
    for number in range(40_000):
        other.add_time("work", None, 1.0)
        if number % 10_000 == 0:
            assert _count(_drained(folder)) == number + 1
    assert _count(_drained(folder)) == 40_000
    other.attach(None)


class TestDamage:
    """What lies in the folder is not trusted."""

    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        """A spool folder with one good file of two records."""
        folder = spool.create(tmp_path)
        recorder = OperationMetrics()
        recorder.attach(OperationSpool(folder, recorder))
        recorder.add_time("work", None, 1.0)
        recorder.add_time("work", None, 1.0)
        recorder.attach(None)
        return folder

    @pytest.mark.parametrize(
        "content",
        [b"", b"MLPERF1\n", b"x" * 100, b"MLPERF1\n" + b"\xff" * 100,
         b"MLPERF1\n" + (2).to_bytes(8, "little") + b"[]      ",
         b"MLPERF1\n" + (4).to_bytes(8, "little") + b"nope    "],
    )  # fmt: skip
    def test_damaged_file(
        self, folder: Path, content: bytes, caplog: pytest.LogCaptureFixture
    ) -> None:
        """A damaged file is left out with one warning; the others count."""
        (folder / "ops-1-bad.spool").write_bytes(content)
        (folder / "ops-2-bad.spool").write_bytes(content)
        with caplog.at_level(logging.WARNING):
            assert _count(_drained(folder)) == 2
        assert len(caplog.records) == 1

    def test_snapshot_that_is_not_ours(
        self, folder: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        """A snapshot with wrong content is left out with a warning."""
        text = json.dumps({"times": {"work": {"count": -1}}}).encode()
        head = b"MLPERF1\n" + len(text).to_bytes(8, "little")
        (folder / "ops-1-bad.spool").write_bytes(head + text)
        with caplog.at_level(logging.WARNING):
            assert _count(_drained(folder)) == 2
        assert "cannot be read" in caplog.text

    def test_any_cut(self, folder: Path) -> None:
        """A file cut anywhere gives a part of its records or is left out; it never raises."""
        (path,) = folder.iterdir()
        content = path.read_bytes()
        for length in range(0, 300, 7):
            path.write_bytes(content[:length])
            assert _count(_drained(folder)) <= 2

    def test_links_and_pipes(self, folder: Path, tmp_path: Path) -> None:
        """A link is not followed, a pipe not waited for, a folder not entered."""
        (good,) = folder.iterdir()
        outside = tmp_path / "outside.spool"
        outside.write_bytes(good.read_bytes())
        (folder / "ops-1-link.spool").symlink_to(outside)
        os.mkfifo(folder / "ops-2-pipe.spool")
        (folder / "ops-3-folder.spool").mkdir()
        assert _count(_drained(folder)) == 2

    def test_half_made_file_is_left_out(self, folder: Path) -> None:
        """A file that a killed process had only begun is not read."""
        (good,) = folder.iterdir()
        (folder / f".{good.name}").write_bytes(good.read_bytes())
        assert _count(_drained(folder)) == 2

    def test_folder_that_is_gone(self, tmp_path: Path) -> None:
        """Draining a folder that is not there adds nothing and raises nothing."""
        assert _drained(tmp_path / "none").is_empty()

    def test_remove_leaves_what_is_not_ours(self, folder: Path) -> None:
        """Remove deletes the spool files and keeps whatever else lies there."""
        (folder / "notes.txt").write_text("mine")
        spool.remove(folder)
        assert [path.name for path in folder.iterdir()] == ["notes.txt"]


class TestFaults:
    """A fault of the spool never reaches who records."""

    def test_folder_that_cannot_be_written(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        """Without room or right to write, there is one warning and recording goes on in memory."""
        blocked = tmp_path / "file"
        blocked.write_text("not a folder")
        recorder = OperationMetrics()
        recorder.attach(OperationSpool(blocked, recorder))
        with caplog.at_level(logging.WARNING):
            for _ in range(3):
                recorder.add_time("work", None, 1.0)
        assert len(caplog.records) == 1
        assert _count(recorder) == 3

    def test_disk_that_fills_up(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        """When no new file can be made, what was written stays and one warning tells the rest."""

        def full(*args: int) -> None:
            raise OSError(28, "No space left on device")

        folder = spool.create(tmp_path)
        recorder = OperationMetrics()
        recorder.attach(OperationSpool(folder, recorder))
        recorder.add_time("work", None, 1.0)
        monkeypatch.setattr(os, "posix_fallocate", full)
        with caplog.at_level(logging.WARNING):
            for _ in range(20_000):
                recorder.add_time("work", None, 1.0)
        assert len(caplog.records) == 1
        assert _count(recorder) == 20_001
        assert 300 < _count(_drained(folder)) < 20_001
        assert len(list(folder.iterdir())) == 1

    def test_folder_removed_by_the_session(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        """A worker that outlives the session records on without a word."""
        folder = spool.create(tmp_path)
        recorder = OperationMetrics()
        recorder.attach(OperationSpool(folder, recorder))
        recorder.add_time("work", None, 1.0)
        spool.remove(folder)
        with caplog.at_level(logging.WARNING):
            for _ in range(20_000):
                recorder.add_time("work", None, 1.0)
        assert caplog.records == []


class TestContext:
    """What belongs to which session."""

    def test_environment_is_restored(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Deactivate puts back the folder of a session above this process."""
        monkeypatch.setenv(spool.VARIABLE, "/above")
        context.activate(OperationMetrics(), spool=tmp_path)
        assert os.environ[spool.VARIABLE] == str(tmp_path)
        context.deactivate()
        assert os.environ[spool.VARIABLE] == "/above"
        context.deactivate()
        assert context.recorder() is None

    def test_without_a_spool_children_record_nothing(self) -> None:
        """When a session has no spool folder, a forked child is outside any session."""
        context.activate(OperationMetrics(), spool=None)
        child = os.fork()
        if child == 0:
            os._exit(0 if context.recorder() is None else 1)
        _, status = os.waitpid(child, 0)
        context.deactivate()
        assert os.waitstatus_to_exitcode(status) == 0


def test_folders_take_the_names_of_earlier_ones(tmp_path: Path) -> None:
    """Session after session uses few names, never one that is still in use."""
    names = set()
    for _ in range(100):
        folder = spool.create(tmp_path)
        names.add(folder.name)
        spool.remove(folder)
    assert len(names) <= 32
    kept = [spool.create(tmp_path) for _ in range(40)]
    assert len(set(kept)) == 40
    assert all(folder.stat().st_mode & 0o777 == 0o700 for folder in kept)
