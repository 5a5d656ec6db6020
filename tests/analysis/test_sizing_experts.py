"""The experts that predict a peak."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlflow_perf.analysis.sizing_experts import EXPERTS, NEEDS_INPUT, compress, predict_peaks

PEAKS = np.array([100.0, 200.0, 300.0, 400.0, 500.0])
INPUTS = np.array([1.0, 2.0, 3.0, 4.0, 5.0])


def test_every_expert_of_a_line_predicts_the_line() -> None:
    """Maximum, quantiles, neighbours and fits say what they are named for."""
    found = dict(zip(EXPERTS, predict_peaks(PEAKS, INPUTS, 6.0, 900.0), strict=True))
    assert found["maximum of {runs}"] == 900
    assert found["maximum of the newest 20 runs"] == 500
    assert found["3 nearest runs by {predictor}"] == 500
    assert found["line over {predictor} and its largest residual"] == pytest.approx(600)
    assert found["maximum of the runs with at most this {predictor}"] == 500


def test_a_small_input_bounds_the_peak_by_the_next_larger_run() -> None:
    """Of runs with at most this input the next larger one counts too."""
    assert predict_peaks(PEAKS, INPUTS, 1.5, 500.0)[9] == 200


def test_without_an_input_the_experts_of_inputs_say_the_maximum() -> None:
    """A run that lacks the predictor's value is predicted without it."""
    found = predict_peaks(PEAKS, INPUTS, math.nan, 700.0)
    assert set(found[NEEDS_INPUT]) == {700.0}


@given(
    st.lists(st.tuples(st.floats(0.1, 1e12), st.floats(-1e15, 1e15)), min_size=1, max_size=30),
    st.floats(-1e300, 1e300),
)
def test_every_prediction_is_finite_and_above_zero(
    runs: list[tuple[float, float]], value: float
) -> None:
    """No history and no input make a prediction that nobody can ask for."""
    peaks, inputs = (np.array(column) for column in zip(*runs, strict=True))
    found = predict_peaks(peaks, inputs, value, float(peaks.max()))
    assert np.isfinite(found).all()
    assert (found > 0).all()
    assert found.max() <= 50 * peaks.max() * (1 + 1e-9)


def test_the_logarithm_is_mirrored_below_zero() -> None:
    """Inputs below zero keep their order."""
    assert list(compress(np.array([-1.0, 0.0, 1.0]))) == pytest.approx(
        [-math.log(2), 0.0, math.log(2)]
    )
