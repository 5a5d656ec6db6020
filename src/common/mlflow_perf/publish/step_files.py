"""The files of a pipeline's step that become artifacts of its run."""

from __future__ import annotations

import os
import stat
from collections.abc import Sized
from itertools import count
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from mlflow_perf.core.safe_log import get_logger
from mlflow_perf.core.uris import first_line

if TYPE_CHECKING:
    from mlflow import MlflowClient

_OWN_LOGS = "code/logs"
KEPT_FILES = (("code/outputs", "outputs"), (_OWN_LOGS, "logs"))
"""Folders that Azure ML keeps of a step's working folder, and their artifact paths."""

_FILES = (("logs", "logs"), *KEPT_FILES)
_READ_BYTES = 1 << 20
_OWN = "own"  # below `logs`: what a step itself has written under the name of a log of ours
_RETRIED = (408, 429)  # of the statuses from 400 to 499, those that say nothing of the file
_log = get_logger(__name__)


def upload_files(client: MlflowClient, run_id: str, step: Path) -> None:
    """Give the run of a step its logs, and the files that Azure ML keeps of it.

    Named pipes, sockets, links to nothing or to another folder, and files that vanish are left out,
    and with a warning what cannot be read, and what the store does not take though it takes other
    files. A file in the step's own `./logs` that has the name of its log goes to `logs/own`.

    Args:
        client: A client of the store.
        run_id: The run.
        step: The folder of the step.

    Raises:
        Exception: Whatever MLflow raises when the store takes nothing, or does not answer.
    """
    taken, refused = 0, dict[Path, Exception]()
    for folder, path in _FILES:
        if (step / folder).is_symlink():  # a step has put it in the place of its own folder
            continue
        files, is_all = _list_readable(step / folder)
        clashing = {file for file in files if folder == _OWN_LOGS and _clashes(file, step)}
        own = _find_free(step / folder)
        if files and is_all and not clashing:
            try:
                client.log_artifacts(run_id, str(step / folder), path)
            except Exception as error:
                # A process that the step left behind may remove files meanwhile.
                is_known = _is_refusal(error) or any(map(_is_unreadable, files))
                if not is_known and all(file.exists() for file in files):
                    raise
            else:
                taken, files = taken + 1, []
        for file in filter(Path.exists, files):  # MLflow would wait for a writer of a named pipe
            below = PurePosixPath(path, own) if file in clashing else PurePosixPath(path)
            place = below / file.parent.relative_to(step / folder)
            try:
                client.log_artifact(run_id, str(file), str(place))
                taken += 1
            except Exception as error:
                if not (_is_refusal(error) or _is_unreadable(file)):
                    raise
                refused[file] = error
    if not refused:
        return
    first, why = next(iter(refused.items()))
    if not taken:
        raise why
    text = "%r%s not kept in MLflow: %s"
    _log.warning(text, str(first), _tell_more(refused), first_line(why))


def _clashes(file: Path, step: Path) -> bool:
    """Return whether a file of the step's own `./logs` cannot be beside our logs in one folder."""
    below = file.relative_to(step / _OWN_LOGS)
    ours = [step / "logs" / part for part in (below, *below.parents[:-1])]
    return ours[0].exists() or any(one.is_file() for one in ours[1:])


def _find_free(folder: Path) -> str:
    """Return a name that nothing in a folder has."""
    names = (f"{_OWN}{'-' * n}" for n in count())
    return next(name for name in names if not (folder / name).exists())


def _is_unreadable(file: Path) -> bool:
    """Return whether a file cannot be read to its end, as on a bad disk."""
    try:
        with file.open("rb") as opened:
            while opened.read(_READ_BYTES):
                pass
    except OSError:
        return True
    return False


def _is_refusal(error: Exception) -> bool:
    """Return whether a store does not take a file with this name or size."""
    from mlflow.exceptions import MlflowException

    if isinstance(error, MlflowException):
        return bool(error.error_code == "INVALID_PARAMETER_VALUE")
    status = getattr(getattr(error, "response", None), "status_code", 0)
    is_answer = isinstance(status, int) and 400 <= status < 500 and status not in _RETRIED
    return is_answer or isinstance(error, UnicodeError)


def _tell_more(files: Sized) -> str:
    """Return the verb of a sentence about the first one of files, with the number of the others."""
    return " is" if len(files) == 1 else f" and {len(files) - 1} more are"


def _list_readable(folder: Path) -> tuple[list[Path], bool]:
    """Return the files of a folder that can be read, and whether it has no others."""
    files: list[Path] = []
    others, unread = False, list[Path]()
    for root, folders, names in os.walk(folder):
        paths = [Path(root, name) for name in folders]
        unread += [path for path in paths if not os.access(path, os.R_OK | os.X_OK)]
        for path in (Path(root, name) for name in names):
            try:
                is_file = stat.S_ISREG(path.stat().st_mode)
            except OSError:  # a link to nothing
                is_file = False
            if is_file and os.access(path, os.R_OK):
                files.append(path)
            else:
                others = True
                unread += [path] if is_file else []
    if unread:
        _log.warning(
            "%r%s not readable, and not kept in MLflow.", str(unread[0]), _tell_more(unread)
        )
    return files, not (others or unread)
