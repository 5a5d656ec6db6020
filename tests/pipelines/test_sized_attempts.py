"""A step that needs more memory than it was given."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mlflow_perf.pipelines import step as step_module
from mlflow_perf.pipelines.graph import Step
from mlflow_perf.pipelines.memory_group import limit_memory
from mlflow_perf.pipelines.sized_attempts import SizedAttempts
from mlflow_perf.pipelines.step import run_step
from mlflow_perf.pipelines.step_job import StepJob
from mlflow_perf.pipelines.step_outcome import StepEndedError
from mlflow_perf.pipelines.step_sizes import StepSize
from mlflow_perf.publish.workflow_writer import Place

EAT = f"{sys.executable} -c 'b = bytearray(160 << 20); print(len(b))'"


class _NoStore:
    """Remembers how the run ended."""

    ended: tuple[str, dict[str, str]] = ("", {})

    def __init__(self, _place: Place) -> None:
        pass

    def start(self, *_: Any, **__: Any) -> str:
        return "the-run"

    def __getattr__(self, _name: str) -> Any:
        return lambda *_, **__: False

    def end(
        self, _run: str, status: str, *, tags: Mapping[str, str] | None = None, ended: float = 0.0
    ) -> None:
        _NoStore.ended = status, dict(tags or {})


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StepJob:
    """A step that takes 160 MB, in a machine where groups can be made."""
    with limit_memory(100.0) as group:
        if group is None:
            pytest.skip("no control group for memory can be made here")
    monkeypatch.setattr(step_module, "Tracking", _NoStore)
    return StepJob(
        step=Step("fit", "fit", EAT, None),
        folder=tmp_path / "fit",
        outputs=(),
        stop=tmp_path / "stop",
        place=Place(f"sqlite:///{tmp_path}/x.db"),
        experiment_id="1",
        parent="parent",
        size=StepSize(memory_mb=80, cpus=1, method="a test", budget_mb=2000.0),
    )


def test_a_killed_step_is_tried_again_with_more(job: StepJob) -> None:
    """The kernel kills it at 80 and at 160 MB, and 320 are enough; no retry was asked for."""
    outcome = run_step(job)
    assert (outcome.status, outcome.attempts) == ("FINISHED", 3)
    status, tags = _NoStore.ended
    assert (status, tags["mlflow_perf.attempts"]) == ("FINISHED", "3")
    assert tags["mlflow_perf.sizes_mb"] == "80,160,320"


def test_a_step_that_the_machine_cannot_hold_fails_and_says_so(job: StepJob) -> None:
    """With all that there is it was killed: another try would end the same way."""
    small = StepSize(memory_mb=80, cpus=1, budget_mb=120.0)
    with pytest.raises(StepEndedError) as failed:
        run_step(replace(job, size=small))
    assert failed.value.outcome.attempts == 2
    assert "had 120 MB, all that this machine has" in failed.value.outcome.message


def test_another_failure_is_not_taken_for_a_lack_of_memory(job: StepJob) -> None:
    """A step that ends with 137 by itself is not repeated."""
    failing = replace(job.step, command="exit 137")
    with pytest.raises(StepEndedError) as failed:
        run_step(replace(job, step=failing))
    assert failed.value.outcome.attempts == 1


def test_a_step_that_hides_a_kill_at_its_size_is_tried_again(job: StepJob) -> None:
    """Its command ends with 0, but without what the killed process was to give it."""
    hiding = replace(job.step, command=f"({EAT}) || true; echo done")
    outcome = run_step(replace(job, step=hiding))
    assert (outcome.status, outcome.attempts) == ("FINISHED", 3)
    small = StepSize(memory_mb=80, cpus=1, budget_mb=120.0)
    with pytest.raises(StepEndedError) as failed:
        run_step(replace(job, step=hiding, size=small, folder=job.folder / "again"))
    told = failed.value.outcome.message
    assert told.startswith("a process of it was killed at the step's size of 120 MB; ")


def test_the_seventh_attempt_has_all_of_the_machine(tmp_path: Path) -> None:
    """A size learned from toy data is no bound, and doubling it for ever would take days."""
    tiny = StepSize(memory_mb=1, cpus=1, budget_mb=2000.0)
    with SizedAttempts(tiny, tmp_path, tmp_path / "stop") as sized:
        why_not = ""
        while not why_not:
            with sized.limit(()):
                pass
            why_not = sized.grow()
    assert sized.sizes_mb == [1, 2, 4, 8, 16, 32, 2000]
    assert why_not == "it had 2,000 MB, all that this machine has for it"
