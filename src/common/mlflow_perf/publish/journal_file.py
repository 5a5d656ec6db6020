"""Files of journals: where they are, locked by their writers, and opened with care by others."""

from __future__ import annotations

import contextlib
import errno
import stat
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from mlflow_perf.core.file_patience import find_patience
from mlflow_perf.core.json_io import from_json
from mlflow_perf.core.originals import os
from mlflow_perf.core.settings import read_setting
from mlflow_perf.core.temporary import find_temporary_folder
from mlflow_perf.errors import DocumentError

_MAX_BYTES = 256 << 20
_HEAD_BYTES = 1 << 20  # longer first lines are not ours


def find_state_folder(folder: str | None = None) -> Path:
    """Return the folder of the journals; the one in the user's state is made, as that may fail.

    Args:
        folder: The setting `dir`; default: `MLFLOW_PERF_DIR`, else a folder in the user's state, or
            among the temporary files where that cannot be made.
    """
    folder = folder or read_setting("dir")
    if folder is not None:
        with contextlib.suppress(OSError):  # the working folder was deleted
            return Path(folder).absolute()  # the job may change its working folder
        return Path(folder)
    home = os.environ.get("XDG_STATE_HOME")
    # A user may have no home, one that is closed, or one that cannot be made.
    with contextlib.suppress(RuntimeError, OSError):
        place = (Path(home) if home else Path.home() / ".local" / "state") / "mlflow-perf"
        if find_patience(place).do(partial(_make_writable, place), False):
            return place
    # With the user's id: nobody else could write to a folder that its first user made.
    user = os.getuid() if hasattr(os, "getuid") else 0
    return find_temporary_folder() / f"mlflow-perf-{user}"


def _make_writable(place: Path) -> bool:
    place.mkdir(mode=0o700, parents=True, exist_ok=True)
    return os.access(place, os.W_OK)


def lock(handle: int, *, if_unknown: bool = False) -> bool:
    """Take the lock on an open journal, which its writer holds as long as it lives.

    Args:
        handle: The open journal.
        if_unknown: What to return on a file system without locks.

    Returns:
        Whether the lock was free. It belongs to the process: a forked child does not inherit it,
        and the kernel drops it when the process ends in any way.
    """
    if sys.platform == "win32":
        return True
    import fcntl

    try:
        fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return if_unknown and error.errno not in (errno.EACCES, errno.EAGAIN)
    return True


@contextlib.contextmanager
def open_journal(path: Path) -> Iterator[int]:
    """Open a journal for reading and writing, never through a link.

    Raises:
        DocumentError: When it is not a regular file, too large, somebody else's, or on a file
            system that is read-only: it could be neither locked nor removed there.
        OSError: When it cannot be opened.
    """
    flags = os.O_RDWR | os.O_CLOEXEC | getattr(os, "O_NOFOLLOW", 0) | os.O_NONBLOCK
    try:
        handle = os.open(path, flags)
    except OSError as error:
        if error.errno != errno.EROFS:
            raise
        raise DocumentError(
            "its file system is read-only; if its job has ended, copy the whole folder to where "
            "you may write (cp -r) and send the copy: mlflow-perf recover COPY"
        ) from error
    try:
        facts = os.fstat(handle)
        if not stat.S_ISREG(facts.st_mode):
            raise DocumentError("it is not a regular file")
        if hasattr(os, "getuid") and facts.st_uid != os.getuid():
            raise DocumentError("it belongs to another user")
        if facts.st_size > _MAX_BYTES:
            raise DocumentError(f"it is larger than {_MAX_BYTES >> 20} MB")
        yield handle
    finally:
        os.close(handle)


def read_head(path: Path) -> dict[str, Any]:
    """Return the first line of a journal; nothing if it is damaged or gone by now."""
    with contextlib.suppress(OSError, ValueError, RecursionError), path.open("rb") as file:
        head = from_json(file.readline(_HEAD_BYTES))
        if isinstance(head, dict):
            return head
    return {}


def is_same_file(path: Path, handle: int) -> bool:
    """Return whether the open file is still the journal: another recover may have removed it."""
    try:
        return os.path.samestat(os.fstat(handle), os.lstat(path))
    except OSError:
        return False
