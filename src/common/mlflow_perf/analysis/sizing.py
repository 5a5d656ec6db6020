"""Learns from a component's runs how much memory and time its next run needs."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mlflow_perf.analysis.correlation import bound_correlation, correlate_logs
from mlflow_perf.analysis.sizing_experts import (
    EXPERTS,
    EXTRAPOLATES,
    FARTHEST,
    NEEDS_INPUT,
    compress,
    predict_peaks,
)
from mlflow_perf.core.format import format_count
from mlflow_perf.core.hooks import hooks
from mlflow_perf.errors import SettingError

Array = npt.NDArray[np.float64]

_RECENT = 400
"""So many runs are looked at for each suggestion; of older ones only the largest peak counts."""

_REPLAYED = 200
_TIMED = 100
_LARGEST_MB = 1e12
_FEW_RUNS = 10

# The constants below are one set for all components. They were found on the traces of three
# workflows (73 components) so that a history of 1, 3 and 10 runs is too small for at most 4, 2 and
# 1% of later runs. A set found on two of the workflows does as well on the third.
_SPREADS = np.array([0.25, 0.5, 1.0, 1.5, 2.0, 3.0, 4.5])
"""Head-rooms to choose from, in units of how far an expert's runs have exceeded it."""

_PRIOR_EXCESS = 0.15
_PRIOR_RUNS = 2.0
_FIRST_EXCESS = 0.22
_LARGEST_EXCESS = 0.2
_LEAST_MB = 1e-9
_LEAST_HEADROOM = 1.002
_RESERVE_MB = 64.0
"""Head-room after the first run, for small processes; it falls with the power 1.5 of the runs."""

_FAILURE_COST = 0.42
"""What a failure costs at a risk of 1, in units of the memory that the run used."""

_MOST_WASTE = 0.8
_WASTE_RUNS, _WASTE_PRIOR = 1.5, 0.09
_FAILURE_RUNS, _FAILURE_PRIOR, _FAILURE_FALL = 4.0, 0.04, 0.8
_COMPLEXITY, _TRUST_RUNS = 0.06, 70.0

_PROOF_POWER = 3.0
"""How much of the complexity an input's proven squared correlation takes away."""

_PROVEN, _BEYOND_STEP = 0.9, math.log(1.1)
"""From this squared correlation on, only experts that use the input are chosen; for an input that
is a tenth above all others, only those that extrapolate."""

# A component has changed when so many runs in a row lie outside of 90% of the runs before them.
_DRIFT_RUNS = 8
_DRIFT_STEP = math.log(1.1)


@dataclass(frozen=True)
class Suggestion:
    """What to ask for, for the next run of a component.

    Attributes:
        memory_mb: Memory to ask for, in MB.
        duration_sec: How long the run will probably take, in seconds.
        p_fit: Estimated chance that the memory is enough, as far as the runs so far tell.
        runs: How many runs this was learned from.
        method: How the memory was found, and every reservation that a reader has to know.
        predictor: Name of the input that predicts the peak; None if no input is used.
        after_change: Whether the component changed, so that only runs since then count.
        is_guess: Whether it is far beyond what the runs tell, and so `p_fit` with it.
    """

    memory_mb: float
    duration_sec: float
    p_fit: float
    runs: int
    method: str
    predictor: str | None = None
    after_change: bool = False
    is_guess: bool = False

    def _repr_html_(self) -> str:
        """Return the page for a notebook."""
        return hooks.notebook_html(self)


@dataclass(frozen=True)
class _Run:
    peak_mb: float
    duration_sec: float
    inputs: Mapping[str, float]


class Sizer:
    """Learns one component's memory from its runs, one run after the other.

    Ten experts predict each run from those before it, each with seven head-rooms. A suggestion
    comes from the pair that would have cost least so far: the memory that it would have left
    unused, and for each run that would not have fitted a charge that grows as the risk falls.
    Head-rooms are multiples of how far runs have exceeded an expert, and so shrink as runs agree
    with it. A component that changes forgets the runs before the change.

    Args:
        risk: Share of runs that may be too small, between 0 and 1.

    Raises:
        SettingError: When the risk is not between 0 and 1.
    """

    def __init__(self, risk: float = 0.01) -> None:
        self._risk = _check_number("risk", risk)
        if not 0 < self._risk < 1:
            raise SettingError(f"risk is a share of runs, between 0 and 1, not {risk}.")
        self._changed = False
        self._forget(predictor=None)

    def observe(
        self, *, peak_mb: float, duration_sec: float, inputs: Mapping[str, float] | None = None
    ) -> None:
        """Learn from a run that ended well.

        A run with a peak of 0 was too short to be measured; it is left out.

        Args:
            peak_mb: The most memory that it used, in MB.
            duration_sec: How long it took, in seconds.
            inputs: Numbers known before a run starts that may predict its peak: MB to read,
                parameters, row counts.

        Raises:
            SettingError: When the peak or the duration is negative, a number is not finite, or the
                peak is beyond 10^12 MB.
        """
        peak = _check_number("peak_mb", peak_mb, at_least=0.0)
        duration = _check_number("duration_sec", duration_sec, at_least=0.0)
        given = {name: _check_number(name, value) for name, value in (inputs or {}).items()}
        if peak > _LARGEST_MB:
            raise SettingError(f"peak_mb is in MB; {peak:g} looks like bytes.")
        if peak == 0:
            return
        self._add(_Run(peak, duration, given))
        if self._has_drifted():
            self._relearn(_DRIFT_RUNS, self._predictor)
            self._count, self._largest, self._changed = _DRIFT_RUNS, float(self._peaks.max()), True
        if self._count <= 2 * _FEW_RUNS or self._count % 10 == 0:
            best = self._find_predictor()
            if best != self._predictor:
                self._relearn(_REPLAYED, best)
            if best is not None:
                self._proof = bound_correlation(self._inputs[best], self._peaks)

    def suggest(
        self, *, inputs: Mapping[str, float] | None = None, failed_mb: float | None = None
    ) -> Suggestion:
        """Return the memory and time to request for a run with these inputs.

        Args:
            inputs: The run's inputs; names that no run had are ignored.
            failed_mb: Memory with which this run was killed because memory ran out; the suggestion
                is then above it, and above every observed peak.

        Raises:
            SettingError: When there is neither a run nor a failed size, or a number is invalid.
        """
        given = {name: _check_number(name, value) for name, value in (inputs or {}).items()}
        failed = None if failed_mb is None else _check_number("failed_mb", failed_mb)
        if failed is not None and not 0 < failed <= _LARGEST_MB:
            raise SettingError(f"failed_mb is in MB and above 0, not {failed:g}.")
        if not self._runs:
            if failed is None:
                raise SettingError("There is nothing to learn from yet: observe a run first.")
            return Suggestion(2.0 * failed, 0.0, 0.5, 0, "twice the memory that failed")
        value, costs = given.get(self._predictor or "", math.nan), self._calculate_costs()
        if not math.isfinite(value):
            costs[NEEDS_INPUT] = np.inf
        elif self._proof >= _PROVEN:
            # Runs in the order of their inputs make the maximum look as good as the input.
            largest = float(np.nanmax(compress(self._inputs[self._predictor or ""])))
            beyond = float(compress(np.array(value))) > largest + _BEYOND_STEP
            costs[~EXTRAPOLATES if beyond else ~NEEDS_INPUT] = np.inf
        expert, spread = np.unravel_index(int(np.argmin(costs)), costs.shape)
        expected = predict_peaks(*self._columns(), value, self._largest)
        memory = float(self._add_headroom(expected)[expert, spread])
        uses_input = bool(NEEDS_INPUT[expert])
        newest = self._runs[-1].peak_mb
        guess = self._explain_guess(expected[expert], value) if uses_input else []
        notes = [self._describe(int(expert), memory / expected[expert]), *guess]
        if memory < newest and uses_input:
            # The caller may round the size up, so this is said of the prediction.
            notes.append(f"{self._predictor} predicts less than the newest run's {newest:.4g} MB")
        elif memory < newest:
            memory = newest
            notes.append("raised to the newest run's peak")
        # A pair is chosen because it has not failed, so its own past does not prove that it will
        # not.
        failures = float(self._failures[expert, spread]) + 0.3
        p_fit = 1.0 - failures / (self._judged + 8.0)
        if failed is not None:
            retry = 2.0 * failed if failed >= self._largest else 1.3 * failed
            memory = max(memory, retry, 1.1 * self._largest)
            notes.append(f"raised above the {failed:.4g} MB that failed")
        if self._changed:
            notes.append("the component changed; runs before the change are forgotten")
        if self._count < _FEW_RUNS:
            known = "1 run is" if self._count == 1 else f"{self._count} runs are"
            notes.append(f"{known} little evidence: {_FEW_RUNS} or more need less head-room")
        sec = self._predict_duration(given)
        name = self._predictor if uses_input else None
        method = "; ".join(notes)
        return Suggestion(memory, sec, p_fit, self._count, method, name, self._changed, bool(guess))

    def _describe(self, expert: int, headroom: float) -> str:
        """Return how a size was found."""
        runs = format_count(self._count, "run")
        found_by = EXPERTS[expert].format(runs=runs, predictor=self._predictor)
        return f"{found_by} × {headroom:.4g}"

    def _explain_guess(self, expected: float, value: float) -> list[str]:
        """Return why a size is a guess: an input far beyond that of all runs, or a size cut off."""
        name, notes = self._predictor or "", []
        largest = float(np.nanmax(self._inputs[name]))
        if 0 < 2.0 * largest < value:
            times = f"{value / largest:.3g} times the largest {name} so far ({largest:.4g})"
            notes.append(f"a guess: {value:.4g} is {times}")
        if expected > (1.0 - 1e-9) * FARTHEST * self._largest:
            most = f"{FARTHEST:g} times the largest peak so far"
            notes.append(f"cut to {most}, as no prediction goes further: it may need more")
        return notes

    def _relearn(self, runs: int, predictor: str | None) -> None:
        """Score the experts anew on the newest runs, with one input as the predictor."""
        kept = list(self._runs)[-runs:]
        count, largest = self._count, self._largest
        self._forget(predictor)
        for run in kept:
            self._add(run)
        self._count, self._largest = count, largest

    def _forget(self, predictor: str | None) -> None:
        shape = (len(EXPERTS), len(_SPREADS))
        self._runs: deque[_Run] = deque(maxlen=_RECENT)
        self._peaks = np.empty(0)
        self._seconds = np.empty(0)
        self._inputs: dict[str, Array] = {} if predictor is None else {predictor: np.empty(0)}
        self._predictor = predictor
        self._proof = 0.0
        self._largest = 0.0
        self._count = 0
        self._judged = 0
        self._excess = np.full(len(EXPERTS), _PRIOR_RUNS * _PRIOR_EXCESS**2)
        self._waste = np.zeros(shape)
        self._failures = np.zeros(shape)

    def _add(self, run: _Run) -> None:
        """Score every expert on a run, then add the run to what the experts know."""
        if self._runs:
            value = run.inputs.get(self._predictor or "", math.nan)
            expected = predict_peaks(*self._columns(), value, self._largest)
            sizes = self._add_headroom(expected)
            failed = sizes < run.peak_mb
            self._waste += np.where(failed, 1.0, np.minimum(sizes / run.peak_mb - 1.0, _MOST_WASTE))
            self._failures += failed
            ratio = run.peak_mb / np.maximum(expected, _LEAST_MB)
            excess = np.clip(np.log(ratio), 0.0, _LARGEST_EXCESS)
            self._excess += excess**2
            self._judged += 1
        self._runs.append(run)
        self._count += 1
        self._largest = max(self._largest, run.peak_mb)
        before = len(self._peaks)
        for name in run.inputs.keys() - self._inputs.keys():
            self._inputs[name] = np.full(before, math.nan)
        self._peaks = np.append(self._peaks[1 - _RECENT :], run.peak_mb)
        self._seconds = np.append(self._seconds[1 - _RECENT :], run.duration_sec)
        for name, column in self._inputs.items():
            value = run.inputs.get(name, math.nan)
            self._inputs[name] = np.append(column[1 - _RECENT :], value)
        if self._predictor is None and run.inputs:
            self._predictor = min(run.inputs)

    def _columns(self) -> tuple[Array, Array]:
        """Return the peaks of the recent runs and the predictor's values in them."""
        if self._predictor is None:
            return self._peaks, np.full(len(self._peaks), math.nan)
        return self._peaks, self._inputs[self._predictor]

    def _add_headroom(self, expected: Array) -> Array:
        """Return the size that each pair of an expert and a spread suggests, in MB."""
        heads = self._calculate_headrooms()
        reserve = _RESERVE_MB / self._count**1.5
        sizes: Array = np.maximum(expected[:, None] * heads, expected[:, None] + reserve)
        return sizes

    def _calculate_headrooms(self) -> Array:
        """Return the factor of each pair of an expert and a spread."""
        excess = np.sqrt(self._excess / (_PRIOR_RUNS + self._judged))
        excess += _FIRST_EXCESS / (1.0 + self._judged) ** 3
        heads: Array = np.maximum(np.exp(excess[:, None] * _SPREADS), _LEAST_HEADROOM)
        return heads

    def _calculate_costs(self) -> Array:
        """Return what each pair would have cost per run: unused memory and failures."""
        heads = self._calculate_headrooms()
        waste = self._waste + _WASTE_RUNS * (heads - 1.0 + _WASTE_PRIOR)
        chance = _FAILURE_PRIOR * np.exp(-_FAILURE_FALL * _SPREADS)
        failures = self._failures + _FAILURE_RUNS * chance
        trust = _TRUST_RUNS / (self._judged + _TRUST_RUNS)
        complexity = _COMPLEXITY * trust * (1.0 - self._proof**_PROOF_POWER)
        costs: Array = (
            waste / (self._judged + _WASTE_RUNS)
            + _FAILURE_COST / self._risk * failures / (self._judged + _FAILURE_RUNS)
            + complexity * np.arange(len(EXPERTS))[:, None]
        )
        return costs

    def _find_predictor(self) -> str | None:
        """Return the input whose logarithm correlates best with the peak's."""
        if self._predictor is None or len(self._inputs) < 2 or len(self._peaks) < 3:
            return self._predictor
        scores = {name: correlate_logs(self._inputs[name], self._peaks) for name in self._inputs}
        best = max(sorted(scores), key=lambda name: scores[name])
        # An input that is about as good as the present one is not worth learning anew.
        return best if scores[best] > scores[self._predictor] + 0.05 else self._predictor

    def _has_drifted(self) -> bool:
        """Tell whether the newest runs all lie outside of what the runs before them used."""
        if len(self._peaks) < 2 * _DRIFT_RUNS:
            return False
        logs = np.log(self._peaks)
        if not _is_apart(logs) or self._predictor is None:
            return _is_apart(logs)
        # The inputs may explain it: then the newest runs follow the line of the older ones.
        values = compress(self._inputs[self._predictor])
        older = values[:-_DRIFT_RUNS]
        if not np.isfinite(values).all() or older.min() == older.max():
            return True
        slope = _find_slope(older, logs[:-_DRIFT_RUNS])
        return _is_apart(logs - slope * values)

    def _predict_duration(self, given: Mapping[str, float]) -> float:
        """Return the median run time, or that of the power of an input where one predicts it."""
        seconds = self._seconds[-_TIMED:]
        middle = float(np.median(seconds))
        columns = {n: column[-_TIMED:] for n, column in self._inputs.items() if n in given}
        if seconds.min() <= 0 or not columns:
            return middle
        scores = {name: correlate_logs(column, seconds) for name, column in columns.items()}
        best = max(sorted(scores), key=lambda name: scores[name])
        if scores[best] < 0.5:
            return middle
        known = np.isfinite(columns[best])
        x, y = compress(columns[best][known]), np.log(seconds[known])
        change = _find_slope(x, y) * (float(compress(np.array(given[best]))) - float(x.mean()))
        expected = min(max(float(y.mean()) + change, float(y.min()) - 2.0), float(y.max()) + 2.0)
        return math.exp(expected)


def _is_apart(values: Array) -> bool:
    """Tell whether the newest values lie outside of nine tenths of the older ones."""
    newest, older = values[-_DRIFT_RUNS:], np.sort(values[:-_DRIFT_RUNS])
    tail = len(older) // 20
    low, high = older[tail] - _DRIFT_STEP, older[-1 - tail] + _DRIFT_STEP
    return bool(newest.max() < low or newest.min() > high)


def _find_slope(x: Array, y: Array) -> float:
    distances = x - x.mean()
    return float(distances @ y / max(distances @ distances, 1e-300))


def _check_number(name: str, value: float, at_least: float = -math.inf) -> float:
    """Return the value as a float; raise SettingError if it is not a finite number in range."""
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        raise SettingError(f"{name} must be a number, not {value!r}.") from None
    if not math.isfinite(number) or number < at_least:
        lowest = "" if math.isinf(at_least) else f" of {at_least:g} or more"
        raise SettingError(f"{name} must be a finite number{lowest}, not {number}.")
    return number
