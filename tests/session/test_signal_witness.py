"""The witness tells a signal for the group from one for a process, and leaves no trace."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from mlflow_perf.session.signal_witness import SignalWitness

# Its own group, whose signals are blocked as in the wrapper; the sender is another process.
GROUP = """
import os, signal, subprocess, sys
from mlflow_perf.session.signal_witness import SignalWitness
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGUSR1, signal.SIGCONT})
witness = SignalWitness()
def send(command):
    sender = subprocess.Popen(["sh", "-c", command, "sh", str(os.getpid())], start_new_session=True)
    sender.wait()
    return sender.pid
"""


def run_group(script: str) -> str:
    """Run Python code in a process group that has a witness; return its output."""
    argv = [sys.executable, "-c", GROUP + script]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, start_new_session=True)  # noqa: PLW1510
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_only_a_groups_signals_are_told_and_each_once() -> None:
    """With their sender."""
    script = """
send("kill -TERM $1")
assert witness.ask() == []
sender = send("kill -s USR1 -- -$1")
assert witness.ask() == [(signal.SIGUSR1, sender)]
assert witness.ask() == []
"""
    run_group(script)


def test_a_stopped_witness_goes_on_when_it_is_asked() -> None:
    """Who stops a group may let one process after the other go on."""
    script = """
child = int(open(f"/proc/self/task/{os.getpid()}/children").read())
sender = send("kill -s TERM -- -$1")
os.kill(child, signal.SIGSTOP)
assert witness.ask() == [(signal.SIGTERM, sender)]
"""
    run_group(script)


def test_it_holds_nothing_open_and_is_not_found_by_our_name() -> None:
    """Whoever reads the job's pipe sees its end; `pkill -f mlflow-perf` reaches the wrapper."""
    script = """
import pathlib
child = pathlib.Path(f"/proc/self/task/{os.getpid()}/children").read_text().strip()
witness.ask()
print(len(os.listdir(f"/proc/{child}/fd")))
print(pathlib.Path(f"/proc/{child}/comm").read_text().strip())
print(pathlib.Path(f"/proc/{child}/cmdline").read_text().strip(chr(0)))
witness.end()
print(os.path.exists(f"/proc/{child}"))
"""
    assert run_group(script).split() == ["2", "signal-witness", "signal-witness", "False"]


def test_it_dies_with_its_parent() -> None:
    """Also with one that is killed."""
    script = """
print(pathlib.Path(f"/proc/self/task/{os.getpid()}/children").read_text(), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    argv = [sys.executable, "-c", f"import pathlib\n{GROUP}{script}"]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        child = int(process.stdout.readline())
    gone = Path(f"/proc/{child}/stat")
    while gone.exists():
        # Whoever gets orphans here may not collect them.
        if gone.read_text().rpartition(")")[2].split()[0] == "Z":
            break


def test_a_process_that_cannot_fork_has_no_witness(monkeypatch: pytest.MonkeyPatch) -> None:
    """Then nothing is known, and nothing stays open."""

    def refuse() -> int:
        raise BlockingIOError

    monkeypatch.setattr(os, "fork", refuse)
    before, mask = os.listdir("/proc/self/fd"), signal.pthread_sigmask(signal.SIG_BLOCK, ())
    witness = SignalWitness()
    assert witness.ask() is None
    assert os.listdir("/proc/self/fd") == before
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == mask
