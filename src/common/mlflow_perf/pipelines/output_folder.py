"""Mark the folders that a run of a pipeline writes, find them within its code, and empty them.

A step's copy of its code never contains them: with `code: .` the copies lie below the code itself.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

from mlflow_perf.core.mounts import list_mounts
from mlflow_perf.errors import PipelineError

MARKER = ".mlflow-perf-output"
"""Name of the file that marks an output folder and the work folder of each run."""

_STORE = "output folder"
_RUN = "work folder"
_TEXT = (
    "mlflow-perf: {kind} of a pipeline.\n"
    "This file keeps what mlflow-perf writes here out of the code that a step is given.\n"
)
# Versions before the marker named the work folder of a run so, within `work`.
_RUN_NAME = re.compile(r".*-\d{8}-\d{6}-[0-9a-f]{4}")
# SQLite's own files (`-journal`, `-wal`, `-shm`) lie beside a database.
_FILE = re.compile(r"(?:mlflow\.db|spans\.sqlite3)(?:-\w+)?|" + re.escape(MARKER))
# MLflow names the artifacts of runs, models and traces by their ids.
_ARTIFACTS = re.compile(r"artifacts/(?:[0-9a-f]{32}|models/m-[0-9a-f]{32}|traces/tr-[0-9a-f]{32})")


def mark_output(folder: Path) -> None:
    """Make and mark the folder of a store, or of the work of all runs.

    Raises:
        PipelineError: It cannot be written.
    """
    _mark(folder, _STORE)


def mark_run(folder: Path) -> None:
    """Make and mark the work folder of a run: nothing in it is ever code.

    Raises:
        PipelineError: It cannot be written.
    """
    _mark(folder, _RUN)


def is_run(folder: Path) -> bool:
    """Return whether the folder is the work folder of a run, of this version or an earlier one."""
    is_named = folder.parent.name == "work" and _RUN_NAME.fullmatch(folder.name) is not None
    return is_named or _read_kind(folder) == _RUN


def is_output(folder: Path) -> bool:
    """Return whether the folder has a store or the work of runs in it, and perhaps other files."""
    if _read_kind(folder) == _STORE:
        return True
    work = folder / "work"
    return (folder / "mlflow.db").is_file() and any(map(is_run, work.glob("*")))


def is_own(path: str) -> bool:
    """Return whether a path relative to an output folder is one that we or MLflow write there."""
    return (_FILE.fullmatch(path) or _ARTIFACTS.fullmatch(path)) is not None


def _mark(folder: Path, kind: str) -> None:
    marker = folder / MARKER
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if _read_kind(folder) != kind:
            marker.write_text(_TEXT.format(kind=kind), encoding="utf-8")
    except OSError as error:
        raise PipelineError(f"The folder {folder} cannot be written: {error.strerror}.") from error


def _read_kind(folder: Path) -> str:
    """Return which folder its marker says that it is; empty if it has no marker of ours."""
    marker = folder / MARKER
    try:
        head = marker.read_bytes()[:100] if marker.is_file() else b""
    except OSError:
        return ""
    return next((k for k in (_STORE, _RUN) if head.startswith(f"mlflow-perf: {k}".encode())), "")


def remove_outputs(folder: Path, *, mounts: Path = Path("/proc/self/mountinfo")) -> None:
    """Remove what a step has written into a folder, but nothing that is mounted in it.

    Args:
        folder: The folder; it may be missing.
        mounts: Where the kernel lists what is mounted.
    """
    if folder.is_symlink():  # what lies behind it is not ours
        return
    places = {mount.place for mount in list_mounts(mounts)}
    mounted = {place for place in places if place.is_relative_to(folder.resolve())}
    if not mounted:
        shutil.rmtree(folder, ignore_errors=True)
    elif folder.resolve() not in mounted:
        _remove_around(folder, mounted)


def _remove_around(folder: Path, mounted: Collection[Path]) -> None:
    """Remove all in a folder but what is mounted in it, with the folders that lead there."""
    for path in folder.iterdir():
        place = path.parent.resolve() / path.name
        if place in mounted:
            continue
        if path.is_symlink() or not path.is_dir():
            with suppress(OSError):
                path.unlink()
        elif any(one.is_relative_to(place) for one in mounted):
            _remove_around(path, mounted)
        else:
            shutil.rmtree(path, ignore_errors=True)
