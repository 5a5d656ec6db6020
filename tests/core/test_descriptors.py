"""Descriptors of mlflow-perf lie apart from the job's, and never stand for one of them."""

from __future__ import annotations

import contextlib
import errno
import os
import subprocess
import sys
from pathlib import Path
from unittest import mock

import pytest
from tests.alone import alone
from tests.interrupted import check_each_line

import mlflow_perf
from mlflow_perf.core import originals
from mlflow_perf.core.descriptors import OwnDescriptor, OwnMap, open_high


def test_a_descriptor_lies_high_and_closes() -> None:
    """The job's next file gets the low number; the moved one is not inherited by programs."""
    low = os.open(os.devnull, os.O_RDONLY)
    os.close(low)
    high = open_high(os.open, os.devnull, os.O_RDONLY)
    assert high >= 128
    assert not os.get_inheritable(high)
    again = os.open(os.devnull, os.O_RDONLY)
    assert again == low
    os.close(high)
    os.close(again)


def _list_open() -> set[str]:
    found = set()
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # that of the listing, or of another thread
            found.add(os.readlink(f"/proc/self/fd/{number}"))
    return found


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@alone
def test_a_block_holds_as_many_descriptors_as_the_docs_say(store: str) -> None:
    """At its end only those of the database are open, as with MLflow by itself."""
    before = _list_open()
    with mlflow_perf.report("block"):
        inside = _list_open() - before
    after = _list_open() - before
    assert len(inside) <= 20
    assert after <= {store.removeprefix("sqlite:///")}


@alone
def test_no_descriptor_stays_wherever_an_alarm_raises() -> None:
    """Whether it is being opened, moved or closed, it is closed in the end."""

    def act() -> None:
        OwnDescriptor(os.open, os.devnull, os.O_RDONLY).close()

    assert check_each_line(act, lambda: None) > 10


def test_a_number_that_belongs_to_the_job_is_left_alone(tmp_path: Path) -> None:
    """After the job closed our descriptor and opened a file there, we neither use nor close it."""
    ours = OwnDescriptor(os.open, tmp_path / "ours", os.O_WRONLY | os.O_CREAT)
    assert ours.is_ours()
    number = ours.number
    os.close(number)
    assert not ours.is_ours()
    with pytest.raises(OSError, match="the job closed its descriptor"):
        ours.check()
    theirs = os.open(tmp_path / "theirs", os.O_WRONLY | os.O_CREAT)
    os.dup2(theirs, number)
    assert not ours.is_ours()
    ours.close()
    assert os.write(number, b"mine") == 4
    os.close(number)
    os.close(theirs)


def test_a_file_system_that_is_away_is_what_is_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job has closed nothing then."""
    ours = OwnDescriptor(os.open, tmp_path / "ours", os.O_WRONLY | os.O_CREAT)

    def refuse(_: int) -> None:
        raise OSError(errno.ESTALE, "Stale file handle")

    with monkeypatch.context() as away:
        away.setattr(originals.os, "fstat", refuse)
        assert not ours.is_ours()
        with pytest.raises(OSError, match="Stale file handle"):
            ours.check()
    ours.close()


def test_a_map_does_not_close_a_file_of_the_job(tmp_path: Path) -> None:
    """A map keeps a copy of its descriptor; the number may be another file's when it ends."""
    handle = os.open(tmp_path / "ours", os.O_RDWR | os.O_CREAT)
    os.ftruncate(handle, 4096)
    copy = os.dup(handle)
    os.close(copy)
    with mock.patch("mmap.mmap") as of_job:
        mapped = OwnMap(handle, 4096)
    assert of_job.call_count == 0
    assert _is_file(copy, tmp_path / "ours")
    theirs = os.open(tmp_path / "theirs", os.O_WRONLY | os.O_CREAT)
    os.dup2(theirs, copy)
    mapped.close()
    assert os.write(copy, b"mine") == 4
    os.close(theirs)
    os.close(handle)


def _is_file(number: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(number), path.stat())
    except OSError:
        return False


_CLOSED_STDOUT = """
import os, socket, sys, time
from mlflow_perf.core import threads
from mlflow_perf.core.background_call import BackgroundCall
def name_slowly(*_):
    number = os.open(os.devnull, os.O_RDONLY)
    time.sleep(0.1)
    os.close(number)
def connect():
    time.sleep(0.2)
    return socket.socket().fileno()
threads._show_as_ours = name_slowly
os.close(1)
number = BackgroundCall(connect, name="connect").result(30)
print(number, file=sys.stderr)
first = os.open(os.devnull, os.O_RDONLY)
print(first, file=sys.stderr)
"""


def test_no_connection_of_ours_becomes_standard_output() -> None:
    """A job that has closed its output prints to nobody, and gets the number when it opens one.

    The thread's name is written before its call begins: its file may take the number for a moment.
    """
    done = subprocess.run(
        [sys.executable, "-c", _CLOSED_STDOUT],
        capture_output=True, text=True, timeout=200, check=False,
    )  # fmt: skip
    connection, first = map(int, done.stderr.split())
    assert connection > 2
    assert first == 1
