"""How a step of a pipeline ended."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from mlflow_perf.node.exit_cause import End


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a step ended.

    Attributes:
        name: Name of the step.
        status: `FINISHED`, `FAILED`, `KILLED` or `SKIPPED`.
        message: What went wrong, in one sentence; empty if nothing did.
        run_id: Its MLflow run; None if no run was started.
        started: Unix time of its start.
        duration_sec: How long it took.
        attempts: How often it was tried.
        log: Folder of its logs.
        tags: More facts about the attempts: their sizes.
        reported: Whether the step reported itself; else the runner measured it.
        end: How its command ended by itself, in the latest attempt; None where a signal or the
            runner ended it, and where a launcher started it.
        is_logged: Whether MLflow took all that was asked of it.
    """

    name: str
    status: str
    message: str = ""
    run_id: str | None = None
    started: float = 0.0
    duration_sec: float = 0.0
    attempts: int = 1
    log: Path | None = None
    tags: dict[str, str] = field(default_factory=dict)
    reported: bool = False
    end: End | None = None
    is_logged: bool = True

    @property
    def ended(self) -> float:
        """Unix time of its end, from which on MLflow may have been asked for long."""
        return self.started + self.duration_sec

    @property
    def is_lost(self) -> bool:
        """Whether only the runner tells of it: no worker took it, or the worker was lost.

        What a step tells of itself names its logs.
        """
        return self.log is None


class StepEndedError(Exception):
    """A step did not finish, so its dependants are not run; its argument is the outcome."""

    @property
    def outcome(self) -> Outcome:
        """Return how the step ended."""
        found: Outcome = self.args[0]
        return found
