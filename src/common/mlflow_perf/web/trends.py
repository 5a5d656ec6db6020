"""The trend of a component's metric as plain data: its dots, its levels, and where they changed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from mlflow_perf.analysis.component_history import Change, History, build_history
from mlflow_perf.analysis.metric_text import find_direction, find_unit
from mlflow_perf.core.format import (
    clock_time,
    format_change,
    format_count,
    format_pair,
    quantity,
)
from mlflow_perf.tracking.perf_run import PerfRun
from mlflow_perf.web.plots import Dot, Line, Plot, Scale

HISTORY_KEYS = ("duration_sec", "run_duration_sec", "node_count", "run_node_count",
                "cpu_limit_cores", "mem_limit_mb")  # fmt: skip
"""The metrics that say on which hardware a run was, and whether it has figures."""

_NEWEST = 20


@dataclass(frozen=True)
class ChangeRow:
    """A lasting change.

    Attributes:
        text: What changed, in words.
        verdict: `better`, `worse`, or empty where neither is known.
        time: When the first run after it started, Unix time in seconds.
        run_id: That run.
        before_id: The last run before it.
    """

    text: str
    verdict: str
    time: float
    run_id: str
    before_id: str


@dataclass(frozen=True)
class Trend:
    """One metric of one component over its past.

    Attributes:
        component: The component.
        metric: Key of the metric.
        plot: The runs over the time.
        changes: The lasting changes, the newest first.
        summary: The present level in a sentence, and how it compares with the baseline.
        left_out: A sentence on the runs that are not shown; may be empty.
        newest: The newest runs: id, start, value, and whether it is the baseline.
    """

    component: str
    metric: str
    plot: Plot
    changes: Sequence[ChangeRow]
    summary: str
    left_out: str
    newest: Sequence[tuple[str, str, str, bool]]


def build_trend(
    component: str,
    metric: str,
    runs: Sequence[PerfRun],
    *,
    same_params: Sequence[str] = (),
    any_hardware: bool = False,
) -> Trend:
    """Return the trend of a metric.

    Args:
        component: The component.
        metric: A metric of mlflow-perf, or a metric that the job logged.
        runs: The component's finished runs, newest first; at least one.
        same_params: Only runs with the newest run's values of these parameters.
        any_hardware: Whether to keep runs on other hardware than the newest one's.

    Raises:
        SettingError: When no run has the metric, or the newest lacks a parameter.
    """
    history = build_history(
        component, metric, runs, same_params=same_params, any_hardware=any_hardware
    )
    names = {run.run_id: run.name or str(run.run_id)[:8] for run in runs}
    changes = _list_changes(history)
    since = f" since {changes[0].text.split(',')[0]}" if changes else ""
    count = format_count(len(history.points), "run")
    summary = f"{count}; median {_say(metric, history.level)}{since}."
    pinned = history.as_dict()["baseline"]
    if pinned is not None:
        change = format_change(pinned["change_pct"])
        summary += f" Baseline {_say(metric, pinned['value'])}: {change} now."
    left_out = ""
    if history.left_out:
        rest = format_count(history.left_out, "run")
        left_out = f"{rest} left out: other hardware or parameters, or no value."
    newest = [
        (p.run_id, clock_time(p.time)[:16], _say(metric, p.value), p == history.baseline)
        for p in reversed(history.points[-_NEWEST:])
    ]
    plot = _draw(history, names)
    return Trend(component, metric, plot, changes, summary, left_out, newest)


def _say(metric: str, value: float) -> str:
    """Return a value with its unit; a bare number, such as an accuracy, with four digits."""
    unit = find_unit(metric)
    return quantity(value, unit) if unit else f"{value:,.4g}"


def _list_changes(history: History) -> list[ChangeRow]:
    """Return the changes in words, the newest first."""
    direction = find_direction(history.metric)
    before = {later.run_id: earlier.run_id for earlier, later in pairwise(history.points)}
    times = {point.run_id: point.time or 0.0 for point in history.points}

    def describe(change: Change) -> ChangeRow:
        rose = change.after > change.before
        verdict = "" if not direction else "worse" if rose == (direction == "lower") else "better"
        unit = find_unit(history.metric)
        values = [_say(history.metric, v) for v in (change.before, change.after)]
        pair = format_pair(change.before, change.after, unit) if unit else " → ".join(values)
        when = clock_time(times[change.run_id])[:16]
        text = f"{when}, {pair} ({format_change(change.change_pct)})"
        return ChangeRow(text, verdict, times[change.run_id], change.run_id, before[change.run_id])

    return [describe(change) for change in reversed(history.changes)]


def _draw(history: History, names: dict[str | None, str]) -> Plot:
    """Return the runs over the time, with the median of each level."""
    unit, points = find_unit(history.metric), history.points
    times = [point.time or 0.0 for point in points]
    values = [point.value for point in points]
    pinned = history.baseline
    shown = values if pinned is None else [*values, pinned.value]
    across, up = Scale.over(times), Scale.over(shown, from_zero=True)
    dots = [
        Dot(
            across.place(time),
            up.place(p.value),
            f"{names.get(p.run_id, '')}: {_say(history.metric, p.value)}, {clock_time(time)[:16]}",
            p.run_id,
            int(p == pinned),
        )
        for p, time in zip(points, times, strict=True)
    ]
    levels = []
    for start, end, middle in history.levels:
        left = across.place(times[start]) if start else 0.0
        right = across.place(times[end]) if end < len(times) else 100.0
        levels.append(Line(left, right - left, up.place(middle), _say(history.metric, middle)))
    base = None
    if pinned is not None:
        text = f"baseline {_say(history.metric, pinned.value)}"
        base = Line(0.0, 100.0, up.place(pinned.value), text)
    return Plot(across.mark("time"), up.mark(unit), dots, levels, base, "started", history.metric)
