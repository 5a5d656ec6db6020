"""Literals against their declaration, and commands filled in."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mlflow_perf.errors import PipelineError
from mlflow_perf.pipelines.graph import Port
from mlflow_perf.pipelines.values import (
    check_literal,
    fill_command,
    format_literal,
    parse_literal,
    suggest_name,
)


@pytest.mark.parametrize(
    ("text", "kind", "value"),
    [
        ("3", "integer", 3),
        ("-3", "integer", -3),
        ("2.5", "number", 2.5),
        ("1e3", "number", 1000.0),
        ("true", "boolean", True),
        ("False", "boolean", False),
        ("x=y", "string", "x=y"),
    ],
)
def test_texts_become_values_of_their_type(text: str, kind: str, value: object) -> None:
    """What a person types is read as the declared type."""
    assert parse_literal(text, kind, where="it") == value


@pytest.mark.parametrize(("text", "kind"), [("3.5", "integer"), ("x", "number"), ("2", "boolean")])
def test_a_text_of_another_type_is_refused(text: str, kind: str) -> None:
    """The message says what was typed."""
    with pytest.raises(PipelineError, match="it is"):
        parse_literal(text, kind, where="it")


@given(st.integers(-100, 100), st.integers(-50, 50), st.integers(-50, 50))
def test_bounds_include_their_ends(value: int, low: int, high: int) -> None:
    """A number passes if and only if it lies between its minimum and maximum."""
    port = Port("n", "integer", minimum=low, maximum=high)
    if low <= value <= high:
        assert check_literal(value, port, where="n") == value
    else:
        with pytest.raises(PipelineError, match=r"minimum|maximum"):
            check_literal(value, port, where="n")


_KINDS = {bool: "boolean", int: "integer", float: "number"}


@given(st.one_of(st.integers(), st.booleans(), st.floats(allow_nan=False, allow_infinity=False)))
@example(2**53 + 1)  # whole, and no float
def test_a_literal_survives_its_text(value: float | bool) -> None:
    """The text of a literal in a command reads back as the literal."""
    assert parse_literal(format_literal(value), _KINDS[type(value)], where="it") == value


@pytest.mark.parametrize("value", [True, False, 3, 0.5, "a b"])
def test_a_literal_is_written_as_azure_ml_gets_it(value: float | str) -> None:
    """A script that compares the texts `True` and `False` works the same here and on Azure ML."""
    from azure.ai.ml.entities._job._input_output_helpers import to_rest_dataset_literal_inputs

    sent: Any = to_rest_dataset_literal_inputs({"it": value}, job_type="command")["it"]
    assert format_literal(value) == sent.value


def test_a_number_that_is_none_is_refused() -> None:
    """NaN and infinity reach no command."""
    with pytest.raises(PipelineError, match="finite"):
        check_literal(float("nan"), Port("n", "number"), where="n")


def test_places_are_filled_and_optional_parts_left_out() -> None:
    """A part in $[[…]] is removed if its input is not given."""
    command = "run ${{inputs.a}} $[[--b ${{inputs.b}}]] $[[--c ${{inputs.c}}]] > ${{outputs.o}}"
    filled = fill_command(command, inputs={"a": "1", "b": None, "c": "x"}, outputs={"o": "/o"})
    assert filled.split() == ["run", "1", "--c", "x", ">", "/o"]


def test_a_name_that_does_not_exist_is_named_with_the_nearest() -> None:
    """A typing error in a component's command is found before it runs."""
    with pytest.raises(PipelineError, match=r"inputs\.rwos.*did you mean 'rows'"):
        fill_command("x ${{inputs.rwos}}", inputs={"rows": "1"}, outputs={})


def test_an_optional_input_outside_of_brackets_is_refused() -> None:
    """A command that needs an input which may be missing says where to put it."""
    with pytest.raises(PipelineError, match=r"\$\[\["):
        fill_command("x ${{inputs.a}}", inputs={"a": None}, outputs={})


def test_where_nothing_is_near_all_names_are_told() -> None:
    """A message never leaves its reader without the names there are."""
    assert suggest_name("zzz", ["rows", "kind"]) == " (there is: kind, rows)"
    assert suggest_name("zzz", []) == " (there is none)"


@pytest.mark.parametrize("used", ["parent.inputs.x", "x", "search_space.x", "inputs"])
def test_a_command_names_inputs_and_outputs_alone(used: str) -> None:
    """Else the shell would fail at it, after the steps before it have run."""
    with pytest.raises(PipelineError, match=re.escape(f"uses ${{{{{used}}}}}, but only inputs")):
        fill_command(f"echo ${{{{{used}}}}} ${{{{inputs.x}}}}", inputs={"x": "1"}, outputs={})


def test_a_command_has_no_character_that_no_program_can_be_given() -> None:
    """Else starting it fails, and its worker seems to be lost."""
    with pytest.raises(PipelineError, match="NUL"):
        fill_command("echo \0", inputs={}, outputs={})
