"""Bindings inside a pipeline: literals, paths, and references inside texts."""

from __future__ import annotations

from pathlib import Path

import pytest

from mlflow_perf.errors import PipelineError
from mlflow_perf.pipelines.bindings import Scope, find_bindings, flatten_inputs, resolve_value
from mlflow_perf.pipelines.graph import Parts, Ref

SCOPE = Scope(
    "",
    Path(),
    inputs={"rows": 3, "name": "x", "data": Path("/raw")},
    outputs={"fit": {"model": Ref("fit", "model")}},
)
ROWS = "${{parent.inputs.rows}}"
MODEL = "${{ parent.jobs.fit.outputs.model }}"


@pytest.mark.parametrize(
    ("data", "value"),
    [
        (None, None),
        (True, True),
        (0.5, 0.5),
        ("plain", "plain"),
        (ROWS, 3),
        (MODEL, Ref("fit", "model")),
        (f"{ROWS} of {ROWS}", "3 of 3"),
        (f"--in={MODEL}", Parts(("--in=", Ref("fit", "model")))),
    ],
)
def test_data_becomes_a_value(data: object, value: object) -> None:
    """A binding alone keeps its type; within a text it becomes text, or a part of one."""
    assert resolve_value(data, SCOPE, "Step 'a'") == value


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ("${{parent.inputs.rwos}}", "Step 'a' uses the pipeline input rwos, which does not exist"),
        ("${{parent.jobs.fit.outputs.modle}}", "output modle of fit, .*did you mean 'model'"),
        ("${{parent.job.fit}}", "uses parent.job.fit: a binding is parent.inputs.NAME or"),
        ("${{parent.jobs.fit}}", "uses parent.jobs.fit: a binding is parent.inputs.NAME or"),
        ("in ${{parent.inputs.data}}", "inserts an input into a text, but it has no plain value"),
    ],
)
def test_a_wrong_binding_is_named(data: str, message: str) -> None:
    """The message names the step and the binding."""
    with pytest.raises(PipelineError, match=message):
        resolve_value(data, SCOPE, "Step 'a'")


def test_bindings_are_found_in_order() -> None:
    """Each binding of a text is found, without its braces."""
    found = find_bindings(f"{ROWS} {MODEL}")
    assert found == ["parent.inputs.rows", "parent.jobs.fit.outputs.model"]


def test_groups_are_flattened() -> None:
    """Members of nested groups are joined with dots."""
    assert dict(flatten_inputs({"a": 1, "g": {"b": 2, "h": {"c": 3}}})) == {
        "a": 1, "g.b": 2, "g.h.c": 3,
    }  # fmt: skip
