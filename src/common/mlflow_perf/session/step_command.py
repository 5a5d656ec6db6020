"""The command of a pipeline's step, as its runner follows it through a file."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from mlflow_perf.node.step_notes import ENDED_BY_SIGNAL, STARTED_COMMAND, read_stop_note
from mlflow_perf.session.outcome import Outcome


@dataclass(frozen=True)
class StepCommand:
    """Tells the runner when the command of a step began, and how it ended.

    What mlflow-perf itself takes before and after is no time of the step, and the runner may be
    killed meanwhile.

    Args:
        path: The file.
        runner_pid: The runner; default: the parent of this process.
    """

    path: Path
    runner_pid: int = field(default_factory=os.getppid)

    def note_begin(self) -> None:
        """Note that the command begins."""
        self._write(STARTED_COMMAND)

    def note_end(self, end: Outcome) -> None:
        """Note how it ended."""
        self._write(ENDED_BY_SIGNAL if end.status == "KILLED" else end.status)

    @property
    def lives_on(self) -> bool:
        """Whether nobody stops the step: then its exit code counts, whatever signals it got."""
        return self.runner_pid == os.getppid() and read_stop_note() is None

    def _write(self, text: str) -> None:
        with suppress(OSError):
            self.path.write_text(text, encoding="utf-8")
