"""Scaling: the fit, its interval and the best number of nodes."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mlflow_perf.analysis.scaling import fit
from mlflow_perf.errors import SettingError

TERMS = st.floats(0, 1000)


@given(TERMS, st.floats(1, 1000), st.floats(0, 10))
def test_a_curve_of_the_model_is_found_again(a: float, b: float, c: float) -> None:
    """Points that lie on `a + b/n + c·n` give that curve within three per cent."""
    counts = (1, 2, 3, 4, 6, 8, 12, 16)
    found = fit([(n, a + b / n + c * n) for n in counts])
    for n in counts:
        assert found.predict(n) == pytest.approx(a + b / n + c * n, rel=0.03)


@given(
    st.sampled_from([0.0, 1.0, 50.0]),
    st.floats(1, 1000),
    st.sampled_from([0.0, 0.01, 2.34]),
    st.sets(st.integers(1, 64), min_size=3, max_size=8),
)
@example(0.0, 413.6, 2.34, {2, 6, 16})
@example(80.0, 0.0, 20.0, {1, 2, 4})
def test_points_of_a_law_give_that_law(a: float, b: float, c: float, counts: set[int]) -> None:
    """Points that follow `a + b/n + c·n` exactly need no idle node to be explained."""
    found = fit([(n, a + b / n + c * n) for n in counts])
    far = 2 * max(counts)
    assert found.idle == 0
    assert found.note == ""
    assert found.predict(far) == pytest.approx(a + b / far + c * far, rel=0.01)


@pytest.mark.parametrize("shifts", list(itertools.product((0.995, 1.005), repeat=3)))
def test_noise_of_repeated_runs_is_no_idle_node(shifts: tuple[float, ...]) -> None:
    """Where the law meets the mean of each count within the noise of its runs, all nodes work."""
    found = fit(
        [
            (n, (400 / n + 2 * n) * shift * factor)
            for n, shift in zip((2, 6, 16), shifts, strict=True)
            for factor in (0.99, 1.01)
        ]
    )
    assert found.idle == 0
    assert found.predict(32) == pytest.approx(400 / 32 + 2 * 32, rel=0.05)


@given(st.lists(st.tuples(st.integers(1, 64), st.floats(0.01, 1e6)), min_size=1, max_size=12))
def test_any_points_give_terms_and_an_interval_around_the_prediction(
    points: list[tuple[int, float]],
) -> None:
    """No term is negative, every prediction is positive and lies inside its interval."""
    found = fit(points)
    assert min(found.a, found.b, found.c) >= 0
    for nodes in (1, 5, 100):
        low, high = found.interval(nodes)
        assert 0 < low <= found.predict(nodes) <= high < math.inf


def test_one_point_scales_perfectly_and_says_how_little_that_is() -> None:
    """One count gives `b/n`, a note, and an interval that widens with the distance."""
    found = fit([(4, 100.0)])
    assert found.predict(8) == pytest.approx(50.0)
    assert "1 of the 3 counts" in found.note
    near, far = found.interval(4), found.interval(32)
    assert far[1] / far[0] > near[1] / near[0]


def test_a_count_that_was_too_small_for_the_data_is_left_out() -> None:
    """Where more nodes need fewer node-seconds, the smaller count does not bend the curve."""
    found = fit([(2, 2000.0), (4, 100.0), (8, 52.0), (16, 28.0)])
    assert "2 nodes" in found.note
    assert found.predict(12) == pytest.approx(36.0, rel=0.05)
    assert found.predict(1) == pytest.approx(4000.0)


def test_a_node_that_does_not_work_is_found_and_named() -> None:
    """Where a driver has a node for itself, the work is divided among the others."""
    found = fit([(n, 20 + 300 / (n - 1)) for n in (2, 6, 12)])
    assert found.idle == 1
    assert "does not take part" in found.note
    for nodes in (4, 8, 16):
        assert found.predict(nodes) == pytest.approx(20 + 300 / (nodes - 1), rel=0.03)
    assert found.predict(2) < found.predict(1) < math.inf


def test_all_nodes_work_where_the_points_do_not_say_otherwise() -> None:
    """One node that did work, two counts, or a curve of all nodes leave no node without work."""
    assert fit([(1, 320.0), (2, 320.0), (4, 120.0)]).idle == 0
    assert fit([(2, 320.0), (4, 120.0)]).idle == 0
    assert fit([(n, 20 + 300 / n) for n in (2, 6, 12)]).idle == 0


def test_the_best_count_by_time_and_by_cost() -> None:
    """Coordination bounds the fastest count; node-seconds are cheapest on few nodes."""
    found = fit([(n, 10 + 400 / n + 4 * n) for n in (1, 2, 4, 8, 16)])
    assert found.fastest() == 10
    assert found.cheapest() == 1
    assert found.cheapest(within_sec=120) == 5
    assert found.cheapest(range(4, 17, 4)) == 4
    with pytest.raises(SettingError, match="the fastest takes"):
        found.cheapest(within_sec=1)


def test_of_counts_that_cost_the_same_the_largest_is_taken() -> None:
    """Perfect scaling costs the same on every count, so the one that ends first is best."""
    assert fit([(1, 64.0), (2, 32.0), (4, 16.0)]).cheapest() == 8


@pytest.mark.parametrize("points", [[], [(0, 1.0)], [(1, math.nan)], [(2, -1.0)], [(math.inf, 1)]])
def test_points_that_are_no_measurements_are_refused(points: list[tuple[float, float]]) -> None:
    """Nothing, zero, negative, NaN and infinite numbers are errors that say so."""
    with pytest.raises(SettingError):
        fit(points)


def test_a_number_of_nodes_has_to_be_above_zero() -> None:
    """Zero nodes have no run time."""
    found = fit([(1, 10.0)])
    for nodes in (0, -1, math.nan):
        with pytest.raises(SettingError, match="above zero"):
            found.predict(nodes)
    with pytest.raises(SettingError, match="at least one"):
        found.fastest([])
