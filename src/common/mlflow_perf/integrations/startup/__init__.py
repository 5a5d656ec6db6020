"""Start-up code of the Python processes below a session.

`mlflow_perf.pth`, which is installed beside the package, runs it in every Python of that
environment; in others `sitecustomize.py` does, where this folder is on their PYTHONPATH. So the
other files here import nothing of mlflow_perf at the top.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from mlflow_perf.core.originals import open_file
from mlflow_perf.integrations.startup._mlflow_perf_startup import call, forget

__all__ = ["add_to_path", "call", "forget", "lend_to", "remove_from_path"]

_FOLDER = str(Path(__file__).parent)
_PYTHON = re.compile(r"(.*/)?python[\d.]*t?")
_users: set[str] = set()
_is_added = False


def _read_path() -> list[str]:
    path = os.environ.get("PYTHONPATH")
    return path.split(os.pathsep) if path else []


def add_to_path(user: str) -> None:
    """Let the Python processes that are started from now on run the start-up code.

    Those in whose environment mlflow-perf is installed run it by `mlflow_perf.pth` there. For all
    others it is put on PYTHONPATH, if that has a value: a job may have a default for it, or add to
    it, which says something else where it is not set.

    Args:
        user: What needs it; the path is restored when the last user is removed.
    """
    global _is_added  # noqa: PLW0603 - a process has one environment
    parts = _read_path()
    if not _users:
        _is_added = bool(parts) and _FOLDER not in parts
    # First: where a signal handler of the job raises in here, `remove_from_path` takes all back.
    _users.add(user)
    if _is_added and _FOLDER not in parts:
        _set_path([_FOLDER, *parts])


@contextmanager
def lend_to(argv: Sequence[str]) -> Iterator[None]:
    """Let a command run the start-up code if it is a Python, be it of another environment.

    It takes the folder from its PYTHONPATH again before any code of the job can read that. A script
    of the name would not, and neither does a Python with `-E`, `-I` or `-S`.
    """
    option, is_lent = "".join(argv[1:2]), False
    is_plain = not option.startswith("-") or option in ("-m", "-c", "-u")
    if is_plain and "PYTHONPATH" not in os.environ and _PYTHON.fullmatch(argv[0]):
        with suppress(OSError), open_file(shutil.which(argv[0]) or "", "rb") as program:
            is_lent = program.read(4) == b"\x7fELF"
    if is_lent:
        _set_path([_FOLDER])
    try:
        yield
    finally:
        if is_lent:
            _set_path([])


def remove_from_path(user: str) -> None:
    """Take back what `add_to_path` did for a user."""
    if user not in _users:
        return
    if _users == {user} and _is_added:
        # The parts that the job has added meanwhile stay.
        _set_path([part for part in _read_path() if part != _FOLDER])
    _users.discard(user)


def _set_path(parts: list[str]) -> None:
    from mlflow_perf.core.environment import set_variable

    set_variable("PYTHONPATH", os.pathsep.join(parts) or None)
