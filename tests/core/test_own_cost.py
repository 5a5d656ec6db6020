"""What mlflow-perf itself costs: its threads' CPU time, and the memory that it brings."""

from __future__ import annotations

import importlib
import mmap
import operator
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.alone import alone

from mlflow_perf.core import own_cost
from mlflow_perf.core.own_cost import (
    as_own,
    bring,
    brought_bytes,
    brought_thread_ids,
    forked_bytes,
    is_brought,
    own_cpu_sec,
    own_moved,
    working_thread_ids,
)


def burn(seconds: float) -> None:
    """Use CPU time in this thread."""
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass


def test_only_work_inside_counts_and_nesting_counts_once() -> None:
    """What the thread did before and after is not ours."""
    before = own_cpu_sec()
    burn(0.02)
    with as_own(), as_own():
        burn(0.03)
    burn(0.02)
    assert own_cpu_sec() - before == pytest.approx(0.03, abs=0.01)
    assert threading.get_native_id() not in working_thread_ids()


def test_what_our_threads_read_and_write_is_ours_while_they_work_and_after(tmp_path: Path) -> None:
    """Also of several at once; what the job's threads move meanwhile is not."""
    piece = bytes(1 << 20)

    def move(name: str, times: int) -> None:
        with (tmp_path / name).open("wb", buffering=0) as file:
            for _ in range(times):
                file.write(piece)
            os.fsync(file.fileno())

    moved, go = [threading.Event() for _ in range(2)], threading.Event()

    @as_own()
    def work(number: int) -> None:
        move(f"ours{number}", 2)
        moved[number].set()
        go.wait(60)

    first = own_moved()
    threads = [threading.Thread(target=work, args=(number,)) for number in range(2)]
    for number, one in enumerate(threads):
        one.start()
        assert moved[number].wait(60)
    move("theirs", 50)
    for is_over in (False, True):
        if is_over:
            go.set()
            for one in threads:
                one.join()
        _, called, _, calls, _, written = map(operator.sub, own_moved(), first)
        assert 4 <= calls <= 20
        assert called >> 20 == 4
        assert not written or written >> 20 == 4  # a file in memory goes to no disk


def test_a_thread_that_still_works_counts_up_to_now() -> None:
    """A thread's CPU time is known while it runs, and kept when it has ended."""
    burned, seen = threading.Event(), threading.Event()

    @as_own()
    def work() -> None:
        burn(0.03)
        burned.set()
        seen.wait(60)

    before = own_cpu_sec()
    thread = threading.Thread(target=work)
    thread.start()
    assert burned.wait(60)
    assert thread.native_id in working_thread_ids()
    assert 0.03 <= own_cpu_sec() - before < 0.06
    seen.set()
    thread.join()
    assert thread.native_id not in working_thread_ids()
    assert 0.03 <= own_cpu_sec() - before < 0.06


@pytest.mark.parametrize("shift", [400 * 86_400.0, -86_400.0])
def test_clocks_of_threads_that_a_library_shifts_are_put_right(
    shift: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A library (libfaketime) shifts the clocks of threads by id, not a thread's own.

    Otherwise our part of the work is nothing, and the memory that we bring is the job's.
    """
    real = time.clock_gettime
    shifted = SimpleNamespace(
        thread_time=time.thread_time, clock_gettime=lambda clock: real(clock) + shift
    )
    monkeypatch.setattr(own_cost, "time", shifted)
    before = own_cpu_sec()
    with as_own():
        burn(0.03)
        assert own_cpu_sec() - before == pytest.approx(0.03, abs=0.01)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_begins_with_none() -> None:
    """The parent's threads and their account are not the child's."""
    with as_own():
        pid = os.fork()
        if pid == 0:
            os._exit(0 if not working_thread_ids() and own_cpu_sec() == 0.0 else 1)
    assert os.waitpid(pid, 0)[1] == 0


_FORKS = """
import gc, os, sys
from mlflow_perf.core import own_cost
if {brings}:
    with own_cost.bring():
        own_cost.brought = [[number] for number in range(500_000)]
if {freezes}:
    gc.freeze()
before = gc.get_freeze_count()

class Held:
    def __init__(self):
        self.itself, self.file = self, open("text", "w")

held = Held()
gc.collect()
if os.fork() == 0:
    held.file.write("whole")
    assert (gc.get_freeze_count() > before) is {frozen}
    sys.exit(3)  # without a collection, the text would stay in the file's buffer
code = os.waitstatus_to_exitcode(os.wait()[1])
assert gc.get_freeze_count() == before
held.file.detach()
sys.exit(code)
"""


@alone
def test_a_fork_gets_what_was_brought_whatever_the_job_maps() -> None:
    """The job's shared memory and files are no part of it."""
    with mmap.mmap(-1, 200 * 2**20) as shared:
        for page in range(0, len(shared), mmap.PAGESIZE):
            shared[page] = 1
        before = forked_bytes()
        with bring():
            added = bytearray(b"1") * (60 * 2**20)
        assert (forked_bytes() - before) / 2**20 == pytest.approx(60, abs=5)
        del added


@pytest.mark.parametrize(
    ("brings", "freezes", "frozen"),
    [(True, False, True), (True, True, False), (False, False, False)],
)
def test_a_forked_child_does_not_copy_what_was_brought(
    brings: bool, freezes: bool, frozen: bool, tmp_path: Path
) -> None:
    """A collection there would write to its pages; at the child's end all is collected."""
    code = _FORKS.format(brings=brings, freezes=freezes, frozen=frozen)
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=False)
    assert done.returncode == 3
    if not freezes:
        assert (tmp_path / "text").read_text(encoding="utf-8") == "whole"


@alone
def test_memory_that_was_added_inside_is_brought_once() -> None:
    """What was added around and between is the job's; a nested one adds nothing of its own."""
    before = brought_bytes()
    jobs = bytearray(b"x") * (20 << 20)
    with bring(), bring():
        ours = bytearray(b"x") * (30 << 20)
    more = bytearray(b"x") * (20 << 20)
    assert (brought_bytes() - before) / 2**20 == pytest.approx(30, abs=3)
    del jobs, ours, more


@alone
def test_memory_of_a_job_that_works_meanwhile_is_the_jobs() -> None:
    """While a thread of ours waits, what the job adds is not ours."""
    began, done = threading.Event(), threading.Event()

    @bring()
    def wait() -> None:
        began.set()
        done.wait(60)

    before = brought_bytes()
    thread = threading.Thread(target=wait)
    thread.start()
    assert began.wait(60)
    jobs = bytearray(b"x") * (40 << 20)
    burn(0.05)
    done.set()
    thread.join()
    assert (brought_bytes() - before) / 2**20 < 8
    del jobs


@alone
def test_what_a_job_adds_after_our_import_is_the_jobs_though_a_server_keeps_us_waiting() -> None:
    """The CPU time of the import does not tell whose memory it is that was added later."""
    imported, done = threading.Event(), threading.Event()
    ours = []

    @bring()
    def import_and_wait() -> None:
        ours.append(bytearray(b"x") * (30 << 20))
        burn(0.5)
        imported.set()
        done.wait(60)

    before = brought_bytes()
    thread = threading.Thread(target=import_and_wait)
    thread.start()
    assert imported.wait(60)
    assert (brought_bytes() - before) / 2**20 == pytest.approx(30, abs=5)  # the first sample looks
    jobs = bytearray(b"x") * (100 << 20)
    burn(0.05)
    assert (brought_bytes() - before) / 2**20 == pytest.approx(30, abs=10)
    done.set()
    thread.join()
    assert (brought_bytes() - before) / 2**20 == pytest.approx(30, abs=10)
    del jobs


@alone
@pytest.mark.parametrize("ours_mb", [0, 40])
@pytest.mark.parametrize("jobs_mb", [80, -80])
def test_what_a_job_adds_or_gives_back_while_we_load_is_the_jobs(
    ours_mb: int, jobs_mb: int
) -> None:
    """Page faults tell, though both use as much CPU time, and however often it is looked."""
    jobs = [bytearray(b"x") * (80 << 20)] if jobs_mb < 0 else []
    before = brought_bytes()
    begun, done = threading.Event(), threading.Event()
    ours = []

    @bring()
    def load() -> None:
        begun.set()
        for _ in range(ours_mb):
            ours.append(bytearray(b"x") * (1 << 20))
            burn(0.002)
        done.wait(60)

    thread = threading.Thread(target=load)
    thread.start()
    assert begun.wait(60)
    if jobs_mb < 0:
        jobs.clear()
        brought_bytes()
    else:
        for _ in range(jobs_mb):
            jobs.append(bytearray(b"x") * (1 << 20))
            burn(0.002)
    done.set()
    thread.join()
    assert (brought_bytes() - before) / 2**20 == pytest.approx(ours_mb, abs=12)


@alone
def test_a_thread_of_a_library_that_was_loaded_for_us_is_ours(tmp_path: Path) -> None:
    """MLflow starts a thread for its telemetry; one that the job starts meanwhile is the job's."""
    done = threading.Event()
    (tmp_path / "lib_with_thread.py").write_text(
        "import threading\ndef begin(done):\n"
        "    thread = threading.Thread(target=wait, args=(done,), daemon=True)\n"
        "    thread.start()\n    return thread\ndef wait(done): done.wait(60)\n"
    )
    sys.path.insert(0, str(tmp_path))
    with bring():
        library = importlib.import_module("lib_with_thread")
        brought = library.begin(done)
        jobs = threading.Thread(target=done.wait, args=(60,), daemon=True)
        jobs.start()
    own = brought_thread_ids()
    done.set()
    assert (brought.native_id in own, jobs.native_id in own) == (True, False)
    assert (is_brought(brought), is_brought(jobs)) == (True, False)


@pytest.mark.parametrize("name", ["MLflowTelemetryConsumer-0", "GetTelemetryConfig", "my-thread"])
def test_a_thread_of_the_telemetry_is_ours_whenever_it_began(name: str) -> None:
    """MLflow starts some in threads of its own: a job of one thread had five."""
    done = threading.Event()
    thread = threading.Thread(target=done.wait, args=(60,), name=name, daemon=True)
    thread.start()
    own = brought_thread_ids()
    done.set()
    assert (thread.native_id in own) is is_brought(thread) is (name != "my-thread")


class _Green:
    name = "green"


def test_a_thread_without_a_number_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Eventlet puts the threads of its own copy of `threading` into Python's list."""
    monkeypatch.setitem(threading._active, -1, _Green())  # type: ignore[attr-defined]
    with bring():
        pass
    assert all(isinstance(one, int) for one in brought_thread_ids())
