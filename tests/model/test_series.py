"""The bounded series: rows are merged evenly, and nothing that matters is lost."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlflow_perf.errors import SettingError
from mlflow_perf.model.series import BoundedSeries

values = st.floats(-1e6, 1e6)


def filled(levels: list[float], max_length: int) -> BoundedSeries:
    """Return a series of a gauge and a counter, one report per second."""
    series = BoundedSeries(max_length)
    for second, level in enumerate(levels):
        series.append(
            {"elapsed_sec": float(second), "mem_percent": level, "disk_io_read_mb": second * 2.0}
        )
    return series


@given(st.lists(values, min_size=1, max_size=300), st.integers(1, 40))
def test_bound_ends_and_peaks_survive(levels: list[float], max_length: int) -> None:
    """Rows never exceed the bound; the first and the last row and every peak stay."""
    series = filled(levels, max_length)
    rows = series.rows()
    assert len(rows) == len(series) <= max_length + max_length % 2
    assert rows[0]["mem_percent"] == levels[0]
    assert rows[-1]["elapsed_sec"] == len(levels) - 1
    assert rows[-1]["disk_io_read_mb"] == 2.0 * (len(levels) - 1)
    peaks = [row.get("mem_percent_max", row["mem_percent"]) for row in rows]
    assert max(peaks) == max(levels)
    if max_length > 2:
        assert rows[-1]["mem_percent"] == levels[-1]


@given(st.lists(values, min_size=2, max_size=300), st.integers(3, 40))
def test_the_time_weighted_mean_stays(levels: list[float], max_length: int) -> None:
    """Merging keeps the integral of a gauge over time."""
    rows = filled(levels, max_length).rows()
    before, integral = 0.0, 0.0
    for row in rows[1:]:
        integral += row["mem_percent"] * (row["elapsed_sec"] - before)
        before = row["elapsed_sec"]
    assert integral == pytest.approx(sum(levels[1:]), abs=1e-3)


def test_5000_reports_with_one_spike() -> None:
    """5,000 reports with one spike keep the spike, the first and the last in 1,000 rows."""
    levels = [10.0] * 5000
    levels[2345] = 99.0
    rows = filled(levels, 1000).rows()
    assert len(rows) <= 1000
    assert max(row["mem_percent_max"] for row in rows) == 99.0
    assert (rows[0]["elapsed_sec"], rows[-1]["elapsed_sec"]) == (0.0, 4999.0)


def test_rows_between_the_ends_are_evenly_spaced() -> None:
    """Every merged row but the newest covers the same time."""
    rows = filled([1.0] * 3001, 100).rows()
    times = [row["elapsed_sec"] for row in rows]
    steps = {round(b - a, 6) for a, b in pairwise(times[1:-2])}
    assert len(steps) == 1


def test_seven_hundred_thousand_reports_take_no_more_room() -> None:
    """The arrays stop growing at the bound."""
    series = BoundedSeries(100)
    for second in range(20_000):
        series.append({"elapsed_sec": float(second), "mem_percent": 1.0})
        assert len(series) <= 100


def test_a_column_that_comes_late_or_goes_is_missing_not_zero() -> None:
    """Where a column had no value, the row has none."""
    series = BoundedSeries(6)
    for second in range(20):
        report = {"elapsed_sec": float(second)}
        if second >= 10:
            report["swap_percent"] = 5.0
        series.append(report)
    rows = series.rows()
    assert "swap_percent" not in rows[0]
    assert rows[-1]["swap_percent"] == 5.0
    lengths = {len(column) for column in series.columns().values()}
    assert lengths == {len(rows)}
    assert math.isnan(series.columns()["swap_percent"][0])


def test_reports_without_any_time_weigh_the_same() -> None:
    """A list of plain numbers is merged to plain means."""
    series = BoundedSeries(4)
    for level in [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]:
        series.append({"level": level})
    inner = series.rows()[1:-1]
    assert [row["level"] for row in inner] == [1.5, 3.5]


@pytest.mark.parametrize("wrong", [0, -1, 1.5, "10", None, True])
def test_a_wrong_length_is_refused(wrong: object) -> None:
    """A length that is no whole number of at least 1 is refused with its value."""
    with pytest.raises(SettingError, match="max_length"):
        BoundedSeries(wrong)  # type: ignore[arg-type]


@given(st.lists(values, min_size=1, max_size=200), st.integers(1, 20), st.integers(1, 20))
def test_rows_that_were_merged_before_keep_their_peaks(
    levels: list[float], once: int, again: int
) -> None:
    """A series made of another one's rows has the same peaks, ends and columns."""
    rows = filled(levels, once).rows()
    series = BoundedSeries(again)
    for row in rows:
        series.append(row)
    peaks = [row.get("mem_percent_max", row["mem_percent"]) for row in series.rows()]
    assert max(peaks) == max(levels)
    assert len(series) <= again + again % 2
    assert not any(name.endswith("_max_max") for name in series.columns())
