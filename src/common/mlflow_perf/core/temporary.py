"""Temporary folders that go when the process ends, and not when one that it forked does."""

from __future__ import annotations

import atexit
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from mlflow_perf.core.originals import os
from mlflow_perf.core.tokens import make_folder

_open: set[Path] = set()


def find_temporary_folder() -> Path:
    """Return Python's folder for temporary files; the job's own first use looks for it anew.

    Raises:
        OSError: There is no place for one.
    """
    is_known = tempfile.tempdir is not None
    try:
        return Path(tempfile.gettempdir())
    finally:
        if not is_known:
            forget_temporary_folder()


def forget_temporary_folder() -> None:
    """Let Python look for its folder again, which it does once: the job may give another later.

    One that the job itself has set stays.
    """
    found: list[str] = getattr(tempfile, "_candidate_tempdir_list", list)()
    if str(tempfile.tempdir) in map(os.path.abspath, found):
        tempfile.tempdir = None


def make_temporary_folder() -> Path:
    """Make a folder that is removed when this process ends.

    Raises:
        OSError: There is no place for one.
    """
    # Not `TemporaryDirectory`, which a thread may lose too soon: Python removes it before the exit
    # handlers that still wait for the thread, and so does a forked child at its own exit.
    folder = Path(make_folder(prefix="mlflow-perf-", dir=find_temporary_folder()))
    _open.add(folder)
    return folder


@contextmanager
def temporary_folder() -> Iterator[Path]:
    """Make a folder, and remove it after the block."""
    folder = make_temporary_folder()
    try:
        yield folder
    finally:
        _open.discard(folder)
        _remove(folder)


def _remove(folder: Path) -> None:
    """Remove a folder and what is in it, as far as that is possible."""
    # By `shutil.rmtree` each would stay open until a loop of gevent's runs, which may be never.
    with suppress(OSError):
        with os.scandir(folder) as found:
            inside = [(Path(one.path), one.is_dir(follow_symlinks=False)) for one in found]
        for path, is_folder in inside:
            with suppress(OSError):
                if is_folder:
                    _remove(path)
                else:
                    os.unlink(path)
        os.rmdir(folder)


def remove_temporary_folders() -> None:
    """Remove the folders that are left, those of threads that still work too: the process ends."""
    for folder in list(_open):
        _remove(folder)


# Handlers run in reverse: those that wait for uploads are registered after this import.
atexit.register(remove_temporary_folders)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_open.clear)
