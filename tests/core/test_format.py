"""Figures, counts and lists of names as text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlflow_perf.core.format import (
    clock_time,
    cpu_time,
    duration,
    format_chance,
    format_change,
    format_count,
    join_some,
    number,
    parse_age,
    quantity,
    show_spaces,
)
from mlflow_perf.errors import SettingError


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


def test_a_figure_of_any_size_is_short() -> None:
    """Digits that a float does not have are not printed."""
    assert quantity(1e308, "CPU h") == "1e+308 CPU h"
    assert len(number(-9.99e14)) == len("-999,000,000,000,000")
    assert max(len(quantity(1e308, unit)) for unit in ("MB", "s", "%", "GPU h", "")) < 20


def test_a_count_has_its_noun() -> None:
    """What is shown as 1 is singular, all other counts are plural."""
    assert [format_count(n, "run") for n in (0, 1, 1200)] == ["0 runs", "1 run", "1,200 runs"]
    assert [format_count(n, "CPU") for n in (0.5, 1.0, 0.99)] == ["0.5 CPUs", "1 CPU", "1 CPU"]
    assert [format_count(n, "process") for n in (1, 2)] == ["1 process", "2 processes"]


def test_an_estimated_chance_is_never_certain() -> None:
    """It is rounded down, and from 99% on it is "over 99%"."""
    assert [format_chance(x) for x in (0.0, 0.858, 0.99)] == ["0%", "85%", "99%"]
    assert [format_chance(x) for x in (0.996, 0.99999)] == ["over 99%"] * 2


def test_spaces_that_nobody_sees_are_shown() -> None:
    """At the ends and where several follow each other; a name's single spaces stay."""
    assert show_spaces(" my  load ") == "␣my ␣load␣"
    assert show_spaces("my load") == "my load"


def test_a_long_list_of_names_is_cut() -> None:
    """The first names are shown, and the others are counted."""
    assert join_some([]) == ""
    assert join_some("abcde") == "a, b, c, d, e"
    assert join_some(range(8)) == "0, 1, 2, 3, 4 and 3 more"
    assert join_some("abc", most=2, separator=" / ") == "a / b and 1 more"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (0.0421, "42.1 ms"),
        (12.34, "12.3 s"),
        (59.99, "1 min"),
        (1.86e-7, "186 ns"),
        (1.49e-5, "14.9 µs"),
        (0.00449, "4.49 ms"),
        (245, "4 min 05 s"),
        (3600, "1 h"),
        (7620, "2 h 07 min"),
        (5399, "1 h 30 min"),
        (176_399, "2 d 01 h"),
        (172_799, "2 d"),
        (300_000, "3 d 11 h"),
        (None, "–"),
        (float("nan"), "–"),
    ],
)
def test_durations_read_well(seconds: float | None, text: str) -> None:
    """A length of time has the unit that suits it."""
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (1536.0, "MB", "1.5 GB"),
        (3 * 1024.0**2, "MB", "3 TB"),
        (12.0, "MB", "12 MB"),
        (0.25, "MB", "256 kB"),
        (41.234, "%", "41.2%"),
        (5, "", "5"),
        (250, "ms", "250 ms"),
        (1234567, "", "1\u202f234\u202f567"),
        (float("inf"), "MB", "–"),
    ],
)
def test_quantities_take_the_unit_that_suits_them(value: float, unit: str, text: str) -> None:
    """A figure is shown with three digits and its unit."""
    assert quantity(value, unit) == text


def test_a_short_job_uses_cpu_seconds() -> None:
    """CPU time below a tenth of an hour is shown in CPU-seconds."""
    assert cpu_time(0.0) == "0 CPU s"
    assert cpu_time(0.01) == "36 CPU s"
    assert cpu_time(0.00998 / 3600, whole=0.01) == "0.01 CPU s"
    assert cpu_time(2.06) == "2.06 CPU h"


@given(st.floats())
def test_any_number_has_a_text(value: float) -> None:
    """No number, however odd, breaks a figure."""
    assert number(value)
    assert clock_time(value)


def test_an_age_is_at_most_a_century() -> None:
    """However many digits a person types, the moment fits into every database."""
    assert parse_age("90min") == 5400.0
    assert parse_age("1.5d") == 1.5 * 86_400
    for text in ("200000d", "9" * 400 + "w"):
        assert parse_age(text) == 100 * 365.25 * 86_400
    with pytest.raises(SettingError, match="is no age"):
        parse_age("1e5d")
