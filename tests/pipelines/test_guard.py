"""The logs of a step's processes are complete, whatever these do with their output."""

from __future__ import annotations

import os
import resource
import signal
import threading
import time
from pathlib import Path

import psutil
import pytest

from mlflow_perf.pipelines.guard import Guard
from mlflow_perf.pipelines.step_guard import Log

_STUBBORN = """
import signal, time
signal.signal(signal.SIGTERM, lambda *_: print("the last words", flush=True))
print("one", flush=True)
while True:
    time.sleep(60)
"""


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Return the log of the only process."""
    return tmp_path / "log.txt"


def _start(guard: Guard, log: Path, script: str) -> int:
    """Run a script in a shell to its end, and return its exit code."""
    command = ("bash", "-c", script)
    environ = {"PATH": os.environ["PATH"]}
    return guard.start_process(command, log=log, folder=Path("/"), environ=environ).wait()


def _find_guard(log: Path) -> psutil.Process:
    """Find the only process with this log open but the current one."""
    for child in psutil.Process().children():
        if str(log) in (file.path for file in child.open_files()):
            return child
    raise AssertionError("no guard")


@pytest.mark.parametrize("name", ["stderr", "stdout"])
def test_a_script_that_opens_its_output_anew_empties_no_log(log: Path, name: str) -> None:
    """As in a terminal, and wherever else the output is a pipe."""
    guard = Guard([log], 10.0)
    assert _start(guard, log, f"echo one; echo two > /dev/{name}; echo three") == 0
    guard.end()
    assert log.read_text() == "one\ntwo\nthree\n"


def test_all_that_a_process_has_written_is_in_the_log_at_the_end(log: Path) -> None:
    """Its last bytes are still in the pipe when it ends."""
    guard = Guard([log], 10.0)
    assert _start(guard, log, "head -c 3000000 /dev/zero; echo the last") == 0
    guard.end()
    assert log.read_bytes() == bytes(3_000_000) + b"the last\n"


def test_what_a_step_leaves_running_may_go_on_to_write(log: Path, tmp_path: Path) -> None:
    """Such as a server: the end of the step does not wait for it, nor break its pipe."""
    go, gone = tmp_path / "go", tmp_path / "gone"
    server = f"until [ -e {go} ]; do sleep 0.05; done; echo late || touch {gone}; touch {go}.done"
    guard = Guard([log], 10.0)
    begun = time.monotonic()
    assert _start(guard, log, f"echo early; setsid bash -c '{server}' & ") == 0
    guard.end()
    assert log.read_text() == "early\n"
    assert time.monotonic() - begun < 60
    go.touch()
    until = time.monotonic() + 60
    while log.read_text() != "early\nlate\n":
        assert time.monotonic() < until
        time.sleep(0.05)
    assert not gone.exists()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1])
def test_a_signal_for_all_processes_of_a_job_leaves_it(
    log: Path, tmp_path: Path, number: signal.Signals
) -> None:
    """The last words of the step are still to come."""
    other = tmp_path / "other.txt"
    guard = Guard([log, other], 10.0)
    _start(guard, log, "echo one")
    process = _find_guard(log)
    _wait_for(log, "one\n")  # it has begun, and ignores the signal
    process.send_signal(number)
    _start(guard, other, "echo the last words")
    assert process.is_running()
    guard.end()
    assert other.read_text() == "the last words\n"
    assert not process.is_running()


def test_another_one_takes_the_place_of_one_that_was_killed(log: Path, tmp_path: Path) -> None:
    """The process waits a little for its output, and has no broken pipe."""
    other = tmp_path / "other.txt"
    guard = Guard([log, other], 10.0)
    _start(guard, log, "echo one")
    process = _find_guard(log)
    _wait_for(log, "one\n")
    process.kill()
    psutil.wait_procs([process])
    assert _start(guard, other, "echo two") == 0
    guard.keep()
    guard.end()
    assert (log.read_text(), other.read_text()) == ("one\n", "two\n")


def test_a_stop_ends_all_also_where_somebody_ends_the_guard(log: Path) -> None:
    """Another one goes on with it."""
    guard = Guard([log], 1.0)
    command = ("python3", "-c", _STUBBORN)
    environ = {"PATH": os.environ["PATH"]}
    child = guard.start_process(command, log=log, folder=Path("/"), environ=environ)
    _wait_for(log, "one\n")
    stopping = threading.Thread(target=guard.stop)
    stopping.start()
    _wait_for(log, "one\nthe last words\n")
    _find_guard(log).kill()
    stopping.join()
    assert child.wait() == -signal.SIGKILL
    assert guard.ends[log].startswith(b"one\nthe last words\n")


def test_a_full_disk_does_not_end_the_process() -> None:
    """No more than a terminal would; the log says later on what is missing."""
    full = Path("/dev/full")
    guard = Guard([full], 10.0)
    assert _start(guard, full, "echo one && head -c 300000 /dev/zero && echo two") == 0
    guard.end()


def test_a_log_tells_how_much_of_it_is_missing(log: Path) -> None:
    """Where the missing text would have been."""
    source, sink = os.pipe()
    target = os.open("/dev/full", os.O_WRONLY)
    copied = Log(source, target)
    os.write(sink, b"lost")
    assert copied.copy()
    with log.open("wb") as file:
        os.dup2(file.fileno(), target)
    os.write(sink, b"kept")
    assert copied.copy()
    os.close(sink)
    assert not copied.copy()
    assert log.read_text() == "\n[mlflow-perf: 4 bytes of this log could not be written]\nkept"
    os.close(source)
    os.close(target)


def test_a_disk_that_stays_full_leaves_room_to_tell_what_is_missing(log: Path) -> None:
    """The last of what could be written gives way."""
    source, sink = os.pipe()
    target = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    full = resource.getrlimit(resource.RLIMIT_FSIZE)
    copied = Log(source, target)
    os.write(sink, b"x" * 300)
    resource.setrlimit(resource.RLIMIT_FSIZE, (200, full[1]))
    try:
        copied.copy()
        copied.mark_loss()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, full)
    told = "\n[mlflow-perf: 159 bytes of this log could not be written]\n"
    assert log.read_text() == "x" * (200 - len(told)) + told
    for number in (source, sink, target):
        os.close(number)


def _wait_for(log: Path, text: str) -> None:
    until = time.monotonic() + 60
    while log.read_text() != text:
        assert time.monotonic() < until, log.read_text()
        time.sleep(0.02)
