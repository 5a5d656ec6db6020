"""Python's list of threads, as a job sees it."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from types import FrameType

import pytest

from mlflow_perf.core.thread_list import hide, list_threads
from mlflow_perf.core.threads import Event, Thread


@pytest.fixture
def ours() -> Iterator[tuple[Thread, list[str]]]:
    """A thread of ours that lasts as long as the test, and the name that it has for itself."""
    done, begun, names = Event(), Event(), []

    def work() -> None:
        names.append(threading.current_thread().name)
        begun.set()
        done.wait(60)

    thread = Thread(work, name="ours")
    thread.start()
    assert begun.wait(60)
    yield thread, names
    done.set()
    thread.join(60)


def test_a_job_does_not_see_our_threads(ours: tuple[Thread, list[str]]) -> None:
    """It waits for its own; a thread of ours still finds itself."""
    thread, names = ours
    assert thread.is_alive()
    assert names == ["ours"]
    assert thread not in threading.enumerate()
    assert threading.active_count() == len(threading.enumerate())
    assert threading.current_thread() in threading.enumerate()
    assert thread in list_threads()


def test_each_stack_that_a_job_sees_has_a_thread(ours: tuple[Thread, list[str]]) -> None:
    """As in `names[ident]` for each of them, in a dump of all stacks."""
    frames = sys._current_frames()
    assert ours[0].ident not in frames
    assert frames[threading.get_ident()] is sys._getframe()


def test_a_thread_of_ours_that_asks_for_the_stacks_gets_those_of_the_job() -> None:
    """MLflow, which it calls, may ask as well."""
    found: list[dict[int, FrameType]] = []
    thread = Thread(lambda: found.append(sys._current_frames()), name="ours")
    thread.start()
    thread.join(60)
    assert threading.get_ident() in found[0]
    assert thread.ident not in found[0]


def test_a_thread_of_the_job_is_counted_until_it_ends(ours: tuple[Thread, list[str]]) -> None:
    """So a job may still wait until few enough of its own are left."""
    before, go = threading.active_count(), threading.Event()
    thread = threading.Thread(target=go.wait)
    thread.start()
    assert threading.active_count() == before + 1
    assert thread in threading.enumerate()
    go.set()
    thread.join()
    assert threading.active_count() == before


def test_a_librarys_thread_that_came_for_us_can_be_hidden() -> None:
    """MLflow's telemetry ends with the process."""
    go = threading.Event()
    thread = threading.Thread(target=go.wait)
    thread.start()
    hide(thread)
    assert thread not in threading.enumerate()
    go.set()
    thread.join()
    assert thread not in list_threads()


def test_a_forked_child_has_its_own_thread_alone(ours: tuple[Thread, list[str]]) -> None:
    """Those of its parent are gone, the hidden ones too."""
    pid = os.fork()
    if pid == 0:
        is_alone = list_threads() == threading.enumerate() == [threading.current_thread()]
        os._exit(0 if is_alone and not ours[0].is_alive() else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
