"""The records of a pipeline's graph."""

from __future__ import annotations

from mlflow_perf.pipelines.graph import Parts, Port, Ref, Step, Value


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
