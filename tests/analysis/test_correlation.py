"""Correlations that runs prove."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from mlflow_perf.analysis.correlation import bound_correlation, correlate_logs

RUNS = np.arange(1.0, 31.0)


@pytest.mark.parametrize("values", [1000.0 + 2.0 * RUNS, 3.0 * RUNS**2.5], ids=["line", "power"])
def test_a_line_and_a_power_are_proven(values: np.ndarray) -> None:
    """Only thirty runs say so: that is what is left to 1."""
    assert bound_correlation(RUNS, values) > 0.98
    assert bound_correlation(RUNS[:3], values[:3]) == 0.0


def test_runs_without_the_input_do_not_count() -> None:
    """The others prove it as if they were alone."""
    inputs, values = RUNS.copy(), 5.0 + RUNS
    inputs[::2], values[::2] = np.nan, 1e6
    assert bound_correlation(inputs, values) == bound_correlation(inputs[1::2], values[1::2])
    assert correlate_logs(np.full(30, np.nan), values) == 0.0


@given(
    arrays(float, 20, elements=st.floats(-1e308, 1e308)),
    arrays(float, 20, elements=st.floats(1e-6, 1e308)),
)
def test_whatever_the_numbers_it_is_a_share(inputs: np.ndarray, values: np.ndarray) -> None:
    """No size of the numbers overflows, and what never changes explains nothing."""
    assert 0.0 <= bound_correlation(inputs, values) <= 1.0
    assert bound_correlation(inputs, np.full(20, values[0])) == 0.0
