"""Shared by the commands that start another command: its check, and the exit."""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path
from typing import NoReturn

import click

from mlflow_perf.core.settings import read_setting
from mlflow_perf.core.temporary import remove_temporary_folders
from mlflow_perf.session.command import check_command
from mlflow_perf.session.held_child import NOT_FOUND


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
    """Exit at once: a thread that waits for a dead server must not delay the exit, nor fail in it.

    Args:
        code: The exit code, which no fault of our streams may replace.
    """
    for stream in (sys.stdout, sys.stderr):
        # A stream that was closed before the start is None.
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stream.flush()
    remove_temporary_folders()
    os._exit(code)
