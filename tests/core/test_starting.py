"""Ctrl-C and other signals while a command starts."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

STARTS = "import signal, sys; from mlflow_perf.core.starting import *\nend_at_interrupt()\n"
INTERRUPT = "signal.raise_signal(signal.SIGINT)\n"


def _run(code: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", STARTS + code]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_ctrl_c_ends_what_starts_without_a_word() -> None:
    """A shell sees that SIGINT ended it."""
    done = _run(INTERRUPT)
    assert (done.returncode, done.stderr) == (-signal.SIGINT, "")


def test_ctrl_c_is_pythons_own_afterwards() -> None:
    """It raises `KeyboardInterrupt` once the command is prepared for it."""
    done = _run(f"raise_at_interrupt()\ntry:\n    {INTERRUPT}except KeyboardInterrupt: sys.exit(7)")
    assert (done.returncode, done.stderr) == (7, "")


@pytest.mark.parametrize("handler", ["SIG_IGN", "SIG_DFL"])
def test_what_the_caller_set_stays(handler: str) -> None:
    """A shell lets a command in the background ignore Ctrl-C."""
    for then in ("", "raise_at_interrupt()\n"):
        code = f"{then}print(signal.getsignal(signal.SIGINT) is signal.{handler})"
        before = f"import signal; signal.signal(signal.SIGINT, signal.{handler})\n"
        done = subprocess.check_output([sys.executable, "-c", before + STARTS + code], text=True)
        assert done == "True\n"


def test_the_first_process_of_a_container_ends_too() -> None:
    """No default action of a signal ends it."""
    code = "import os; os.getpid = lambda: 1\n" + STARTS + INTERRUPT
    ended = subprocess.run([sys.executable, "-c", code], check=False)
    assert ended.returncode == 128 + signal.SIGINT


RAISES = """
with RaisingSignals() as signals:
    try:
        signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
            signal.raise_signal(number)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)
    except KeyboardInterrupt as error:
        print(signal.Signals(*error.args).name)
    signal.raise_signal(signal.SIGTERM)
    signals.allow_another()
    try:
        signal.raise_signal(signal.SIGUSR1)
    except KeyboardInterrupt as error:
        print(signal.Signals(*error.args).name)
print(signal.getsignal(signal.SIGINT) is signal.default_int_handler)
print({signal.getsignal(number) for number in ENDING - {signal.SIGINT}} == {signal.SIG_DFL})
"""


def test_signals_that_come_together_raise_once_and_a_later_one_again() -> None:
    """A terminal, systemd and `timeout` send two of them; afterwards all is as before."""
    done = _run(RAISES)
    assert (done.stdout.split(), done.stderr) == (["SIGHUP", "SIGUSR1", "True", "True"], "")


def test_a_signal_that_is_ignored_raises_nothing() -> None:
    """`nohup` lets a command ignore SIGHUP."""
    ignored = "signal.signal(signal.SIGHUP, signal.SIG_IGN)\n"
    hang_up = "with RaisingSignals(): signal.raise_signal(signal.SIGHUP)\n"
    done = _run(f"{ignored}{hang_up}print(signal.getsignal(signal.SIGHUP) is signal.SIG_IGN)")
    assert (done.stdout, done.stderr) == ("True\n", "")
