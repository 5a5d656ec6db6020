"""The records of a pipeline's graph."""

from __future__ import annotations

import pytest

from mlflow_perf.errors import SettingError
from mlflow_perf.pipelines.graph import Graph, Parts, Port, Ref, Step, Value, check_settings


def _make_step(name: str, **values: Value) -> Step:
    return Step(name, "c", "x", None, values=values)


def test_a_step_needs_the_steps_that_it_refers_to() -> None:
    """References count directly and inside a text, each step once."""
    parts = Parts(("in ", Ref("a", "out")))
    step = _make_step("c", text=parts, data=Ref("b", "out"), again=Ref("a", "one"), rows=3)
    assert step.needs == ("a", "b")


def test_ranks_are_those_of_all_nodes() -> None:
    """A step has one process per node and rank."""
    assert Step("a", "c", "x", None, instances=3, processes=2).ranks == 6


def test_files_and_folders_are_paths() -> None:
    """A model is a path too; a literal is not."""
    assert Port("p", "mlflow_model").is_path
    assert not Port("p", "string").is_path


def test_a_wrong_setting_is_told_before_a_step_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """What measures a step would refuse it, and the step would fail without having run."""
    step = Step("a", "c", "x", None, environment={"MLFLOW_PERF_INTERVAL": "soon"})
    graph = Graph("g", "g", "e", {"b": _make_step("b"), "a": step})
    with pytest.raises(SettingError, match="Step 'a': MLFLOW_PERF_INTERVAL is 'soon'"):
        check_settings([graph])
    monkeypatch.setenv("MLFLOW_PERF_QUIET", "maybe")
    with pytest.raises(SettingError, match=r"^MLFLOW_PERF_QUIET is 'maybe'"):
        check_settings([graph])
    monkeypatch.delenv("MLFLOW_PERF_QUIET")
    step.environment["MLFLOW_PERF_INTERVAL"] = "0.5"
    check_settings([graph])


@pytest.mark.parametrize(("name", "value"), [("", "x"), ("A=B", "x"), ("A\0", "x"), ("A", "x\0")])
def test_a_variable_that_no_program_can_have_is_told_before_a_step_runs(
    name: str, value: str
) -> None:
    """Python would refuse to start the step, which looked as if its worker had been lost."""
    step = Step("a", "c", "x", None, environment={name: value})
    with pytest.raises(SettingError, match="Step 'a': no program can be given the environment"):
        check_settings([Graph("g", "g", "e", {"a": step})])
