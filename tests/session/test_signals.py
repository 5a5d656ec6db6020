"""The watch for ending signals: it hears each one, and what the job does with them is unchanged."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import threading
from collections.abc import Iterator

import pytest

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
    """A loop's handler of SIGTERM runs, and the watch knows of the signal too."""

    async def wait_for_it() -> str:
        heard = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, heard.set_result, "heard")
        os.kill(os.getpid(), signal.SIGTERM)
        return await asyncio.wait_for(heard, 30)

    assert asyncio.run(wait_for_it()) == "heard"
    watch.settle()
    assert signal.SIGTERM in watch.received


def test_a_loop_that_is_over_leaves_the_signal_to_the_watch_again(watch: SignalWatch) -> None:
    """After the loop, which takes its handler away, the watch has its own."""
    ours = signal.getsignal(signal.SIGTERM)

    async def handle() -> None:
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, lambda: None)
        assert signal.getsignal(signal.SIGTERM) is not ours

    asyncio.run(handle())
    assert signal.getsignal(signal.SIGTERM) == ours


def test_set_wakeup_fd_answers_as_if_there_were_no_watch(watch: SignalWatch) -> None:
    """The descriptor of the job comes back, and one that cannot be is refused."""
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
