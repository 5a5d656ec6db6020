"""How a step of a pipeline ended."""

from __future__ import annotations

import pickle
from pathlib import Path

from mlflow_perf.pipelines.step_outcome import Outcome, StepEndedError


def test_it_ends_with_its_command() -> None:
    """However long MLflow takes for its report after that."""
    assert Outcome("fit", "FINISHED", started=100.0, duration_sec=2.5).ended == 102.5


def test_what_a_step_tells_of_itself_names_its_logs() -> None:
    """Else only the runner tells of it."""
    assert Outcome("fit", "FAILED").is_lost
    assert not Outcome("fit", "FAILED", log=Path("logs")).is_lost


def test_it_comes_from_another_process() -> None:
    """The executor pickles what a step raises."""
    error = pickle.loads(pickle.dumps(StepEndedError(Outcome("fit", "FAILED", "broke"))))
    assert error.outcome == Outcome("fit", "FAILED", "broke")
