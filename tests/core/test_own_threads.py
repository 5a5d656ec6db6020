"""The threads of our own and their CPU time."""

from __future__ import annotations

import os
import threading
import time

import pytest

from mlflow_perf.core.own_threads import as_own, own_cpu_sec, own_thread_ids


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
    assert threading.get_native_id() not in own_thread_ids()


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
    assert thread.native_id in own_thread_ids()
    assert 0.03 <= own_cpu_sec() - before < 0.06
    seen.set()
    thread.join()
    assert thread.native_id not in own_thread_ids()
    assert 0.03 <= own_cpu_sec() - before < 0.06


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_begins_with_none() -> None:
    """The parent's threads and their account are not the child's."""
    with as_own():
        pid = os.fork()
        if pid == 0:
            os._exit(0 if not own_thread_ids() and own_cpu_sec() == 0.0 else 1)
    assert os.waitpid(pid, 0)[1] == 0
