"""Whether new runs keep within limits of old ones, noise taken into account. Imports runs."""

from __future__ import annotations

import difflib
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from mlflow_perf.analysis.compare import change_pct, matched
from mlflow_perf.analysis.gate_limits import Limit, parse_limit
from mlflow_perf.analysis.mann_whitney import calculate_least_p, calculate_p
from mlflow_perf.analysis.step_runs import (
    StepRuns,
    compare_hardware,
    hardware,
    is_alike,
    load_step_runs,
    several,
)
from mlflow_perf.errors import RunNotFoundError, SettingError
from mlflow_perf.tracking.load import RunRef
from mlflow_perf.tracking.perf_run import PerfRun

__all__ = ["Check", "GateResult", "check", "find_same_hardware"]

ALPHA = 0.05
"""The chance of calling noise a regression that a test may have."""

# A run that is RUNNING may be one that its owner never ends: its figures are whole all the same.
_BROKEN = ("FAILED", "KILLED")
_NOISE_MIN = 3
_MAD_TO_SIGMA = 1.4826
_SIGMAS = 3.0


@dataclass(frozen=True)
class Check:
    """One limit, applied to one step.

    Attributes:
        step: Name of the step.
        limit: The limit.
        base: The base's values, one per run.
        new: The new runs' values.
        outcome: `passed`, `failed`, `noise` (beyond the limit, but no further than chance goes;
            passes), or `no base` (nothing to compare with; passes).
        how: How it was decided, in one sentence.
        p: The test's p, where there was one.
    """

    step: str
    limit: Limit
    base: tuple[float, ...]
    new: tuple[float, ...]
    outcome: str
    how: str
    p: float | None = None

    @property
    def passed(self) -> bool:
        """Whether the gate stays open for this limit."""
        return self.outcome != "failed"

    @property
    def base_median(self) -> float | None:
        """The middle of the base's values."""
        return statistics.median(self.base) if self.base else None

    @property
    def new_median(self) -> float | None:
        """The middle of the new values."""
        return statistics.median(self.new) if self.new else None

    @property
    def change_pct(self) -> float | None:
        """The new median against the base's, in per cent."""
        return change_pct(self.base_median, self.new_median)


@dataclass(frozen=True)
class GateResult:
    """What a gate decided.

    Attributes:
        checks: Each limit on each step.
        base: Names of the base's runs.
        new: Names of the new runs.
        notes: What has to be known: different hardware, other components.
        failures: What fails the gate whatever its figures: a new run that did not finish.
    """

    checks: tuple[Check, ...]
    base: tuple[str, ...]
    new: tuple[str, ...]
    notes: tuple[str, ...] = ()
    failures: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        """Whether every limit holds and every new run finished."""
        return not self.failures and all(c.passed for c in self.checks)


def check(
    base: RunRef | PerfRun | Sequence[RunRef | PerfRun],
    new: RunRef | PerfRun | Sequence[RunRef | PerfRun],
    limits: str | Sequence[str | Limit],
    *,
    alpha: float = ALPHA,
) -> GateResult:
    """Return whether new runs keep within limits of a base.

    With enough repeats on both sides a one-sided Mann–Whitney test asks whether the new values are
    beyond what the limit allows; with one new run and at least three of the base, it has to be
    outside the base's own noise too; with fewer, the medians alone decide. Each check says which.

    Args:
        base: Run to compare with, or several; may be empty where every limit is a value of its own.
        new: Run to judge, or several; workflows are judged step by step.
        limits: One or several; see `limits.parse_limit`.
        alpha: The chance of calling noise a regression that the test may have.

    Raises:
        SettingError: When a limit cannot be read, no run has its metric, or none is given.
        RunNotFoundError: When a run does not exist or holds no performance data.
        DocumentError: When a file is not a document that this version reads.
    """
    if not 0 < alpha < 1:
        raise SettingError(f"alpha must be between 0 and 1, not {alpha}.")
    base, new = several(base), several(new)
    limits = [limits] if isinstance(limits, str) else limits
    wanted = [parse_limit(text) if isinstance(text, str) else text for text in limits]
    if not wanted or not new:
        raise SettingError("Name a new run and at least one limit, such as node_cpu_hours=+10%.")
    every, notes = matched(load_step_runs([*base, *new]))
    old, fresh = every[: len(base)], every[len(base) :]
    return GateResult(
        tuple(c for limit in wanted for c in _checks(_known(limit, every), old, fresh, alpha)),
        tuple(subject.label for subject in old),
        tuple(subject.label for subject in fresh),
        (*notes, *compare_hardware(every), *_without(old, fresh)),
        tuple(_unfinished(fresh)),
    )


def _known(limit: Limit, subjects: Sequence[StepRuns]) -> Limit:
    """Return the limit if some run has its step, with its metric; a typing error must not pass."""
    steps = {step for subject in subjects for step in subject.steps}
    keys = _keys_of(subjects, None)
    if limit.step is not None and f"{limit.step}:{limit.key}" in keys:
        # The name of an operation may hold a colon.
        return replace(limit, key=f"{limit.step}:{limit.key}", step=None)
    if limit.step is not None and limit.step not in steps:
        raise SettingError(_unknown("step", limit.step, steps, limit))
    of_step = _keys_of(subjects, limit.step)
    if limit.key not in of_step:
        raise SettingError(_unknown("metric", limit.key, of_step, limit))
    return limit


def _keys_of(subjects: Sequence[StepRuns], step: str | None) -> set[str]:
    """Return the metrics that any run has of a step; of any step where none is named."""
    runs = [run for s in subjects for name, run in s.steps.items() if step in (None, name)]
    return {key for run in runs for key in _keys(run)}


def _unknown(what: str, name: str, known: set[str], limit: Limit) -> str:
    near = difflib.get_close_matches(name, known, 1)
    hint = f": did you mean {near[0]!r}?" if near else "."
    return f"No run has the {what} {name!r} of the limit {limit.text!r}{hint}"


def _keys(run: PerfRun) -> set[str]:
    of_nodes = {key for summary in run.nodes.values() for key in summary}
    return of_nodes | run.figures.keys() | run.metrics.keys()


def _checks(
    limit: Limit, base: Sequence[StepRuns], new: Sequence[StepRuns], alpha: float
) -> Iterator[Check]:
    for step in dict.fromkeys(name for subject in new for name in subject.steps):
        if limit.step not in (None, step):
            continue
        old = _values(limit, step, base)
        fresh = _values(limit, step, new)
        if old or fresh:
            yield _decide(step, limit, old, fresh, alpha)


def _values(limit: Limit, step: str, subjects: Sequence[StepRuns]) -> tuple[float, ...]:
    runs = [subject.steps[step] for subject in subjects if step in subject.steps]
    values = [_value(limit, run) for run in runs]
    return tuple(value for value in values if value is not None)


def _value(limit: Limit, run: PerfRun) -> float | None:
    """Return a run's value: of a node's metric the worst node's; else the run's own."""
    of_nodes = [summary[limit.key] for summary in run.nodes.values() if limit.key in summary]
    if of_nodes:
        return max(of_nodes) if limit.upward else min(of_nodes)
    of_run: Mapping[str, float] = {**run.metrics, **run.figures}
    return of_run.get(limit.key)


def _decide(
    step: str, limit: Limit, base: tuple[float, ...], new: tuple[float, ...], alpha: float
) -> Check:
    if not new:
        return Check(step, limit, base, new, "failed", "The new runs do not have this metric.")
    bound = limit.bound(statistics.median(base) if base else None)
    if bound is None:
        return Check(step, limit, base, new, "no base", "No run of the base has this metric.")
    if limit.holds(statistics.median(new), bound):
        return Check(step, limit, base, new, "passed", _medians(base, new, limit))
    if not limit.relative:
        return Check(step, limit, base, new, "failed", _medians((), new, limit))
    return _beyond(Check(step, limit, base, new, "failed", _medians(base, new, limit)), alpha)


def _medians(base: Sequence[float], new: Sequence[float], limit: Limit) -> str:
    if not limit.relative:
        return "The value against the limit." if len(new) == 1 else "The median against the limit."
    if len(base) == len(new) == 1:
        return "One run against one: noise cannot be told from change."
    return f"Medians of {len(base)} and {len(new)} runs."


def _beyond(failed: Check, alpha: float) -> Check:
    """Return the check of a median that is beyond its limit: failed, or within the noise."""
    base, new, limit = failed.base, failed.new, failed.limit
    if calculate_least_p(len(base), len(new)) <= alpha:
        return _tested(failed, alpha)
    if len(new) == 1 and len(base) >= _NOISE_MIN:
        noise = _SIGMAS * _MAD_TO_SIGMA * _deviation(base)
        distance = abs(new[0] - statistics.median(base))
        if distance <= noise:
            how = f"Within the noise of {len(base)} base runs (median ± 3 robust deviations)."
            return Check(failed.step, limit, base, new, "noise", how)
        how = f"Beyond the limit and the noise of {len(base)} base runs."
        return Check(failed.step, limit, base, new, "failed", how)
    how = f"{failed.how} Too few repeats for a test (3 and 3 are enough)."
    return Check(failed.step, limit, base, new, "failed", how)


def _tested(failed: Check, alpha: float) -> Check:
    limit, sign = failed.limit, 1.0 if failed.limit.upward else -1.0
    # The base moved to where the limit allows it to be: is the new one still beyond it?
    allowed = [sign * b for value in failed.base if (b := limit.bound(value)) is not None]
    p = calculate_p(allowed, [sign * value for value in failed.new])
    outcome = "failed" if p <= alpha else "noise"
    sizes = f"{len(failed.base)} and {len(failed.new)} runs"
    how = f"Mann–Whitney test of {sizes} against the limit: p = {p:.3g}."
    return Check(failed.step, limit, failed.base, failed.new, outcome, how, p)


def _deviation(values: Sequence[float]) -> float:
    middle = statistics.median(values)
    return statistics.median(abs(value - middle) for value in values)


def _without(base: Sequence[StepRuns], new: Sequence[StepRuns]) -> Iterator[str]:
    """Yield what the base has and the new runs have not: a step that is gone is not checked."""
    fresh = {step for subject in new for step in subject.steps}
    gone = [s for s in dict.fromkeys(s for b in base for s in b.steps) if s not in fresh]
    if gone:
        yield f"Not in the new runs, so not checked: {', '.join(gone)}."


def _unfinished(new: Sequence[StepRuns]) -> Iterator[str]:
    for subject in new:
        for step, run in subject.steps.items():
            if run.status in _BROKEN:
                what = f"{step} of {subject.label}" if subject.is_workflow else subject.label
                yield f"{what} is {run.status}: its figures are not those of the whole work."


def find_same_hardware(candidates: Sequence[PerfRun], like: PerfRun) -> list[PerfRun]:
    """Return the runs that had the same hardware as another, in their order.

    Args:
        candidates: Runs of history.
        like: The run to be like.

    Raises:
        RunNotFoundError: When none of them had.
    """
    wanted = hardware(like)
    found = [run for run in candidates if _is_like(hardware(run), wanted)]
    if not found:
        raise RunNotFoundError(
            f"None of the {len(candidates)} runs found in history had the hardware of {like.label}."
        )
    return found


def _is_like(one: Mapping[str, object], other: Mapping[str, object]) -> bool:
    return all(is_alike(key, one[key], other[key]) for key in one.keys() & other.keys())
