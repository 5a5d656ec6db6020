"""The records of a pipeline's graph."""

from __future__ import annotations

from mlflow_perf.pipelines.graph import Graph, Parts, Port, Ref, Step, Value


def _make_step(name: str, **values: Value) -> Step:
    return Step(name, "c", "x", None, values=values)


def test_a_step_needs_the_steps_that_it_refers_to() -> None:
    """References count directly and inside a text, each step once."""
    parts = Parts(("in ", Ref("a", "out")))
    step = _make_step("c", text=parts, data=Ref("b", "out"), again=Ref("a", "one"), rows=3)
    assert step.needs == ("a", "b")


def test_dependants_include_the_indirect_ones() -> None:
    """They come in the order of the graph, without the step itself."""
    steps = [
        _make_step("a"),
        _make_step("b", data=Ref("a", "out")),
        _make_step("c"),
        _make_step("d", data=Ref("b", "out")),
    ]
    graph = Graph("g", "g", "e", {step.name: step for step in steps})
    assert graph.dependants("a") == ["b", "d"]
    assert graph.dependants("c") == []


def test_ranks_are_those_of_all_nodes() -> None:
    """A step has one process per node and rank."""
    assert Step("a", "c", "x", None, instances=3, processes=2).ranks == 6


def test_files_and_folders_are_paths() -> None:
    """A model is a path too; a literal is not."""
    assert Port("p", "mlflow_model").is_path
    assert not Port("p", "string").is_path
