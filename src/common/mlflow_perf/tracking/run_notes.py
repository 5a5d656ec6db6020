"""Notes by which a process reports the MLflow runs that it started to the session above it.

A process below a session finds the session's spool folder in its environment, and leaves one file
for each run there. This module imports no other library, because `import mlflow` loads it.
"""

from __future__ import annotations

import contextlib
import os
import socket
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from mlflow_perf.core.plain_json import dumps, loads
from mlflow_perf.core.uris import absolute_store
from mlflow_perf.tracking.run_events import StartedRun, listen

if TYPE_CHECKING:
    from mlflow_perf.tracking.run_handle import RunHandle

# The spool folder removes files with its own suffix, and reads none with these names.
_STARTED, _REPORTED, _UNSEEN, _SUFFIX = "run-", "reported-", "unseen-", ".spool"
_folder: Path | None = None


@dataclass(frozen=True)
class NotedRun:
    """A run that a process has noted.

    Attributes:
        run_id: Its id.
        tracking_uri: Its store.
        host: The host of the process.
        node_count: How many nodes the process's job has, all of which may report to the run.
        own_run: Whether it was created for the report alone.
        measured_by: The run of the same process whose figures contain those of this one, if any.
        is_reported: Whether the process has sent a report of it.
        workspace: Workspace of MLflow that has it; None where that is unknown.
    """

    run_id: str
    tracking_uri: str
    host: str = ""
    node_count: int = 1
    own_run: bool = False
    measured_by: str | None = None
    is_reported: bool = False
    workspace: str | None = None

    def is_of_host(self, node_count: int) -> bool:
        """Return whether the process was on this host, in a job of at most so many nodes."""
        return self.host == socket.gethostname() and self.node_count <= node_count


class _Noter:
    """Hears of the runs of this process."""

    def run_started(self, run: StartedRun) -> None:
        """Leave a note of a run."""
        uri, host = absolute_store(run.tracking_uri), socket.gethostname()
        _write(f"{_STARTED}{run.run_id}", {**asdict(run), "tracking_uri": uri, "host": host})

    def run_ending(self, run_id: str, status: str) -> None:
        """Keep the note."""

    def run_ended(self, run_id: str) -> None:
        """Keep it likewise."""

    def run_deleted(self, run_id: str) -> None:
        """Take back the note of a run that was deleted."""
        if _folder is not None:
            (_folder / f"{_STARTED}{run_id}{_SUFFIX}").unlink(missing_ok=True)

    def run_restored(self, run_id: str) -> None:
        """Leave no new note: the run may be resumed, which leaves one."""


def note_runs(folder: str) -> None:
    """Leave notes of all runs of this process in a folder from now on."""
    global _folder  # noqa: PLW0603 - of the process
    if _folder is None:
        _folder = Path(folder)
        listen(_Noter())


def note_reported(run: RunHandle | None, node_count: int, measured_by: str | None = None) -> None:
    """Leave a note that this process has sent a report of a run, where somebody above asks.

    Args:
        run: The run; None where the report was not sent.
        node_count: How many nodes the job has.
        measured_by: As of `NotedRun`.
    """
    if run is not None and run.run_id is not None:
        host = socket.gethostname()
        noted = NotedRun(
            run.run_id, run.tracking_uri, host, node_count, run.own_run, measured_by, True,
            run.workspace,
        )  # fmt: skip
        _write(f"{_REPORTED}{run.run_id}", asdict(noted))


def _write(name: str, told: dict[str, object]) -> None:
    with contextlib.suppress(OSError):
        if _folder is not None:
            fresh = _folder / f".{name}-{os.getpid()}"
            fresh.write_text(dumps(told), encoding="utf-8")
            fresh.replace(_folder / f"{name}{_SUFFIX}")


def read_started_runs(folder: Path | None) -> list[StartedRun]:
    """Return the runs that processes noted in a folder; a damaged note is left out."""
    runs = []
    for path in sorted(folder.glob(f"{_STARTED}*{_SUFFIX}")) if folder is not None else ():
        with contextlib.suppress(OSError, ValueError, TypeError):
            told = loads(path.read_text(encoding="utf-8"))
            runs.append(StartedRun(**{name: told[name] for name in told if name != "host"}))
    return sorted(runs, key=lambda run: run.start_ms)


def read_noted_runs(folder: Path | None) -> list[NotedRun]:
    """Return the runs that processes noted in a folder; the note of a report says most."""
    found: dict[str, NotedRun] = {}
    for kind in (_STARTED, _REPORTED):
        for path in sorted(folder.glob(f"{kind}*{_SUFFIX}")) if folder is not None else ():
            with contextlib.suppress(OSError, ValueError, TypeError):
                told = loads(path.read_text(encoding="utf-8"))
                names = NotedRun.__dataclass_fields__.keys() & told.keys()
                run = NotedRun(**{name: told[name] for name in names})
                found[run.run_id] = run
    return list(found.values())


def find_unseeing_python(folder: Path | None) -> str | None:
    """Return an interpreter that used MLflow without mlflow-perf, whose runs were not noticed."""
    for path in sorted(folder.glob(f"{_UNSEEN}*{_SUFFIX}")) if folder is not None else ():
        with contextlib.suppress(OSError, ValueError):
            return path.read_text(encoding="utf-8")
    return None


def is_reported(folder: Path | None, run_id: str) -> bool:
    """Return whether a process below has sent a report of a run."""
    return folder is not None and (folder / f"{_REPORTED}{run_id}{_SUFFIX}").exists()
