"""Notes by which a process reports the MLflow runs that it started to the session above it.

A process below a session finds the session's spool folder in its environment, and leaves one file
for each run there. This module imports no other library, because `import mlflow` loads it.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import asdict
from pathlib import Path

from mlflow_perf.core.plain_json import dumps, loads
from mlflow_perf.core.uris import absolute_store
from mlflow_perf.tracking.run_events import StartedRun, listen

# The spool folder removes files with its own suffix, and reads none with these names.
_STARTED, _REPORTED, _UNSEEN, _SUFFIX = "run-", "reported-", "unseen-", ".spool"
_folder: Path | None = None


class _Noter:
    """Hears of the runs of this process."""

    def run_started(self, run: StartedRun) -> None:
        """Leave a note of a run."""
        told = {**asdict(run), "tracking_uri": absolute_store(run.tracking_uri)}
        _write(f"{_STARTED}{run.run_id}", told)

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


def note_reported(run_id: str | None) -> None:
    """Leave a note that this process has sent a report of a run, where somebody above asks."""
    if run_id is not None:
        _write(f"{_REPORTED}{run_id}", {})


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
            runs.append(StartedRun(**loads(path.read_text(encoding="utf-8"))))
    return sorted(runs, key=lambda run: run.start_ms)


def find_unseeing_python(folder: Path | None) -> str | None:
    """Return an interpreter that used MLflow without mlflow-perf, whose runs were not noticed."""
    for path in sorted(folder.glob(f"{_UNSEEN}*{_SUFFIX}")) if folder is not None else ():
        with contextlib.suppress(OSError, ValueError):
            return path.read_text(encoding="utf-8")
    return None


def is_reported(folder: Path | None, run_id: str) -> bool:
    """Return whether a process below has sent a report of a run."""
    return folder is not None and (folder / f"{_REPORTED}{run_id}{_SUFFIX}").exists()
