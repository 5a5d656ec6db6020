"""The command of a pipeline's step, as its runner follows it through a file."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from mlflow_perf.node.step_notes import ENDED_BY_SIGNAL, STARTED_COMMAND, read_stop_note
from mlflow_perf.session.outcome import Outcome


@dataclass
class StepCommand:
    """Tells the runner when the command of a step began, and how it ended.

    What mlflow-perf itself takes before and after is no time of the step, and the runner may be
    killed meanwhile.

    Args:
        path: The file; None where several commands are the step's.
        heeds_stop: Whether to end the command when the runner notes that the step is to end.
            `srun`, which the runner can reach on its own node, would kill it without a signal
            before.
        runner_pid: The runner; default: the parent of this process.
    """

    path: Path | None
    heeds_stop: bool = False
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
        is_asked = self.runner_pid != os.getppid() or read_stop_note() is not None
        return self.path is not None and not is_asked

    def look(self) -> None:
        """Look whether the step is to end; called about every second while the command runs."""
        if self.heeds_stop and read_stop_note() is not None:
            self.heeds_stop = False
            # Not the process group, which `srun` makes of all ranks of a node: each would be told
            # by each. And not the command alone: a shell waits for its program before it acts.
            for process in psutil.Process().children(recursive=True):
                with suppress(psutil.Error):
                    process.terminate()

    def _write(self, text: str) -> None:
        with suppress(OSError):
            if self.path is not None:
                self.path.write_text(text, encoding="utf-8")
