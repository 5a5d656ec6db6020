"""Figures, counts and lists of names as text."""

from __future__ import annotations

import pytest

from mlflow_perf.core.format import format_change, format_count, join_some


@pytest.mark.parametrize(
    ("change_pct", "text"),
    [
        (12.34, "+12.3%"),
        (-3.0, "-3.0%"),
        (-1e-9, "+0.0%"),
        (-150.4, "-150%"),
        (319.4, "+319%"),
        (4321.0, "×44"),
        (None, "–"),
    ],
)
def test_a_change_has_a_sign(change_pct: float | None, text: str) -> None:
    """A change is read at a glance: a large one is a factor, and none is a dash."""
    assert format_change(change_pct) == text


def test_a_count_has_its_noun() -> None:
    """One is singular, all other counts are plural."""
    assert [format_count(n, "run") for n in (0, 1, 1200)] == ["0 runs", "1 run", "1,200 runs"]


def test_a_long_list_of_names_is_cut() -> None:
    """The first names are shown, and the others are counted."""
    assert join_some([]) == ""
    assert join_some("abcde") == "a, b, c, d, e"
    assert join_some(range(8)) == "0, 1, 2, 3, 4 and 3 more"
    assert join_some("abc", most=2, separator=" / ") == "a / b and 1 more"
