"""Predicts the memory peak of a run from earlier runs, in ten simple ways."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]

EXPERTS = (
    "maximum of {runs}",
    "maximum of the newest 20 runs",
    "98% quantile of {runs}",
    "90% quantile of {runs}",
    "3 nearest runs by {predictor}",
    "7 nearest runs by {predictor}",
    "15 nearest runs by {predictor}",
    "line over {predictor} and its largest residual",
    "power of {predictor} and its largest residual",
    "maximum of the runs with at most this {predictor}",
)
"""What each expert does, simplest first."""

NEEDS_INPUT = np.array(["{predictor}" in expert for expert in EXPERTS])
"""Which experts need the value of an input."""

EXTRAPOLATES = np.array(["its largest residual" in expert for expert in EXPERTS])
"""Which experts say something of an input that is larger than all before it."""

_NEWEST = 20
_NEIGHBOURS = (3, 7, 15)
_FIT_MIN = 3
FARTHEST = 50.0
"""No fit says more than so many times the largest peak."""


def compress(values: Array) -> Array:
    """Return the logarithm of 1 plus each value, mirrored for values below zero."""
    return np.asarray(np.copysign(np.log1p(np.abs(values)), values))


def predict_peaks(peaks: Array, inputs: Array, value: float, largest: float) -> Array:
    """Return the peak that each expert expects, in the order of `EXPERTS`.

    Args:
        peaks: Peaks of the recent runs in MB, oldest first; at least one.
        inputs: The predictor's value in each of these runs; NaN where a run has none.
        value: The predictor's value in the run to predict; NaN if it has none.
        largest: The largest peak of all runs, recent or not.
    """
    count = len(peaks)
    found = np.full(len(EXPERTS), largest)
    ordered = np.sort(peaks)
    found[1] = peaks[-_NEWEST:].max()
    found[2] = ordered[math.ceil(0.98 * count) - 1]
    found[3] = ordered[math.ceil(0.90 * count) - 1]
    known = np.isfinite(inputs)
    if not math.isfinite(value) or not known.any():
        return found
    peaks, inputs = peaks[known], inputs[known]
    logs, at = compress(inputs), float(compress(np.array(value)))
    nearest = np.argsort(np.abs(logs - at), kind="stable")
    for row, neighbours in enumerate(_NEIGHBOURS, start=4):
        found[row] = peaks[nearest[:neighbours]].max()
    if len(peaks) >= _FIT_MIN and logs.min() < logs.max():
        unit = max(float(np.abs(inputs).max()), abs(value))
        line = _extrapolate(inputs / unit, peaks, value / unit, math.inf)
        power = _extrapolate(logs, np.log(peaks), at, 1.5)
        farthest = FARTHEST * largest
        found[7] = min(max(line, float(ordered[0])), farthest)
        found[8] = math.exp(min(power, math.log(farthest)))
    covered = logs <= at + 1e-9
    if not covered.all():
        # The next larger input bounds the peak as well: peaks grow with inputs where this wins.
        covered[int(np.argmin(np.where(covered, np.inf, logs)))] = True
    found[9] = peaks[covered].max()
    return found


def _extrapolate(x: Array, y: Array, at: float, steepest: float) -> float:
    """Return the value of the line of least squares that never falls, plus its largest residual."""
    distances = x - x.mean()
    slope = float(distances @ (y - y.mean()) / max(distances @ distances, 1e-300))
    slope = min(max(slope, 0.0), steepest)
    return float((y - slope * x).max() + slope * at)
