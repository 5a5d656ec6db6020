"""What the runner of a pipeline and the wrapper of a step tell each other through files."""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path

from mlflow_perf.node.exit_cause import End

STOP = "stop"
"""Name of the file in the folder of all steps, or of one, that stops them."""

ENDED = "ended"
"""Name of the file in a step's folder with how far its command is, then the step's status.

A second line has the cause where the command ended by itself, and not well.
"""

UNSTARTED, STARTED_COMMAND = "RUNNING", "STARTED"
"""What that file says before the command begins, and while it runs."""

GIVEN_BACK = "GIVEN BACK"
"""What that file says of a step that its allocation did not begin any more."""

ENDED_BY_SIGNAL = "ENDED"
"""What that file says where a signal ended the command; else it has the status."""

RUNNER_KILLED = "the runner of its pipeline was killed"
"""Why a step was ended that nobody waits for any more."""

STOP_NOTE_VARIABLE = "MLFLOW_PERF_STOP_NOTE"
"""Environment variable of a step: the file in which its runner says why it ends it."""

_STOP_NOTE = re.compile(r".*/stopped-(\d+)", re.DOTALL)
"""Names of such files: a journal, which names one as well, may come from elsewhere."""


def find_stop_note() -> str:
    """Return the file in which a pipeline's runner notes why it ends this step; empty if none."""
    return os.environ.get(STOP_NOTE_VARIABLE, "")


def write_stop_note(note: Path, status: str, why: str) -> None:
    """Note that a pipeline's runner ends the processes of a step.

    Args:
        note: The file.
        status: How MLflow has the step then.
        why: The reason.
    """
    with contextlib.suppress(OSError):  # then they say what ended them: SIGTERM
        note.write_text(f"{status} {why}", encoding="utf-8")


def read_stop_note(note: str | None = None) -> End | None:
    """Return how and why a pipeline's runner ends a step's processes; None if it does not.

    Args:
        note: What a journal says of the file; default: that of this process.
    """
    name = find_stop_note() if note is None else note
    if not (_STOP_NOTE.fullmatch(name) and Path(name).is_file()):
        return None
    try:
        said = Path(name).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    status, _, why = said[:300].strip().partition(" ")
    return End(status, why) if status in ("FAILED", "KILLED") and why else None


def write_end(step: Path, status: str, end: End | None) -> None:
    """Note how a step has ended; not to be able to is no fault of the step.

    Args:
        step: The step's folder.
        status: How MLflow has the step then.
        end: How its command ended by itself, if it did.
    """
    path = step / ENDED
    # On a disk that is full, a file that exists keeps its place.
    mode = "r+" if path.exists() else "w"
    with contextlib.suppress(OSError), path.open(mode, encoding="utf-8") as file:
        file.write(f"{status}\n{end.cause if end else ''}\n")
        file.truncate()


def read_status(step: Path) -> str:
    """Return how far the command of a step is, or its status; empty if nothing is known."""
    return _read_end(step)[0]


def read_end(note: str) -> End | None:
    """Return how the command of a step ended by itself, as its runner noted; None if it did not.

    Args:
        note: What a journal says of the attempt's stop note; nothing is known of earlier attempts.
    """
    found = _STOP_NOTE.fullmatch(note)
    if found is None:
        return None
    step = Path(note).parent
    status, cause = _read_end(step)
    is_latest = int(found[1]) == 1 + len(list(step.glob("logs/attempt-*")))
    is_known = status == "FINISHED" or (status == "FAILED" and cause != "")
    return End(status, cause) if is_latest and is_known else None


def _read_end(step: Path) -> tuple[str, str]:
    said, file = "", step / ENDED
    with contextlib.suppress(OSError):
        # A journal may come from elsewhere, and name a pipe.
        said = file.read_text(encoding="utf-8", errors="replace") if file.is_file() else ""
    status, _, cause = said[:300].partition("\n")
    return status, cause.strip()
