"""Where the spool folders of this user's jobs are, and which of them are left over."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import psutil

from mlflow_perf.core.mounts import is_remote
from mlflow_perf.core.temporary import find_temporary_folder
from mlflow_perf.node.exit_cause import machine_id
from mlflow_perf.recorders import spool

_LOCAL = Path("/tmp"), Path("/dev/shm")  # noqa: S108 - a folder of the user's own is made there
_WRITE = os.W_OK | os.X_OK


def choose_place(parent: Path) -> Path:
    """Return where a job of one process has its folder.

    Its processes write their records into memory that is mapped from there. Where a network's file
    system does not answer, each of them would stand still, or die of SIGBUS.

    Args:
        parent: Where it is, unless that may stop to answer.

    Raises:
        OSError: When there is no other place.
    """
    if not is_remote(parent):
        return parent
    base = find_base(make=True)
    return parent if is_remote(base) else base


def list_places(parent: Path) -> list[Path]:
    """Return where jobs of one process may have their folders.

    Args:
        parent: As for `choose_place`.
    """
    with contextlib.suppress(OSError):
        return list(dict.fromkeys([parent, find_base()]))
    return [parent]


def find_own(name: str, parent: Path) -> Path | None:
    """Return the folder that a job of one process had; None where it is not on this machine.

    Args:
        name: Its name.
        parent: As for `choose_place`.
    """
    folders = (place / name for place in list_places(parent))
    return next((one for one in folders if one.is_dir() and not one.is_symlink()), None)


def remove_left_over(place: Path) -> None:
    """Delete the empty spool folders of processes that died, on this machine since it booted."""
    prefix = name_machine()
    for folder in place.glob(f"{prefix}*"):
        pid = folder.name.removeprefix(prefix).partition("_")[0]
        if pid.isdecimal() and not psutil.pid_exists(int(pid)):
            with contextlib.suppress(OSError):  # a journal needs one that is not empty
                folder.rmdir()


def name_machine() -> str:
    """Return the start of the names of the folders whose process's id can be looked up here."""
    return f"{spool.PREFIX}{machine_id()}_"


def find_base(*, make: bool = False) -> Path:
    """Return where this user's jobs on this node have the folders of their ranks.

    It is among the temporary files. Where `TMPDIR` is on a network's file system, as some clusters
    have it, those of the machine are better.

    Raises:
        OSError: When it is another user's, or there is none.
    """
    user = os.getuid() if hasattr(os, "getuid") else 0
    usual = find_temporary_folder()
    places = (one for one in (usual, *_LOCAL) if not is_remote(one) and os.access(one, _WRITE))
    base = next(places, usual) / f"mlflow-perf-{user}"
    if make:
        base.mkdir(mode=0o700, parents=True, exist_ok=True)
    if base.is_symlink() or base.lstat().st_uid != user:
        raise PermissionError(f"{base} belongs to another user")
    return base
