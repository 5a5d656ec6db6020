"""Decides whether new runs are within limits relative to old ones, despite noise."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from mlflow_perf.analysis.change_sentence import (
    describe_change,
    find_middle,
    measure_run,
    measure_side,
)
from mlflow_perf.analysis.compare import calculate_change_pct, match_components
from mlflow_perf.analysis.gate_limits import AUTO_RUNS, Limit, parse_limit, resolve_limit
from mlflow_perf.analysis.judgement import ALPHA, Judgement, judge, judge_change
from mlflow_perf.analysis.profile_changes import compare_repeats
from mlflow_perf.analysis.step_runs import (
    Ref,
    StepRuns,
    as_list,
    compare_hardware,
    list_steps,
    load_step_runs,
)
from mlflow_perf.errors import MlflowPerfError, SettingError
from mlflow_perf.model.document import BROKEN
from mlflow_perf.tracking.load import load
from mlflow_perf.tracking.perf_run import PerfRun

WHOLE = "workflow"
"""Name by which the duration of a whole workflow is judged, unless a step of it has that name."""

__all__ = ["Check", "GateResult", "Judgement", "check", "judge"]


@dataclass(frozen=True)
class Check:
    """One limit, applied to one step.

    Attributes:
        step: Name of the step.
        limit: The limit.
        base: The base's values, one per run.
        new: The new runs' values.
        outcome: `passed`; `failed`; `noise` (beyond the limit, but within the noise; passes); or
            `no base` (too little to compare with: not judged).
        how: How it was decided, in one sentence.
        p: The test's p, if there was one.
        more_runs: How many more new runs would separate noise from change; 0 if the figures
            suffice.
    """

    step: str
    limit: Limit
    base: tuple[float, ...]
    new: tuple[float, ...]
    outcome: str
    how: str
    p: float | None = None
    more_runs: int = 0

    @property
    def passed(self) -> bool:
        """Whether this check found no limit exceeded."""
        return self.outcome != "failed"

    @property
    def base_median(self) -> float | None:
        """The median of the base's values."""
        return statistics.median(self.base) if self.base else None

    @property
    def new_median(self) -> float | None:
        """The median of the new values."""
        return statistics.median(self.new) if self.new else None

    @property
    def change_pct(self) -> float | None:
        """The change from the base's median to the new one, in per cent."""
        return calculate_change_pct(self.base_median, self.new_median)


@dataclass(frozen=True)
class GateResult:
    """A gate's decision.

    Attributes:
        checks: Each limit on each step.
        base: Names of the base's runs.
        new: Names of the new runs.
        notes: What a reader must know: different hardware, other components.
        failures: What fails the gate whatever its figures: a new run that did not finish.
        functions: Step that failed → the functions that account for its change of duration.
        sentence: What changed from the base's median to that of the new runs, and why.
        unjudged: The limits that could not be judged on any step; each is a sentence.
    """

    checks: tuple[Check, ...]
    base: tuple[str, ...]
    new: tuple[str, ...]
    notes: tuple[str, ...] = ()
    failures: tuple[str, ...] = ()
    functions: Mapping[str, str] = field(default_factory=dict)
    sentence: str = ""
    unjudged: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        """Whether every limit was judged and holds, and every new run finished."""
        return self.exit_code == 0

    @property
    def exit_code(self) -> int:
        """0 if it passed, 1 if it failed, 2 if it did not fail but a limit cannot be judged."""
        if self.failures or not all(check.passed for check in self.checks):
            return 1
        return 2 if self.unjudged else 0

    def as_dict(self) -> dict[str, Any]:
        """Return the decision as plain data, for JSON."""
        values = ("base", "new", "base_median", "new_median", "change_pct")
        fields = (*values, "p", "outcome", "passed", "how", "more_runs")
        checks = [
            {"step": check.step, "limit": check.limit.text, "metric": check.limit.key}
            | {name: getattr(check, name) for name in fields}
            for check in self.checks
        ]
        return {
            "passed": self.passed,
            "sentence": self.sentence,
            "base": self.base,
            "new": self.new,
            "checks": checks,
            "notes": self.notes,
            "failures": self.failures,
            "unjudged": self.unjudged,
            "functions": self.functions,
        }


def check(
    base: Ref | Sequence[Ref],
    new: Ref | Sequence[Ref],
    limits: str | Sequence[str | Limit],
    *,
    alpha: float = ALPHA,
) -> GateResult:
    """Return whether new runs are within limits relative to a base.

    The rule depends on the number of repeats; see `judge`. Each check names its rule.

    Args:
        base: Run to compare with, or several; may be empty if every limit is absolute.
        new: Run to judge, or several; workflows are judged step by step.
        limits: One or several; see `gate_limits.parse_limit`.
        alpha: Highest acceptable chance that the test takes noise for a regression.

    Raises:
        SettingError: When a limit cannot be read, no run has its metric, or none is given.
        RunNotFoundError: When a run does not exist or holds no performance data.
        DocumentError: When a file is not a document that this version reads.
    """
    if not 0 < alpha < 1:
        raise SettingError(f"alpha must be between 0 and 1, not {alpha}.")
    base, new = as_list(base), as_list(new)
    limits = [limits] if isinstance(limits, str) else limits
    wanted = [parse_limit(text) if isinstance(text, str) else text for text in limits]
    if not wanted or not new:
        raise SettingError("Name a new run and at least one limit, such as node_cpu_hours=+10%.")
    sides, notes = match_components(load_step_runs([*base, *new], with_parent=True))
    old, fresh = sides[: len(base)], sides[len(base) :]
    judged = [_add_whole(side) for side in sides]
    halves = judged[: len(base)], judged[len(base) :]
    found = [_check_steps(resolve_limit(limit, judged), *halves, alpha) for limit in wanted]
    checks = [one for of_limit in found for one in of_limit]
    gone = [step for step in list_steps(old) if step not in list_steps(fresh)]
    notes += compare_hardware(sides)
    if gone:
        notes.append(f"Not in the new runs, so not checked: {', '.join(gone)}.")
    return GateResult(
        tuple(checks),
        tuple(side.label for side in old),
        tuple(side.label for side in fresh),
        tuple(notes),
        tuple(
            # Not RUNNING: its owner may never end that run, and the figures are complete.
            f"{name} is {status}: its figures are not those of the whole work."
            for side in fresh
            for name, status in _list_statuses(side)
            if status in BROKEN
        ),
        {
            step: sentence
            for step in dict.fromkeys(one.step for one in checks if not one.passed)
            if (sentence := _name_functions(step, old, fresh))
        },
        describe_change(old, fresh) if old else "",
        _list_unjudged(wanted, found),
    )


def _add_whole(side: StepRuns) -> StepRuns:
    """Return a workflow with itself as one more step, of which only the duration is known."""
    seconds = measure_side(side) if side.is_workflow else None
    if seconds is None:
        return side
    whole = PerfRun(side.label, metrics={"duration_sec": seconds, "run_duration_sec": seconds})
    return replace(side, steps={WHOLE: whole, **side.steps})


def _list_statuses(side: StepRuns) -> Iterator[tuple[str, str | None]]:
    """Return the names and statuses of the steps, and those of the workflow itself."""
    runs = side.steps.values()
    if side.is_workflow and all(run.run_id != side.run.run_id for run in runs):
        yield side.label, side.run.status
    for step, run in side.steps.items():
        yield side.name_step(step), run.status


def _name_functions(step: str, old: Sequence[StepRuns], fresh: Sequence[StepRuns]) -> str:
    """Return which functions account for a step's change, between the median runs; or ""."""
    nodes = []
    for sides in (old, fresh):
        runs = [side.steps[step] for side in sides if step in side.steps]
        if not runs:
            return ""
        try:
            documents = [
                run.document or load(run.run_id or "") for run in find_middle(runs, measure_run)
            ]
        except MlflowPerfError:  # the figures alone have decided
            return ""
        nodes.append([document.all_nodes() for document in documents])
    change = compare_repeats(*nodes)
    return "" if change is None else change.sentence


def _read_values(limit: Limit, step: str, sides: Sequence[StepRuns]) -> tuple[float, ...]:
    runs = [side.steps[step] for side in sides if step in side.steps]
    values = (run.read_worst(limit.key, upward=limit.upward) for run in runs)
    return tuple(value for value in values if value is not None)


def _check_steps(
    limit: Limit, old: Sequence[StepRuns], fresh: Sequence[StepRuns], alpha: float
) -> list[Check]:
    """Return the limit's check of each step of the new runs that it applies to."""
    checks = []
    for step in list_steps(fresh):
        # A value without a base, such as 60 s, is meant for each step, and not for all of them.
        is_meant = limit.relative or step != WHOLE
        if limit.step == step or (limit.step is None and is_meant):
            values = _read_values(limit, step, old), _read_values(limit, step, fresh)
            checks += [_decide(step, limit, *values, alpha)] if any(values) else []
    return checks


def _list_unjudged(limits: Sequence[Limit], found: Sequence[Sequence[Check]]) -> tuple[str, ...]:
    """Return why each limit that was judged on no step cannot be judged.

    A step that is new beside others has no base by nature: it must not fail each change.
    """
    unjudged = []
    for limit, checks in zip(limits, found, strict=True):
        if all(one.outcome == "no base" for one in checks):
            why = checks[0].how if checks else "No new run has what it limits."
            unjudged.append(f"{limit.text} cannot be judged. {why}")
    return tuple(unjudged)


def _decide(
    step: str, limit: Limit, base: tuple[float, ...], new: tuple[float, ...], alpha: float
) -> Check:
    def decided(outcome: str, how: str) -> Check:
        return Check(step, limit, base, new, outcome, how)

    if not new:
        return decided("failed", "The new runs do not have this metric.")
    fitted = limit.fit(base)
    if fitted is None:
        few = f"The noise of the base needs {AUTO_RUNS} runs with this metric, not {len(base)}."
        return decided("no base", few)
    limit = fitted
    bound = limit.bound(statistics.median(base) if base else None)
    if bound is None:
        return decided("no base", "No run of the base has this metric.")
    if not limit.relative:
        holds = limit.holds(statistics.median(new), bound)
        what = "value" if len(new) == 1 else "median"
        return decided("passed" if holds else "failed", f"The {what} against the limit.")
    found = judge_change(base, new, limit.move, upward=limit.upward, alpha=alpha)
    return Check(step, limit, base, new, found.outcome, found.how, found.p, found.more_runs)
