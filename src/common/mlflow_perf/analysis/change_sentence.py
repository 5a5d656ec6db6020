"""Describes in one sentence the change from one run to another, and its likely cause."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import PurePosixPath
from typing import TypeVar

from mlflow_perf.analysis.change_causes import list_causes
from mlflow_perf.analysis.profile_changes import compare_repeats
from mlflow_perf.analysis.step_runs import StepRuns, list_steps
from mlflow_perf.core.format import cut_text, format_pair, join_some
from mlflow_perf.core.format import duration as format_duration
from mlflow_perf.model.document import BROKEN
from mlflow_perf.tracking.perf_run import PerfRun

_SAME_RATIO = 1.05
_TIMES_RATIO = 1.5
_MOST_STEPS, _MOST_PARAMETERS = 2, 4
_STEP_SHARE = 0.3
_LONGEST_TEXT = 28

_Run = TypeVar("_Run", StepRuns, PerfRun)


def describe_change(base: Sequence[StepRuns], new: Sequence[StepRuns]) -> str:
    """Return what changed from one run or workflow to another as one sentence.

    For example: "18.0 × slower: `train` 22 → 396 s; waiting for CPUs 0.44 → 380 s, others on the
    node; threads 1 → 2, leaves 63 → 255". Causes are of the step that changed most. Of several
    repeats the figures are medians, and the functions are those of the runs in the middle.

    Args:
        base: The run to compare with, or its repeats.
        new: The other run, or its repeats.
    """
    before, after = (_find_median(map(measure_side, sides)) for sides in (base, new))
    if unfinished := _tell_unfinished(base, new):
        before = after = None
    names = list_steps([*new, *base])
    steps = {name: (_list_runs(name, base), _list_runs(name, new)) for name in names}
    times = [
        (name, _measure_step(old), _measure_step(fresh))
        for name, (old, fresh) in steps.items()
        if (old and fresh) or not unfinished
    ]
    known = [(name, a, b) for name, a, b in times if a is not None and b is not None]
    known.sort(key=lambda one: -abs(one[2] - one[1]))
    changed = _choose_steps(known, before, after)
    parts = [unfinished or _describe_length(before, after)]
    if parts[0] and any(side.is_workflow for side in new) and _is_between(known, before, after):
        parts[0] += ", mostly outside of the measured steps"
        changed = known = []  # what little they changed explains nothing
    if changed:
        named = ", ".join(_describe_step(*one) for one in changed)
        parts[0] = f"{parts[0]}: {named}" if parts[0] else named
    step = next((name for name, *_ in changed or known if all(steps[name])), None)
    if step is not None:
        profiles = compare_repeats(
            *(
                [
                    run.document.all_nodes() if run.document else []
                    for run in find_middle(runs, measure_run)
                ]
                for runs in steps[step]
            )
        )
        if profiles is not None:
            # That the time went into the script itself is no news.
            own = tuple(f for f in profiles.functions if f.function != f.file)
            parts.append(replace(profiles, functions=own).sentence)
        parts.append(", ".join(list_causes(*steps[step])))
    old, fresh = (find_middle(sides, measure_side)[0] for sides in (base, new))
    parts.append(_describe_parameters(old, fresh, step))
    return "; ".join(part for part in parts if part)


def _list_runs(step: str, sides: Iterable[StepRuns]) -> list[PerfRun]:
    """Return the runs of a step, one for each side that has it."""
    return [side.steps[step] for side in sides if step in side.steps]


def _measure_step(runs: Sequence[PerfRun]) -> float | None:
    """Return the median duration of a step in seconds, 0.0 where no side has it."""
    return _find_median(map(measure_run, runs)) if runs else 0.0


def _describe_step(name: str, before: float, after: float) -> str:
    """Return how a step's duration changed, or that it was added or removed."""
    if before and after:
        return f"`{_cut(name)}` {format_pair(before, after, 's')}"
    how = "added" if after else "removed"
    return f"`{_cut(name)}` {how} ({format_duration(before or after)})"


def _find_median(values: Iterable[float | None]) -> float | None:
    """Return the median of what is known."""
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def find_middle(runs: Sequence[_Run], measure: Callable[[_Run], float | None]) -> list[_Run]:
    """Return the runs whose mean is the median: one of an odd number, two of an even one.

    Args:
        runs: The runs, at least one.
        measure: Returns a run's duration; runs without one are left out if others have one.
    """
    lengths = [(seconds, run) for run in runs if (seconds := measure(run)) is not None]
    ranked = [run for _, run in sorted(lengths, key=lambda one: one[0])] or list(runs)
    return ranked[(len(ranked) - 1) // 2 : len(ranked) // 2 + 1]


def measure_side(side: StepRuns) -> float | None:
    """Return how long a run took, in seconds: its longest node; a workflow from start to end."""
    parts = list(side.steps.values())
    if not side.is_workflow:
        return measure_run(parts[0])
    run = side.run
    if run.document is not None and all(part.run_id == run.run_id for part in parts):
        # Components may report after their run had ended in MLflow.
        run = PerfRun.from_document(run.label, run.document)
    return run.duration_sec or side.run.duration_sec or None


def measure_run(run: PerfRun) -> float | None:
    """Return the duration of a run's longest node, in seconds; None of a job killed too early."""
    own = max((s["duration_sec"] for s in run.nodes.values() if "duration_sec" in s), default=None)
    of_run = None if run.is_cut_off else run.duration_sec
    return run.figures.get("run_duration_sec", own) or of_run


def _tell_unfinished(base: Sequence[StepRuns], new: Sequence[StepRuns]) -> str:
    """Return which workflow ended badly before steps that the others have; or nothing.

    Of what it did not do it was neither slower nor faster.
    """
    names = list_steps([*base, *new])
    for side in (*base, *new):
        missing = [f"`{_cut(name)}`" for name in names if name not in side.steps]
        if side.is_workflow and side.run.status in BROKEN and missing:
            return f"{side.label} is {side.run.status}, without {join_some(missing)}"
    return ""


def _choose_steps(
    times: list[tuple[str, float, float]], before: float | None, after: float | None
) -> list[tuple[str, float, float]]:
    """Return the steps that account for the change, the largest first."""
    if before is None or after is None:
        return times[:1]
    changed = [
        one for one in times
        if (one[2] > one[1]) == (after > before)
        and max(one[1:]) >= _SAME_RATIO * min(one[1:])
        and abs(one[2] - one[1]) >= _STEP_SHARE * abs(times[0][2] - times[0][1])
    ]  # fmt: skip
    return changed[:_MOST_STEPS]


def _is_between(
    times: list[tuple[str, float, float]], before: float | None, after: float | None
) -> bool:
    """Return whether a workflow's change is not that of its steps: waits, or other steps."""
    if before is None or after is None or not times:
        return False
    longest = max(before, after)
    if longest < _SAME_RATIO * min(before, after):
        return False
    of_steps = sum(b - a for _, a, b in times if (b > a) == (after > before))
    return abs(of_steps) < _STEP_SHARE * abs(after - before)


def _describe_length(before: float | None, after: float | None) -> str:
    if not before or not after:
        return ""
    ratio = max(before, after) / min(before, after)
    if ratio < _SAME_RATIO:
        return f"About as long ({format_pair(before, after, 's')})"
    how = "slower" if after > before else "faster"
    if ratio >= _TIMES_RATIO:
        return f"{ratio:,.1f} × {how}"
    return f"{100 * abs(after - before) / before:.0f}% {how}"


def list_different(base: Mapping[str, str], new: Mapping[str, str]) -> dict[str, tuple[str, str]]:
    """Return the parameters that differ, by name, with both values; `–` for a missing one.

    A path in another folder is the same input: each run of a workflow has a folder of its own.
    """
    pairs = {name: (base.get(name, "–"), new.get(name, "–")) for name in {**base, **new}}
    different = {}
    for name, (one, other) in pairs.items():
        are_paths = "/" in one and "/" in other
        if are_paths and PurePosixPath(one).name == PurePosixPath(other).name:
            continue
        if one != other:
            different[name] = (one, other)
    return different


def _describe_parameters(base: StepRuns, new: StepRuns, step: str | None) -> str:
    """Return the parameters that differ; those of the step that changed most come first."""
    found: dict[str, tuple[str, str]] = {}
    names = [name for name in new.steps if name in base.steps]
    for name in sorted(names, key=lambda name: name != step):
        found = {**found, **list_different(base.steps[name].params, new.steps[name].params)}
    found = {**found, **list_different(base.run.params, new.run.params)}
    texts = [
        f"{_cut(name)} {_cut(a)} → {_cut(b)}" for name, (a, b) in found.items() if "–" not in (a, b)
    ]
    lone = [name for name, pair in found.items() if "–" in pair]
    if lone:
        which = _cut(lone[0]) if len(lone) == 1 else f"{len(lone)} parameters"
        texts.append(f"{which} in only one run")
    return join_some(texts, _MOST_PARAMETERS)


def _cut(text: str) -> str:
    """Return a user's text, short and without the marks of a code span."""
    return cut_text(text.replace("`", "'"), _LONGEST_TEXT)
