"""Whether a job would notice the end of a child process of ours."""

import os
import signal
import subprocess
import threading
import time

import pytest
from tests.alone import alone

from mlflow_perf.node.children import notices_children

pytestmark = pytest.mark.skipif(not hasattr(signal, "SIGCHLD"), reason="of Unix")


def _wait_for_any() -> None:
    os.wait()


def _look_again_and_again() -> None:
    def pause() -> None:
        time.sleep(0.01)

    while not os.waitpid(-1, os.WNOHANG)[0]:
        pause()


@pytest.mark.parametrize("name", [_wait_for_any.__name__, _look_again_and_again.__name__])
@alone
def test_a_thread_that_waits_for_any_child_would_get_ours(name: str) -> None:
    child = subprocess.Popen(["sleep", "60"])
    thread = threading.Thread(target=globals()[name])
    thread.start()
    while not notices_children():
        assert thread.is_alive()
    child.kill()
    thread.join()
    assert not notices_children()


@alone
def test_those_that_wait_for_a_child_of_their_own_get_no_other() -> None:
    """Nor does who waits for something else."""
    child = subprocess.Popen(["sleep", "60"])
    started, over = threading.Event(), threading.Event()

    def wait_here() -> None:
        assert os.getpid()
        started.set()
        over.wait()

    threads = [threading.Thread(target=one) for one in (child.wait, wait_here)]
    for one in threads:
        one.start()
    started.wait()
    assert not notices_children()
    child.kill()
    over.set()
    for one in threads:
        one.join()


@alone
def test_a_handler_of_sigchld_hears_it() -> None:
    signal.signal(signal.SIGCHLD, lambda *_: None)
    assert notices_children()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    assert not notices_children()
