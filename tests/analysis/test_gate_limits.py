"""Limits: how their text is read, and which values they allow."""

from __future__ import annotations

import pytest

from mlflow_perf.analysis.gate_limits import parse_limit
from mlflow_perf.errors import SettingError


@pytest.mark.parametrize(
    ("text", "base", "bound", "good", "bad"),
    [
        ("node_cpu_hours=+10%", 2.0, 2.2, 2.2, 2.21),
        ("cpu_avg_utilization_pct=-10%", 50.0, 45.0, 45.0, 44.9),
        ("node_cpu_hours=+5", 2.0, 7.0, 7.0, 7.1),
        ("node_cpu_hours=-0.5", 2.0, 1.5, 1.6, 1.4),
        ("max_t_mem_percent=90", None, 90.0, 90.0, 90.1),
        ("cpu_avg_utilization_pct=60", None, 60.0, 61.0, 59.0),
        ("rows>=1e3", None, 1000.0, 1000.0, 999.0),
        ("cpu_avg_utilization_pct <= 60", None, 60.0, 59.0, 61.0),
        ("x=+10%", -10.0, -9.0, -9.5, -8.0),
    ],
)
def test_a_limit_says_how_far_a_value_may_go(
    text: str, base: float | None, bound: float, good: float, bad: float
) -> None:
    """A sign is relative to the base; a plain value bounds the metric's worse side."""
    limit = parse_limit(text)
    found = limit.bound(base)
    assert found == pytest.approx(bound)
    assert limit.holds(good, found or 0.0)
    assert not limit.holds(bad, found or 0.0)


def test_a_limit_may_be_for_one_step() -> None:
    """`STEP:KEY` names the step."""
    limit = parse_limit("train:node_cpu_hours=+10%")
    assert (limit.step, limit.key) == ("train", "node_cpu_hours")


@pytest.mark.parametrize(
    "text",
    [
        "node_cpu_hours",
        "=+10%",
        "x=",
        "x=10%",
        "x=+ten%",
        "x<=+5",
        "x=1e999",
        "x==3",
        ":x=1",
        "a:=1",
    ],
)
def test_a_text_that_is_no_limit_is_an_error(text: str) -> None:
    """A limit that cannot be read never passes quietly."""
    with pytest.raises(SettingError, match="limit"):
        parse_limit(text)
