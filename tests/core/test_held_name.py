"""Names that one process of the host holds at a time."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import uuid

import pytest

from mlflow_perf.core.held_name import holding

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has such names")


def test_a_name_is_free_again_after_the_block() -> None:
    """The next one need not wait, and an error passes through."""
    name = uuid.uuid4().hex
    with pytest.raises(ZeroDivisionError), holding([name], timeout_sec=0.0):
        raise ZeroDivisionError
    with holding([name], timeout_sec=60.0):
        pass


def test_of_several_names_each_can_be_held() -> None:
    """As many hold one as there are names; a further one waits until one is free."""
    names = [f"{uuid.uuid4().hex} {number}" for number in range(2)]
    entered = threading.Event()

    def wait() -> None:
        with holding(names, timeout_sec=60.0):
            entered.set()

    waiting = threading.Thread(target=wait)
    with holding(names, timeout_sec=60.0):
        with holding(names, timeout_sec=60.0):
            waiting.start()
            assert not entered.wait(0.2)
        assert entered.wait(60.0)
    waiting.join(60.0)


def test_a_forked_child_does_not_keep_the_name() -> None:
    """Another thread of the job may fork while one holds the name; the child may live for ever."""
    name = uuid.uuid4().hex
    (started, starts), (ends, end) = os.pipe(), os.pipe()
    with holding([name], timeout_sec=60.0):
        child = os.fork()
        if not child:
            os.close(end)
            os.write(starts, b".")
            os.read(ends, 1)  # until the parent is done
            os._exit(0)
        os.read(started, 1)
    try:
        with socket.socket(socket.AF_UNIX) as other:
            other.bind(f"\0mlflow-perf {name}")
    finally:
        for descriptor in (started, starts, ends, end):
            os.close(descriptor)
        os.waitpid(child, 0)


def test_a_process_that_is_killed_holds_its_name_no_longer() -> None:
    """Nothing is left on the disk that would have to be cleaned up."""
    name = uuid.uuid4().hex
    code = f"""
from mlflow_perf.core.held_name import holding
with holding([{name!r}], timeout_sec=60.0):
    print("held", flush=True)
    input()
"""
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        entered = threading.Event()

        def wait() -> None:
            with holding([name], timeout_sec=60.0):
                entered.set()

        waiting = threading.Thread(target=wait)
        waiting.start()
        assert not entered.wait(0.2)
        holder.kill()
        assert entered.wait(60.0)
        waiting.join(60.0)


def test_the_wait_ends() -> None:
    """Who holds a name may be stopped for hours: then the block begins without one."""
    name = uuid.uuid4().hex
    with holding([name], timeout_sec=0.0), holding([name], timeout_sec=0.05):
        pass


def test_a_long_name_can_be_held() -> None:
    """The kernel takes 108 bytes; what is beyond does not count."""
    with holding(["é" * 200], timeout_sec=0.0):
        pass


def test_where_sockets_are_refused_nobody_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sandbox may allow no socket at all; the work is done all the same."""

    def refuse(*_: object) -> None:
        raise RuntimeError("no network here")

    monkeypatch.setattr("socket.socket", refuse)
    with holding(["name"], timeout_sec=60.0):
        pass
