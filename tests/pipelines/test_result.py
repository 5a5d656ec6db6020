"""How a pipeline ended, as an error."""

from __future__ import annotations

from pathlib import Path

import pytest

from mlflow_perf.errors import StepFailedError
from mlflow_perf.pipelines.result import Result
from mlflow_perf.pipelines.step_outcome import Outcome


@pytest.mark.parametrize(("status", "step"), [("KILLED", ""), ("FAILED", "fit")])
def test_a_result_raises_for_its_status(status: str, step: str, tmp_path: Path) -> None:
    """A pipeline that did not finish raises an error that names its failed steps and logs."""
    outcome = Outcome("fit", "FAILED", "broke", log=tmp_path)
    steps = {"fit": outcome} if step else {}
    message = f"Step 'fit' failed: broke. Its log: {tmp_path}" if step else "Stopped by an interr"
    with pytest.raises(StepFailedError, match=message) as caught:
        Result("r", "1", status, steps=steps).raise_for_status()
    assert caught.value.step == step
    Result("r", "1", "FINISHED").raise_for_status()


def test_a_pipeline_of_which_no_step_began_says_why() -> None:
    """What runs the steps was lost: no step failed, and each says the same."""
    skipped = {n: Outcome(n, "SKIPPED", "not run because the interchange ended") for n in "ab"}
    with pytest.raises(StepFailedError) as caught:
        Result("r", "1", "FAILED", steps=skipped).raise_for_status()
    assert str(caught.value) == "not run because the interchange ended"
