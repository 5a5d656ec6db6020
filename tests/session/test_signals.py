"""The watch for ending signals: it hears each one, and what the job does with them is unchanged."""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.alone import alone
from tests.interrupted import check_each_line

from mlflow_perf.core.threads import Thread
from mlflow_perf.session import signals
from mlflow_perf.session.signals import SignalWatch


@pytest.fixture
def watch() -> Iterator[SignalWatch]:
    """Return a watch that is on."""
    watch = SignalWatch(lambda number: None, lambda number: None)
    watch.arm()
    yield watch
    watch.disarm()
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    assert signal.set_wakeup_fd(-1) == -1


def test_an_event_loop_and_the_watch_hear_the_same_signal(watch: SignalWatch) -> None:
    """An event loop's handler of SIGTERM runs, and the watch receives the signal too."""

    async def wait_for_it() -> str:
        heard = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, heard.set_result, "heard")
        os.kill(os.getpid(), signal.SIGTERM)
        return await asyncio.wait_for(heard, 30)

    assert asyncio.run(wait_for_it()) == "heard"
    watch.settle()
    assert signal.SIGTERM in watch.received


def test_an_event_loop_hears_a_second_signal_as_soon_as_the_first(
    watch: SignalWatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a second Ctrl-C that forces a server to end: nobody waits for what the first one did.

    Nor does a loop that a timer, or an old watcher of children, signals all the time.
    """
    monkeypatch.setattr(signals, "_PATIENCE_SEC", 600.0)
    monkeypatch.setattr(signals, "REST_SEC", 600.0)

    async def hear() -> int:
        loop, heard = asyncio.get_running_loop(), 0
        for number in (signal.SIGTERM, signal.SIGTERM, signal.SIGHUP, *[signal.SIGTERM] * 60):
            came = loop.create_future()
            loop.add_signal_handler(number, came.set_result, None)
            os.kill(os.getpid(), number)
            await asyncio.wait_for(came, 30)
            heard += 1
        return heard

    assert asyncio.run(hear()) == 63


def test_what_the_job_still_handles_after_a_while_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """So its figures are safe before somebody kills it."""
    monkeypatch.setattr(signals, "_PATIENCE_SEC", 0.01)
    told = threading.Event()
    watch = SignalWatch(lambda number: None, lambda number: told.set())
    earlier = signal.signal(signal.SIGTERM, lambda *_: None)
    try:
        watch.arm()
        os.kill(os.getpid(), signal.SIGTERM)
        assert told.wait(60)
    finally:
        watch.disarm()
        signal.signal(signal.SIGTERM, earlier)


def test_an_event_loop_hears_others_while_a_signal_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A slow server takes seconds for the report; the second signal says: leave at once."""
    monkeypatch.setattr(signals, "_PATIENCE_SEC", 0.01)
    told, may_end = threading.Event(), threading.Event()

    def tell(number: int) -> None:
        told.set()
        assert may_end.wait(60)

    watch = SignalWatch(lambda number: None, tell)

    async def hear() -> str:
        loop = asyncio.get_running_loop()
        came, again = loop.create_future(), loop.create_future()
        loop.add_signal_handler(signal.SIGTERM, came.set_result, None)
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.wait_for(came, 30)
        assert await loop.run_in_executor(None, told.wait, 60)
        loop.add_signal_handler(signal.SIGTERM, again.set_result, "again")
        os.kill(os.getpid(), signal.SIGTERM)
        return await asyncio.wait_for(again, 30)

    try:
        watch.arm()
        assert asyncio.run(hear()) == "again"
    finally:
        may_end.set()
        watch.disarm()


def test_a_loop_that_is_over_leaves_the_signal_to_the_watch_again(watch: SignalWatch) -> None:
    """After the loop, which takes its handler away, the watch has its own."""
    assert watch._handlers.is_fatal(signal.SIGTERM)

    async def handle() -> None:
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, lambda: None)
        assert not watch._handlers.is_fatal(signal.SIGTERM)

    asyncio.run(handle())
    assert watch._handlers.is_fatal(signal.SIGTERM)


def test_set_wakeup_fd_answers_as_if_there_were_no_watch(watch: SignalWatch) -> None:
    """The job's descriptor is restored, and an invalid one is refused."""
    one, other = socket.socketpair()
    with one, other:
        one.setblocking(False)
        assert signal.set_wakeup_fd(one.fileno(), warn_on_full_buffer=False) == -1
        signal.signal(signal.SIGUSR1, lambda *_: None)
        try:
            os.kill(os.getpid(), signal.SIGUSR1)
            other.settimeout(30)
            assert other.recv(1) == bytes([signal.SIGUSR1])
        finally:
            signal.signal(signal.SIGUSR1, signal.SIG_DFL)
        assert signal.set_wakeup_fd(-1) == one.fileno()
        with pytest.raises((ValueError, OSError)):
            signal.set_wakeup_fd(12345)
        assert signal.set_wakeup_fd(-1) == -1


def test_a_guard_of_the_event_loop_is_not_called(
    watch: SignalWatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Blockbuster raises where a coroutine calls what may block, `os.path.samestat` among it."""
    one, other = socket.socketpair()
    with one, other:
        one.setblocking(False)
        monkeypatch.setattr(os.path, "samestat", None)
        signal.set_wakeup_fd(one.fileno())
        assert signal.set_wakeup_fd(-1) == one.fileno()


def test_the_descriptor_that_a_job_set_outlives_the_watch() -> None:
    """What was set within the block is set after it."""
    watch = SignalWatch(lambda number: None, lambda number: None)
    watch.arm()
    one, other = socket.socketpair()
    with one, other:
        one.setblocking(False)
        signal.set_wakeup_fd(one.fileno())
        watch.disarm()
        assert signal.set_wakeup_fd(-1) == one.fileno()


def test_only_the_main_thread_may_set_the_descriptor(watch: SignalWatch) -> None:
    """In another thread it is the ValueError that it always was."""
    seen: list[BaseException] = []

    def call() -> None:
        try:
            signal.set_wakeup_fd(-1)
        except ValueError as error:
            seen.append(error)

    thread = threading.Thread(target=call)
    thread.start()
    thread.join()
    assert len(seen) == 1


def test_each_block_hears_its_signals() -> None:
    """One watch after the other does, and none leaves a descriptor with the interpreter."""
    heard: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda *_: heard.append(1))
    try:
        for _ in range(2):
            watch = SignalWatch(lambda number: None, lambda number: None)
            watch.arm()
            os.kill(os.getpid(), signal.SIGTERM)
            watch.settle()
            assert signal.SIGTERM in watch.received
            watch.disarm()
            assert signal.set_wakeup_fd(-1) == -1
    finally:
        signal.signal(signal.SIGTERM, before)
    assert heard == [1, 1]


def test_a_watch_that_cannot_start_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without room for a thread, the interpreter gets no descriptor that is closed then."""

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(Thread, "start", refuse)
    watch = SignalWatch(lambda number: None, lambda number: None)
    watch.arm()
    assert not watch.armed
    assert signal.set_wakeup_fd(-1) == -1


@alone
def test_a_signal_to_a_native_forks_child_is_not_ours() -> None:
    """The child, which has our end of the channel, ends by SIGTERM; the parent hears nothing.

    A child of a native fork hangs where another thread was waiting for the interpreter's lock at
    that moment, with or without us. So nothing else runs in this process.
    """
    watch = SignalWatch(lambda number: None, lambda number: None)
    watch.arm()
    watch.settle()
    pid = ctypes.PyDLL(None).fork()
    if pid == 0:
        for _ in range(600):  # a signal that comes just before a sleep does not end it
            time.sleep(0.1)
        os._exit(0)
    os.kill(pid, signal.SIGTERM)
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == -signal.SIGTERM
    watch.settle()
    assert watch.received == []
    watch.disarm()


def test_a_job_that_closes_all_descriptors_gets_no_signal_into_its_files(
    tmp_path: Path, watch: SignalWatch
) -> None:
    """The interpreter then no longer writes to the number, which may be another file's."""
    number = watch._writer_fd()
    os.close(number)
    watch._thread.join(30)
    with (tmp_path / "mine").open("wb") as file:
        os.dup2(file.fileno(), number)
        before = signal.signal(signal.SIGUSR1, lambda *_: None)
        os.kill(os.getpid(), signal.SIGUSR1)
        signal.signal(signal.SIGUSR1, before)
        os.close(number)
    assert (tmp_path / "mine").read_bytes() == b""


@alone
def test_nothing_of_the_watch_stays_wherever_an_alarm_raises() -> None:
    """Handlers, thread and descriptors are as before, also when `disarm` itself was cut short."""
    made: list[SignalWatch] = []

    def act() -> None:
        made.append(SignalWatch(lambda number: None, lambda number: None))
        made[-1].arm()
        made[-1].disarm()

    def disarm() -> None:
        while made:
            made.pop().disarm()

    assert check_each_line(act, disarm) > 100
