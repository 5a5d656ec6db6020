"""Start-up code of the Python processes below a session; `sitecustomize.py` runs it there.

This folder is on their PYTHONPATH, so its files import nothing of mlflow_perf at the top.
"""

from __future__ import annotations

import os
from pathlib import Path

from mlflow_perf.integrations.startup._mlflow_perf_startup import call, forget

__all__ = ["add_to_path", "call", "forget", "remove_from_path"]

_FOLDER = str(Path(__file__).parent)
_users: set[str] = set()
_is_added = False


def _read_path() -> list[str]:
    path = os.environ.get("PYTHONPATH")
    return path.split(os.pathsep) if path else []


def add_to_path(user: str) -> None:
    """Let the Python processes that are started from now on run the start-up code.

    Args:
        user: What needs it; the path is restored when the last user is removed.
    """
    global _is_added  # noqa: PLW0603 - a process has one environment
    parts = _read_path()
    if not _users:
        _is_added = _FOLDER not in parts
    # First: where a signal handler of the job raises in here, `remove_from_path` takes all back.
    _users.add(user)
    if _is_added and _FOLDER not in parts:
        _set_path([_FOLDER, *parts])


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
