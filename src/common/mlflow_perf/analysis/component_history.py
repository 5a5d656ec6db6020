"""One metric over a component's past: its levels, where they changed, and the pinned baseline."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from typing import Any

from mlflow_perf.analysis.compare import calculate_change_pct
from mlflow_perf.analysis.history import change_points
from mlflow_perf.analysis.metric_text import find_direction
from mlflow_perf.analysis.step_runs import find_same_hardware
from mlflow_perf.core.format import suggest
from mlflow_perf.errors import RunNotFoundError, SettingError
from mlflow_perf.tracking.perf_run import PerfRun
from mlflow_perf.tracking.search import find_runs

DEFAULT_METRIC = "duration_sec"
_NAMES_SEARCHED = 1000
_FINISHED = "attributes.status = 'FINISHED'"


@dataclass(frozen=True)
class Point:
    """One run of the past.

    Attributes:
        run_id: The run.
        time: When it started, Unix time in seconds; None where unknown.
        value: Its value; of several nodes, the worst one's.
    """

    run_id: str
    time: float | None
    value: float


@dataclass(frozen=True)
class Change:
    """A lasting change of the level.

    Attributes:
        run_id: The first run after it.
        before: Median of the level before.
        after: Median of the level after.
        change_pct: The change in per cent of the level before; None if that is 0.
    """

    run_id: str
    before: float
    after: float
    change_pct: float | None


@dataclass(frozen=True)
class History:
    """One metric of one component, oldest run first.

    Attributes:
        component: The component.
        metric: Key of the metric.
        points: The runs that have it.
        changes: Where its level changed.
        baseline: The newest run with the tag `mlflow_perf.baseline`; None without one.
        left_out: How many finished runs ran on other hardware, with other parameters, or lack the
            metric.
    """

    component: str
    metric: str
    points: Sequence[Point]
    changes: Sequence[Change]
    baseline: Point | None = None
    left_out: int = 0

    @property
    def levels(self) -> list[tuple[int, int, float]]:
        """The runs between two changes: index of the first, index after the last, their median."""
        ids = [point.run_id for point in self.points]
        edges = [0, *(ids.index(change.run_id) for change in self.changes), len(ids)]
        return [(a, b, _find_median(self.points[a:b])) for a, b in pairwise(edges)]

    @property
    def level(self) -> float:
        """Median of the runs since the last change."""
        return self.levels[-1][2]

    def as_dict(self) -> dict[str, Any]:
        """Return the history as plain data."""
        pinned = None
        if self.baseline is not None:
            change = calculate_change_pct(self.baseline.value, self.level)
            pinned = {**asdict(self.baseline), "change_pct": change}
        return {
            "component": self.component,
            "metric": self.metric,
            "points": [asdict(point) for point in self.points],
            "changes": [asdict(change) for change in self.changes],
            "baseline": pinned,
            "left_out": self.left_out,
        }


def read_history(
    component: str,
    metric: str = DEFAULT_METRIC,
    *,
    last: int = 200,
    filter_string: str = "",
    same_params: Sequence[str] | None = (),
    any_hardware: bool = False,
) -> History:
    """Return one metric of a component's finished runs, on the hardware of the newest one.

    Args:
        component: The component.
        metric: A metric of mlflow-perf, or a metric that the job logged.
        last: The newest so many runs are read.
        filter_string: A further condition, in MLflow's search language.
        same_params: Only runs in which these parameters are those of the newest run; None: all.
        any_hardware: Whether to keep runs on other hardware.

    Raises:
        RunNotFoundError: When the component has no finished run, or the store does not answer.
        SettingError: When no run has the metric, or the condition cannot be read.
    """
    query = f"{_FINISHED} and {filter_string}" if filter_string.strip() else _FINISHED
    found = find_component_runs(component, filter_string=query, last=last, kind="finished run")
    finished = [run for run in found if run.status == "FINISHED"]
    if not finished:
        raise RunNotFoundError(f"There is no finished run of the component {component!r}.")
    history = build_history(
        component, metric, finished, same_params=same_params, any_hardware=any_hardware
    )
    return replace(history, left_out=len(found) - len(history.points))


def find_component_runs(
    name: str,
    *,
    last: int,
    filter_string: str = "",
    documents: bool | None = None,
    kind: str = "run",
    silent: list[PerfRun] | None = None,
) -> list[PerfRun]:
    """Return the newest runs of a component that hold performance data; at least one.

    Args:
        name: The component.
        last: At most so many runs.
        filter_string: A further condition, in MLflow's search language.
        documents: As in `find_runs`.
        kind: Which runs these are, for the message.
        silent: As in `find_runs`.

    Raises:
        RunNotFoundError: When there is none; the message names the component that may be meant.
    """
    found = find_runs(
        name, filter_string=filter_string, max_results=last, documents=documents, silent=silent
    )
    if not found:
        runs = find_runs(max_results=_NAMES_SEARCHED, documents=False)
        names = {known for run in runs for known in (run.component, *run.components) if known}
        hint = suggest(name, names - {name})
        raise RunNotFoundError(f"No {kind} of the component {name!r} holds performance data{hint}")
    return found


def build_history(
    component: str,
    metric: str,
    finished: Sequence[PerfRun],
    *,
    same_params: Sequence[str] | None = (),
    any_hardware: bool = False,
) -> History:
    """Return one metric of runs that were read already.

    Args:
        component: The component.
        metric: As in `read_history`.
        finished: The component's finished runs, newest first; at least one.
        same_params: As there.
        any_hardware: As there.

    Raises:
        SettingError: When no run like the newest has the metric, or that one lacks a parameter.
    """
    keys = {key for run in finished for key in run.metric_keys}
    if metric not in keys:
        hint = suggest(metric, keys)
        raise SettingError(f"No run of {component!r} has the metric {metric!r}{hint}")
    newest = finished[0]
    kept = finished if any_hardware else find_same_hardware(finished, newest)
    if same_params is None:
        kept = [run for run in kept if run.params == newest.params]
    else:
        unknown = [name for name in same_params if name not in newest.params]
        if unknown:
            raise SettingError(f"The newest run, {newest.label}, has no parameter {unknown[0]!r}.")
        wanted = [newest.params[name] for name in same_params]
        kept = [run for run in kept if [run.params.get(name) for name in same_params] == wanted]
    upward = find_direction(metric) != "higher"
    points, baseline = [], None
    for run in reversed(kept):
        value = run.read_worst(metric, upward=upward)
        if value is not None and run.run_id is not None:
            points.append(Point(run.run_id, run.started, value))
            if run.is_baseline:
                baseline = points[-1]
    if not points:
        raise SettingError(f"No run like the newest, {newest.label}, has a number as {metric!r}.")
    edges = change_points([point.value for point in points])
    bounds = [0, *edges, len(points)]
    medians = [_find_median(points[start:end]) for start, end in pairwise(bounds) if start < end]
    changes = [
        Change(points[edge].run_id, before, after, calculate_change_pct(before, after))
        for edge, before, after in zip(edges, medians, medians[1:], strict=False)
    ]
    return History(component, metric, points, changes, baseline, len(finished) - len(points))


def _find_median(points: Sequence[Point]) -> float:
    return statistics.median(point.value for point in points)


def find_past(
    judged: Sequence[PerfRun],
    component: str | None,
    condition: str,
    *,
    most: int,
    any_hardware: bool,
) -> list[PerfRun]:
    """Return the finished runs of the past that resemble the new ones, newest first.

    Args:
        judged: The new runs.
        component: The component; None for the one of the first new run.
        condition: A condition in MLflow's search language; empty for all.
        most: How many runs are searched.
        any_hardware: Whether to keep runs on other hardware than the first new run's.

    Raises:
        RunNotFoundError: When there is none.
        SettingError: When the component is not known, or the condition cannot be read.
    """
    name = component or judged[0].component
    if name is None:
        raise SettingError(
            f"{judged[0].label} names no component to search for: give --component NAME, "
            "or name the runs of the base."
        )
    query = f"{_FINISHED} and {condition}" if condition.strip() else _FINISHED
    found = find_runs(name, filter_string=query, max_results=most)
    ids = {run.run_id for run in judged}
    # A block may have failed in a run that went on and finished.
    others = [run for run in found if run.run_id not in ids and run.status == "FINISHED"]
    if not others:
        raise RunNotFoundError(f"There is no other finished run of {name!r} to compare with.")
    return others if any_hardware else find_same_hardware(others, judged[0])
