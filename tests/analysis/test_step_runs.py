"""Sides of a comparison: which runs they name, and on which hardware these ran."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import copy_context
from dataclasses import replace

import pytest

from mlflow_perf.analysis.gate import check
from mlflow_perf.analysis.step_runs import (
    StepRuns,
    find_same_hardware,
    load_step_runs,
    name_steps,
    split_step,
)
from mlflow_perf.errors import RunNotFoundError
from mlflow_perf.model.document import NodeDocument, PerfDocument
from mlflow_perf.tracking.notices import tell
from mlflow_perf.tracking.perf_run import PerfRun

MakeRun = Callable[..., PerfRun]


def test_history_is_taken_from_the_same_hardware(make_run: MakeRun) -> None:
    """Runs on equal hardware are found, in their order; without any, it is an error."""
    new = make_run({"a": 1.0}, label="new", facts={"cpu_count": 8})
    like = [make_run({"a": 1.0}, label=f"like{i}", facts={"cpu_count": 8}) for i in range(3)]
    other = make_run({"a": 1.0}, label="other", facts={"cpu_count": 4})
    assert [run.label for run in find_same_hardware([other, *like], new)] == [
        "like0",
        "like1",
        "like2",
    ]
    with pytest.raises(RunNotFoundError, match="None of 1 run "):
        find_same_hardware([other], new)


@pytest.mark.parametrize(
    ("one", "other", "alike"),
    [(64_449.0, 64_551.0, True), (100_000.0, 104_000.0, False), (2048.0, 2048.0, True)],
)
def test_memory_within_one_per_cent_is_that_of_one_kind(
    make_run: MakeRun, one: float, other: float, alike: bool
) -> None:
    """The memory that the kernel keeps does not make other hardware; a difference of 4% does."""
    old, new = (make_run({"a": 1.0}, facts={"mem_total_mb": size}) for size in (one, other))
    assert any("hardware" in note for note in check([old], [new], ["a=+10%"]).notes) != alike
    if alike:
        assert find_same_hardware([old], new) == [old]


def test_a_repeated_step_is_numbered(make_run: MakeRun) -> None:
    """Two runs of one component are two steps."""
    runs = [make_run({"a": 1.0}) for _ in range(3)]
    assert list(name_steps(runs)) == ["train", "train (2)", "train (3)"]


def test_a_number_that_a_step_has_itself_is_not_given_again(make_run: MakeRun) -> None:
    """A step that is called like the numbered one keeps all names different."""
    names = ["a", "a (2)", "a", "a (2)", "a"]
    runs = [make_run({"a": 1.0}, tags={"mlflow_perf.step": name}) for name in names]
    assert list(name_steps(runs)) == ["a", "a (2)", "a (3)", "a (2) (2)", "a (4)"]


@pytest.mark.parametrize("whole", ["FINISHED", "FAILED"])
def test_an_attempt_that_was_tried_again_is_not_compared(make_run: MakeRun, whole: str) -> None:
    """Of a workflow that ended well, the last attempt of each task counts."""

    def attempt(name: str, status: str, began: float, value: float) -> PerfRun:
        run = make_run({"a": value}, component="C", started=began, ended=began + 10.0)
        return replace(run, name=name, status=status)

    def flow(label: str, *runs: PerfRun) -> StepRuns:
        parent = PerfRun(label, run_id=label, status=whole)
        return StepRuns(label, parent, name_steps(runs))

    other = attempt("C (2)", "FINISHED", 0.0, 2.0)
    once = flow("once", attempt("C (1)", "FINISHED", 0.0, 1.0), other)
    first, last = attempt("C (1)", "FAILED", 0.0, 9.0), attempt("C (1)", "FINISHED", 20.0, 1.0)
    twice = flow("twice", first, last, other)
    result = check([once], [twice], ["a=+10%"])
    assert result.passed == (whole == "FINISHED")
    if result.passed:
        assert result.notes[0].startswith("twice: left out 1 failed attempt")
        assert {one.step: one.new for one in result.checks} == {"C": (1.0,), "C (2)": (2.0,)}
    in_vain = replace(last, status="FAILED")
    assert not check([once], [flow("vain", first, in_vain, other)], ["a=+10%"]).passed


def test_only_children_with_figures_are_steps(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A parent without figures is replaced by its children that have figures."""
    found = [make_run({"a": 1.0}, component="prepare"), PerfRun("empty", run_id="e")]
    monkeypatch.setattr("mlflow_perf.analysis.step_runs.find_children", lambda run, **_: found)
    (side,) = load_step_runs([PerfRun("flow", run_id="f")])
    assert list(side.steps) == ["prepare"]
    assert side.is_workflow
    assert side.name_step("prepare") == "prepare of flow"


def test_steps_that_cannot_be_read_are_warned_of(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever may read only some of a workflow's experiments learns that others exist."""
    found = [make_run({"a": 1.0}, component="prepare")]
    monkeypatch.setattr("mlflow_perf.analysis.step_runs.find_children", lambda run, **_: found)

    def load_with(count: int) -> list[str]:
        told: list[str] = []
        tell.set(told.append)
        load_step_runs([PerfRun("flow", run_id="f", tags={"mlflow_perf.step_count": str(count)})])
        return told

    assert copy_context().run(load_with, 1) == []
    (said,) = copy_context().run(load_with, 3)
    assert said.startswith("flow: 2 of 3 steps cannot be read: deleted, or in an experiment that")


def test_a_measured_parent_is_no_step_of_its_workflow(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Steps have the numbers that `show` gives them; a gate judges the parent too."""
    parent = make_run({"a": 9.0}, label="flow")
    found = [PerfRun("train", run_id="r", component="train"), make_run({"a": 1.0}, label="child")]
    monkeypatch.setattr("mlflow_perf.analysis.step_runs.find_children", lambda run, **_: found)
    (side,) = load_step_runs([parent])
    assert {name: run.label for name, run in side.steps.items()} == {"train (2)": "child"}
    assert side.is_workflow
    (side,) = load_step_runs([parent], with_parent=True)
    assert side.steps["train"] is parent
    assert len(side.steps) == 2


def test_many_runs_with_figures_are_not_searched_for_children(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each search is a request, so of many runs only those without figures are searched."""
    searched: list[str] = []

    def search(run: PerfRun, **_: object) -> list[PerfRun]:
        searched.append(run.label)
        return [make_run({"a": 1.0})]

    monkeypatch.setattr("mlflow_perf.analysis.step_runs.find_children", search)
    load_step_runs([*(make_run({"a": 1.0}) for _ in range(30)), PerfRun("flow", run_id="f")])
    assert searched == ["flow"]


@pytest.mark.parametrize(("tag", "whole"), [("mlflow_perf.step", True), ("mlflow_perf.x", False)])
def test_a_pipelines_step_is_more_than_its_first_block(tag: str, whole: bool) -> None:
    """Its script survived the exception of one block, and worked on after all of them."""
    blocks = [
        PerfDocument(
            {0: NodeDocument(component=name, status=status, started=9.0, duration_sec=1.0)}
        )
        for name, status in (("load", "FAILED"), ("fit", "FINISHED"))
    ]
    blocks[0].components["fit"] = blocks[1]
    run = PerfRun(
        "run", component="load", status="FINISHED", started=1.0, ended=60.0,
        document=blocks[0], tags={tag: "train"},
    )  # fmt: skip
    first, second = split_step(run)
    assert (first.status, first.ended) == (("FINISHED", 60.0) if whole else ("FAILED", 10.0))
    assert (second.component, second.status, second.ended) == ("fit", "FINISHED", 10.0)
