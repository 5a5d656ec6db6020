"""Shared by the commands that start another command: its check, and the exit."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import click

from mlflow_perf.core.settings import read_setting
from mlflow_perf.core.starting import RaisingSignals
from mlflow_perf.core.temporary import remove_temporary_folders
from mlflow_perf.session.command import check_command
from mlflow_perf.session.held_child import NOT_FOUND

_PR_SET_DUMPABLE = 4


def prepare_command(argv: tuple[str, ...]) -> None:
    """Exit as a shell does if the command cannot start; if mlflow-perf is disabled, become it.

    Args:
        argv: The command.
    """
    _restore_locale()
    if code := check_command(argv):
        what = "command not found" if code == NOT_FOUND else "cannot be executed"
        click.echo(f"mlflow-perf: {argv[0]}: {what}", err=True)
        sys.exit(code)
    if read_setting("disable"):
        os.execvp(argv[0], argv)  # noqa: S606 - no shell: that is the point


@contextlib.contextmanager
def ending_by_signal() -> Iterator[RaisingSignals]:
    """End by the signal that comes before the command can get it.

    After Ctrl-C click would exit with 1, and a shell's loop go on.
    """
    try:
        with RaisingSignals() as signals:
            yield signals
    except KeyboardInterrupt as error:
        leave(-find_signal(error))


def find_signal(error: KeyboardInterrupt) -> int:
    """Return the number of the signal that raised an error; Python's own handler is for SIGINT."""
    return int(error.args[0]) if error.args else signal.SIGINT


def _restore_locale() -> None:
    """Take back the `LC_CTYPE` that Python set for itself where the locale was C, as under cron."""
    with contextlib.suppress(OSError):
        given = Path("/proc/self/environ").read_bytes().split(b"\0")
        mine = next((entry for entry in given if entry.startswith(b"LC_CTYPE=")), None)
        if mine is None:
            os.environ.pop("LC_CTYPE", None)
        else:
            os.environb[b"LC_CTYPE"] = mine.partition(b"=")[2]


def leave(code: int) -> NoReturn:
    """End as the command did, at once: a thread that waits for a dead server must not delay it.

    Args:
        code: The exit code, which no fault of our streams may replace; -n for signal n.
    """
    for stream in (sys.stdout, sys.stderr):
        # A stream that was closed before the start is None.
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stream.flush()
    remove_temporary_folders()
    if code < 0:
        _end_by_signal(-code)
        # The first process of a container survives that.
        os._exit(128 - code)
    os._exit(code)


def _end_by_signal(number: int) -> None:
    """End by a signal: a shell's loop, `xargs`, `mpirun` and Slurm ask what ended a command."""
    # The core file is the command's. A program that takes core files ignores their limit.
    with contextlib.suppress(ImportError, OSError, ValueError):
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0)
    with contextlib.suppress(OSError, ValueError):  # SIGKILL has no handler
        signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
    os.kill(os.getpid(), number)
