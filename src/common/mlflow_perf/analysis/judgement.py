"""Judges whether new values are worse than old ones by more than a limit, despite their noise."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from mlflow_perf.analysis.mann_whitney import calculate_least_p, calculate_p
from mlflow_perf.core.format import format_count
from mlflow_perf.errors import SettingError

ALPHA = 0.05
"""The highest acceptable chance of a test to take noise for a regression."""

_NOISE_MIN = 3
_MOST_RUNS = 20

# How far beyond the worst run of the base one new run has to lie. Measured on 40 benchmarks of
# freshly started cloud machines, ten runs against one at a limit of 10%: one false alarm in a
# hundred.
_LEAST_MARGIN_PCT = 10.0
_DEVIATIONS = 0.9


@dataclass(frozen=True)
class Judgement:
    """A decision about new values.

    Attributes:
        passed: Whether the values show no regression beyond the limit.
        how: How it was decided, in one or two sentences.
        more_runs: How many further new runs the decision needs; 0 where it is made.
        outcome: `passed`, `failed` or `noise` (beyond the limit, but no further than chance goes).
        p: The p of the test, where there was one.
    """

    passed: bool
    how: str
    more_runs: int = 0
    outcome: str = "passed"
    p: float | None = None


def judge(
    base: Sequence[float],
    new: Sequence[float],
    *,
    limit_pct: float,
    better: str = "lower",
    alpha: float = ALPHA,
) -> Judgement:
    """Judge whether new values are worse than the base's by more than a limit.

    Args:
        base: Values of the base, one for each run.
        new: Values to judge, one for each run.
        limit_pct: How much worse the new median may be, in per cent of the base's.
        better: `lower` or `higher`.
        alpha: The highest acceptable chance of the test to take noise for a regression.

    Raises:
        SettingError: When a side is empty, a value is not finite, or a setting cannot be used.
    """
    if not len(base) or not len(new):  # an array of numpy has no truth value
        raise SettingError("A judgement needs at least one value of the base and one new value.")
    if not all(math.isfinite(value) for value in (*base, *new)):
        raise SettingError("A judgement needs finite values; leave out NaN and infinity.")
    if not (math.isfinite(limit_pct) and limit_pct >= 0):
        raise SettingError(f"limit_pct must be zero or above, not {limit_pct}.")
    if better not in ("lower", "higher"):
        raise SettingError(f"better must be 'lower' or 'higher', not {better!r}.")
    if not 0 < alpha < 1:
        raise SettingError(f"alpha must be between 0 and 1, not {alpha}.")
    sign = 1.0 if better == "lower" else -1.0

    def allow(value: float) -> float:
        return value + sign * limit_pct / 100.0 * abs(value)

    return judge_change(base, new, allow, upward=better == "lower", alpha=alpha)


def judge_change(
    base: Sequence[float],
    new: Sequence[float],
    allow: Callable[[float], float],
    *,
    upward: bool,
    alpha: float = ALPHA,
) -> Judgement:
    """Judge new values against what a limit allows of each value of the base.

    With three or more runs on both sides a one-sided Mann–Whitney test asks whether the new values
    are beyond what the limit allows. One new run against three or more has to be beyond the worst
    of them by a margin, and where the base is noisier than the limit, one run cannot pass for sure
    either. With fewer runs the medians alone decide.

    Args:
        base: Finite values of the base, at least one.
        new: Finite values to judge, at least one.
        allow: Returns the worst value that the limit allows for a value of the base.
        upward: Whether higher values are worse.
        alpha: The highest acceptable chance of the test to take noise for a regression.
    """
    sign = 1.0 if upward else -1.0
    old, fresh = [sign * value for value in base], [sign * value for value in new]
    middle, found = statistics.median(old), statistics.median(fresh)
    bound = sign * allow(statistics.median(base))
    beyond = found > bound + 1e-9 * max(abs(found), abs(bound))
    how = f"Medians of {len(old)} and {len(fresh)} runs."
    outcome, more, p = ("failed" if beyond else "passed"), 0, None
    deviation = statistics.fmean(abs(value - middle) for value in old)
    if len(old) == len(fresh) == 1:
        how = "One run against one: noise cannot be told from change."
    elif len(fresh) == 1 and len(old) >= _NOISE_MIN:
        margin = min(bound - middle, _LEAST_MARGIN_PCT / 100.0 * abs(middle))
        margin += _DEVIATIONS * math.sqrt(10.0 / len(old)) * deviation
        if beyond and found > max(old) + margin:
            how = f"Beyond the limit and the noise of {len(old)} base runs."
        elif beyond:
            outcome, how = (
                "noise",
                f"Beyond the limit, but within the noise of {len(old)} base runs.",
            )
            more = _count_runs_needed(len(old), 1, deviation, found - bound, alpha)
        elif deviation > bound - middle > 0:
            how = f"{how} The base's own runs differ by more than the limit."
            more = _count_runs_needed(len(old), 1, deviation, found - bound, alpha)
    elif beyond and calculate_least_p(len(old), len(fresh)) > alpha:
        how = f"{how} Too few repeats for a test (3 and 3 are enough)."
    elif beyond:
        # The base moved to where the limit allows it to be: are the new values still beyond it?
        p = calculate_p([sign * allow(value) for value in base], fresh)
        sizes = f"{len(old)} and {len(fresh)} runs"
        how = f"Mann–Whitney test of {sizes} against the limit: p = {p:.3g}."
        if p > alpha:
            outcome = "noise"
            more = _count_runs_needed(len(old), len(fresh), deviation, found - bound, alpha)
    if more:
        runs = format_count(more, "more new run")
        how += f" {runs} would tell." if more < _MOST_RUNS else f" Even {runs} may not tell."
    return Judgement(outcome != "failed", how, more, outcome, p)


def _count_runs_needed(base: int, new: int, deviation: float, excess: float, alpha: float) -> int:
    """Return how many more new runs show a median that exceeds the limit by `excess`.

    The noise of a median of k runs is about 1.57 mean deviations over the root of k; the difference
    has to reach 2.5 times the noise of both medians.
    """
    fewest = 1
    while calculate_least_p(base, new + fewest) > alpha and fewest < _MOST_RUNS:
        fewest += 1
    if excess <= 0 or deviation <= 0:
        return max(fewest, 3 - new)
    spare = (excess / (2.5 * 1.57 * deviation)) ** 2 - 1.0 / base
    wanted = math.ceil(1.0 / spare) if spare > 0 else _MOST_RUNS + new
    return min(max(wanted - new, fewest, 3 - new), _MOST_RUNS)
