"""Plots as data: scales and their marks."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlflow_perf.web.plots import Scale

_values = st.lists(st.floats(-1e12, 1e12), min_size=1, max_size=20)


@given(_values, st.booleans(), st.booleans())
def test_all_values_are_inside(values: list[float], is_log: bool, from_zero: bool) -> None:
    """Every value has a place from 0 to 100%, and so has every mark."""
    scale = Scale.over(values, is_log=is_log, from_zero=from_zero)
    places = [scale.place(v) for v in values] + [tick.at for tick in scale.mark()]
    assert all(-0.01 <= place <= 100.01 for place in places)


@pytest.mark.parametrize("values", [[5e-324], [5e-324, 1e-300], [1e149, -1e149], [-5e-324]])
@pytest.mark.parametrize("is_log", [True, False])
def test_the_least_and_the_largest_figures_have_a_scale(values: list[float], is_log: bool) -> None:
    """No ratio and no difference of figures is beyond the floats."""
    scale = Scale.over(values, is_log=is_log)
    places = [scale.place(v) for v in values] + [tick.at for tick in scale.mark()]
    assert all(-0.01 <= place <= 100.01 for place in places)


@pytest.mark.parametrize(
    ("scale", "unit", "texts"),
    [
        (Scale(0.0, 240.0), "s", ["0 s", "1 min", "2 min", "3 min", "4 min"]),
        (Scale(0.0, 5.0), "", ["0", "1", "2", "3", "4", "5"]),
        (Scale(1.0, 1000.0, is_log=True), "", ["1", "10", "100", "1,000"]),
        (Scale(0.0, 4 * 86400.0), "time", ["Jan 01", "Jan 02", "Jan 03", "Jan 04", "Jan 05"]),
        (
            Scale(0.0, 43 * 3600.0),
            "time",
            ["Jan 01 00:00", "Jan 01 12:00", "Jan 02 00:00", "Jan 02 12:00"],
        ),
        (Scale(100.0, 100.4), "", ["100"]),  # the same text twice would tell nothing
        (Scale(0.0, 90.0), "time", ["00:00", "00:01"]),
    ],
)
def test_marks_are_round(scale: Scale, unit: str, texts: list[str]) -> None:
    """Times have marks at whole minutes and days, figures at 1, 2 and 5."""
    assert [tick.text for tick in scale.mark(unit)] == texts
