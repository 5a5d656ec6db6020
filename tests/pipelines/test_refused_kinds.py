"""Kinds of steps that cannot run here are refused with an alternative."""

from __future__ import annotations

import pytest

from mlflow_perf.pipelines.refused_kinds import CONTROL_FLOW, explain_refusal


@pytest.mark.parametrize(
    ("kind", "told"),
    [
        ("spark", "is of type spark, which needs a Spark cluster: start Spark from a command"),
        ("if_else", "is of type if_else, which is control flow: name the branch that is to run"),
        ("new", "is of type new, which is no command: use a command"),
    ],
)
def test_a_kind_is_refused_with_an_alternative(kind: str, told: str) -> None:
    assert explain_refusal(kind) == told


def test_control_flow_has_three_kinds() -> None:
    assert set(CONTROL_FLOW) == {"parallel_for", "if_else", "do_while"}
