"""Threads of mlflow-perf take nothing from the job: not its signals, not its coroutines."""

from __future__ import annotations

import ctypes
import importlib.util
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import FrameType
from unittest import mock

import pytest
from tests.alone import alone
from tests.interrupted import check_each_line

from mlflow_perf.core import threads
from mlflow_perf.core.thread_list import list_threads, own_idents
from mlflow_perf.core.threads import (
    KERNEL_NAME,
    Event,
    Lock,
    Thread,
    call_later,
    get_ident,
    is_own_thread,
)


def test_a_thread_leaves_every_signal_to_the_job() -> None:
    """It blocks all signals but the faults of its own code, and the starter's mask is unchanged."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    masks: list[set[signal.Signals]] = []
    thread = Thread(
        lambda: masks.append(signal.pthread_sigmask(signal.SIG_BLOCK, [])),  # type: ignore[arg-type]
        name="deaf",
    )
    thread.start()
    thread.join(30)
    assert {signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGRTMIN} <= masks[0]
    assert signal.SIGSEGV not in masks[0]
    assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == before
    assert thread.daemon
    assert not thread.is_alive()


@alone
def test_an_alarm_in_the_start_of_a_thread_leaves_no_signal_blocked() -> None:
    """Wherever the job's handler raises, the starter has its mask again, and the thread ends."""
    threads: list[Thread] = []

    def act() -> None:
        threads.append(Thread(lambda: None, name="mlflow-perf-short"))
        threads[-1].start()

    assert check_each_line(act, lambda: threads[-1].join(30) if threads else None) > 20


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux says how large a stack is")
def test_a_thread_has_a_usual_stack_beside_small_ones() -> None:
    """The job's choice for its own threads, too small for MLflow, is kept and is not ours."""
    sizes: list[int] = []

    def read_size() -> None:
        libc, attributes = ctypes.CDLL(None), ctypes.create_string_buffer(256)
        libc.pthread_self.restype = ctypes.c_void_p
        libc.pthread_getattr_np(ctypes.c_void_p(libc.pthread_self()), attributes)
        size = ctypes.c_size_t()
        libc.pthread_attr_getstacksize(attributes, ctypes.byref(size))
        sizes.append(size.value)

    before = threading.stack_size(64 << 10)
    try:
        for thread in (Thread(read_size, name="large"), threading.Thread(target=read_size)):
            thread.start()
            thread.join(30)
    finally:
        assert threading.stack_size(before) == 64 << 10
    assert sizes[0] >= 1 << 20 > sizes[1]


@pytest.mark.parametrize("size", [0, 64 << 20])
def test_a_large_stack_of_the_jobs_threads_stays(size: int) -> None:
    """A deep recursion needs it, and Python's question for the size sets it to the default."""
    before = threading.stack_size(size)
    try:
        thread = Thread(lambda: None, name="any")
        thread.start()
        thread.join(30)
    finally:
        assert threading.stack_size(before) == size


def test_an_event_wakes_all_who_wait() -> None:
    """Each waiting thread goes on when it is set; who comes later does not wait."""
    event, woken = Event(), []
    threads = [
        threading.Thread(target=lambda: woken.append(event.wait(30)), daemon=True) for _ in range(5)
    ]
    for thread in threads:
        thread.start()
    event.set()
    for thread in threads:
        thread.join(30)
    assert woken == [True] * 5
    assert event.wait(0)


def test_an_event_that_nobody_sets() -> None:
    """Waiting ends after its time, and leaves nothing behind."""
    event = Event()
    assert not event.wait(0.001)
    assert not event.wait(0)
    event.set()
    event.clear()
    assert not event.is_set()


class _Gate:
    """A lock that nobody releases, and that tells how long each waits for it."""

    def __init__(self, waits: list[float]) -> None:
        self._waits = waits

    def acquire(self, timeout: float = -1) -> bool:
        """Wait in vain; the first call only closes the lock."""
        if timeout >= 0:
            self._waits.append(timeout)
            time.sleep(timeout)
        return timeout < 0


def test_the_jobs_thread_waits_in_short_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python handles a signal that comes just before a wait only when that wait ends."""
    waits: list[float] = []
    monkeypatch.setattr(threads, "_SLICE_SEC", 0.01)
    monkeypatch.setattr(threads, "Lock", lambda: _Gate(waits))
    assert not Event().wait(0.05)
    assert max(waits) <= 0.01
    waits.clear()
    monkeypatch.setitem(own_idents, threads.get_ident(), os.getpid())
    assert not Event().wait(0.05)
    assert max(waits) > 0.01


def test_a_lock_is_the_interpreters_own() -> None:
    """It excludes, and can be waited for with a limit."""
    lock = Lock()
    assert lock.acquire(blocking=False)
    assert not lock.acquire(timeout=0.001)
    lock.release()


_PATCHED = """
import warnings
warnings.simplefilter("ignore")
{patch}
import os, threading, time
from mlflow_perf.core.threads import Event, Thread
began, ended = Event(), Event()
def work():
    began.set()
    ended.wait(60)
thread = Thread(work, name="native")
thread.start()
# No coroutine gets to run while the main one blocks without yielding.
import posix
until = time.monotonic() + 30
while not began.is_set() and time.monotonic() < until:
    pass
assert began.is_set() and thread.is_alive()
ended.set()
thread.join(30)
assert not thread.is_alive()
print("native")
"""


@pytest.mark.parametrize(
    ("package", "patch"),
    [
        ("gevent", "from gevent import monkey; monkey.patch_all()"),
        ("eventlet", "import eventlet; eventlet.monkey_patch()"),
    ],
)
def test_a_thread_is_no_coroutine(package: str, patch: str) -> None:
    """Where a library has replaced Python's threads, ours still runs beside a busy main thread."""
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"needs {package}")
    code = _PATCHED.format(patch=patch)
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=200, check=False
    )
    assert done.stdout == "native\n", done.stderr


_LOOP = """
from gevent import monkey; monkey.patch_all()
import os, time
from mlflow_perf.core.temporary import temporary_folder
from mlflow_perf.core.threads import Thread

def work():
    time.sleep(0.001)  # gevent makes a loop for this thread
    with temporary_folder() as folder:
        (folder / "inside").mkdir()
    inside.append(count())
    os.close(os.open(".", os.O_RDONLY))

def count():
    return len(os.listdir("/proc/self/fd"))

inside, after = [], [count()]
for _ in range(3):
    thread = Thread(work, name="loop")
    thread.start()
    thread.join(30)
    after.append(count())
print(len(set(after)), inside[0] - after[0] <= 2)
"""


def test_a_thread_leaves_no_descriptor_of_an_event_loop() -> None:
    """A thread that calls what gevent has replaced gets one, which gevent never closes."""
    pytest.importorskip("gevent")
    done = subprocess.run(
        [sys.executable, "-c", _LOOP], capture_output=True, text=True, timeout=200, check=False
    )
    assert done.stdout == "1 True\n", done.stderr


def test_a_forked_child_has_no_thread_of_its_parent() -> None:
    """There the thread is not alive, and joining it does not wait."""
    over = Event()
    thread = Thread(lambda: over.wait(60), name="parents")
    thread.start()
    pid = os.fork()
    if pid == 0:
        os._exit(1 if thread.is_alive() else 0)
    _, status = os.waitpid(pid, 0)
    over.set()
    thread.join(30)
    assert status == 0


@pytest.mark.skipif(sys.platform != "linux", reason="needs procfs")
def test_the_kernel_knows_our_threads_by_name() -> None:
    """The sampler of another process can distinguish our threads from the job's."""
    running, done = threading.Event(), threading.Event()

    def work() -> None:
        running.set()
        done.wait(60)

    thread = Thread(work, name="named")
    thread.start()
    assert running.wait(60)
    name = Path(f"/proc/self/task/{thread.native_id}/comm").read_bytes().strip()
    done.set()
    thread.join(60)
    assert name == KERNEL_NAME


class _Stillborn(Thread):
    def _bootstrap(self) -> None:
        """End as a thread does that gets no memory for its first step."""


def test_a_thread_that_dies_before_it_begins_holds_nobody_up() -> None:
    """Starting it raises as if there were no room for one more, instead of waiting for ever."""
    thread = _Stillborn(lambda: None, name="stillborn")
    with pytest.raises(RuntimeError, match="can't start new thread"):
        thread.start()
    assert thread not in list_threads()


def test_an_error_in_a_thread_is_a_warning(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job's `threading.excepthook`, which may end the process, is not called."""
    called: list[object] = []
    monkeypatch.setattr(threading, "excepthook", called.append)
    thread = Thread(lambda: 1 / 0, name="faulty")
    thread.start()
    thread.join(30)
    assert not called
    assert "The thread faulty has ended: ZeroDivisionError" in caplog.text


def test_the_jobs_tracer_does_not_see_our_work() -> None:
    """It may count calls, and slows the import of MLflow down tenfold."""
    seen: set[str] = set()

    def trace(frame: FrameType, *_: object) -> None:
        seen.add(frame.f_code.co_name)

    def work() -> None:
        def inner() -> None:
            pass

        inner()

    threading.settrace(trace)
    threading.setprofile(trace)
    try:
        (of_job := threading.Thread(target=work)).start()
        of_job.join()
        assert "inner" in seen
        seen.clear()
        (thread := Thread(work, name="test")).start()
        thread.join()
        assert seen.isdisjoint({"work", "inner"})
    finally:
        threading.settrace(None)
        threading.setprofile(None)


def test_a_late_call_is_in_a_thread_of_ours_that_has_no_stack_before() -> None:
    """The job sees neither the thread that waits nor the one that works, and keeps its signals."""
    mask: set[signal.Signals] = signal.pthread_sigmask(signal.SIG_BLOCK, [])  # type: ignore[assignment]
    seen: list[tuple[bool, int]] = []
    done = Event()

    def work() -> None:
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, [])
        seen.append((is_own_thread(get_ident()), len(blocked)))
        done.set()

    frames = len(sys._current_frames())
    call_later(work, 0.2)
    assert len(sys._current_frames()) == frames
    assert not seen
    assert done.wait(60)
    assert seen[0][0]
    assert seen[0][1] > 20
    assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == mask


KEEPS_ACCOUNT = """
import threading
started = []
python_start = threading.Thread.start

class Tracked(threading.Thread):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        started.append(self)

def start(thread):
    started.append(thread)
    return python_start(thread)

def replace():
    if how == "class":
        threading.Thread = Tracked
    else:
        threading.Thread.start = start
"""


@pytest.mark.parametrize("how", ["class", "start"])
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_job_that_waits_for_all_that_it_started_does_not_wait_for_ours(
    how: str, when: str
) -> None:
    """It puts something of its own in the place of Python's that notes each thread."""
    replace = "replace()\n"
    code = f"how = {how!r}\n{KEEPS_ACCOUNT}" + replace * (when == "before")
    code += "from mlflow_perf.core.threads import Event, Thread\n" + replace * (when == "after")
    code += (
        "goes_on, is_done = Event(), Event()\n"
        "def work():\n    is_done.set()\n    goes_on.wait(60)\n"
        "ours = Thread(work, name='ours'); ours.start(); assert is_done.wait(60)\n"
        "threading.Thread(target=int).start()\n"
        "for one in started: one.join()\n"
        "print(len(started), threading.active_count(), ours.is_alive())\n"
        "goes_on.set(); ours.join(60); print(ours.is_alive())\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=100, check=False
    )
    assert ran.stdout == "1 1 True\nFalse\n", ran.stderr


@pytest.mark.parametrize(
    "name",
    ["threading.Thread", "threading.Thread.start", "_thread.start_new_thread"],
)
def test_a_mock_takes_no_thread_of_ours(name: str) -> None:
    with mock.patch(name) as replaced:
        thread = Thread((done := Event()).set, name="test")
        thread.start()
        assert done.wait(60)
        thread.join(60)
        call_later((later := Event()).set, 0.0)
        assert later.wait(60)
        assert not replaced.mock_calls
