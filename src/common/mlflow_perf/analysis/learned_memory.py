"""Predicts the memory of a component's next run from its earlier runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from mlflow_perf.analysis.sizing import Sizer, Suggestion

_MOST_MB = 1e12
_MOST_SEC = 1e15
_NEWEST = 1000
"""Of older runs only the largest peak is known to the advice."""


@dataclass(frozen=True)
class SeenRun:
    """One run as the sizer sees it.

    Attributes:
        label: Name for people.
        peak_mb: The most memory that it needed, mlflow-perf's included, in MB; 0.0 if unknown.
        duration_sec: How long it took.
        inputs: Numbers that may predict its peak.
        failed_mb: Memory that it had when it was killed for lack of memory; 0.0 if it was not.
        ended_well: Whether it finished, so that its peak is that of the whole work.
    """

    label: str
    peak_mb: float
    duration_sec: float
    inputs: Mapping[str, float] = field(default_factory=dict)
    failed_mb: float = 0.0
    ended_well: bool = True


@dataclass(frozen=True)
class LearnedMemory:
    """What was learned.

    Attributes:
        suggestion: What the sizer suggests.
        wanted_mb: The suggestion, or the largest peak where nothing says that less is enough.
        failed_mb: The largest memory with which a run that still counts was killed; 0.0 if none.
        teachers: The runs that it was learned from, oldest first.
    """

    suggestion: Suggestion
    wanted_mb: float
    failed_mb: float
    teachers: Sequence[SeenRun]


def learn_memory(
    seen: Sequence[SeenRun],
    *,
    risk: float = 0.01,
    inputs: Mapping[str, float] | None = None,
    failed_mb: float = 0.0,
) -> LearnedMemory | None:
    """Return how much memory the next run needs; None if no run has a peak and none was killed.

    A run that failed for another reason than memory may have ended early: it counts only if no run
    that ended well had as much memory. Without an input that predicts less, and without a change
    of the component, the largest peak is never undercut.

    Args:
        seen: The runs, oldest first.
        risk: Share of runs that may be too small.
        inputs: What the next run gets.
        failed_mb: Memory with which the next run itself was killed before; 0.0 if it was not.

    Raises:
        SettingError: When the risk or an input cannot be used.
    """
    teachers = list_teachers(seen)
    sizer = Sizer(risk)
    for run in teachers[-_NEWEST:]:
        sizer.observe(
            peak_mb=min(run.peak_mb, _MOST_MB),
            duration_sec=min(run.duration_sec, _MOST_SEC),
            inputs=run.inputs,
        )
    counting: Sequence[SeenRun] = seen
    if teachers:
        found = sizer.suggest(inputs=inputs)
        if found.after_change:
            teachers = teachers[-found.runs :]
            counting = seen[next(i for i, run in enumerate(seen) if run is teachers[0]) :]
    # A run that was killed needed more than it had; what was seen of it is no peak.
    failed = max([failed_mb, *(max(r.failed_mb, r.peak_mb) for r in counting if r.failed_mb)])
    if not teachers and not failed:
        return None
    found = sizer.suggest(inputs=inputs, failed_mb=min(failed, _MOST_MB) or None)
    wanted = found.memory_mb
    if found.predictor is None:
        wanted = max([wanted, *(run.peak_mb for run in counting)])
    return LearnedMemory(found, wanted, failed, teachers)


def list_teachers(seen: Sequence[SeenRun]) -> list[SeenRun]:
    """Return the runs from which memory is learned, oldest first.

    Those that did not end well are among them where none that did had as much memory.
    """
    known = [run for run in seen if run.peak_mb > 0 and not run.failed_mb]
    most_mb = max((run.peak_mb for run in known if run.ended_well), default=0.0)
    return [run for run in known if run.ended_well or run.peak_mb > most_mb]
