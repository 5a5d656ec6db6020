"""How well an input of a program explains what it needed."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from mlflow_perf.analysis.sizing_experts import compress

Array = npt.NDArray[np.float64]


def correlate_logs(inputs: Array, values: Array) -> float:
    """Return the squared correlation of the logarithms, over the runs that have the input."""
    known = np.isfinite(inputs)
    if known.sum() < 3:
        return 0.0
    return _square_correlation(compress(inputs[known]), np.log(values[known]))


def bound_correlation(inputs: Array, values: Array) -> float:
    """Return the squared correlation that the runs prove at 95%, by Fisher's transformation.

    It is that of the logarithms, or of the values themselves: most programs need some memory
    whatever their input, and the rest grows with it.

    Args:
        inputs: The input of each run; NaN where a run has none.
        values: What each run needed, above 0.
    """
    known = np.isfinite(inputs)
    runs = int(known.sum())
    if runs < 4:
        return 0.0
    square = max(correlate_logs(inputs, values), _square_correlation(inputs[known], values[known]))
    found = math.atanh(min(math.sqrt(square), 1.0 - 1e-9)) - 1.645 / math.sqrt(runs - 3)
    return math.tanh(max(found, 0.0)) ** 2


def _square_correlation(x: Array, y: Array) -> float:
    x, y = (z / max(float(np.abs(z).max()), 1e-300) for z in (x, y))  # a square must not overflow
    x, y = x - x.mean(), y - y.mean()
    spread = float((x @ x) * (y @ y))
    return float(x @ y) ** 2 / spread if spread > 1e-12 else 0.0
