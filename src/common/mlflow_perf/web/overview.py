"""The overview of the fleet as plain data: totals, weeks, groups, and changes for the worse."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from mlflow_perf.analysis.fleet import NO_GROUP, FleetRow, add_rows, build_rows, find_worse
from mlflow_perf.core.format import MISSING, format_change, format_count, format_for_people
from mlflow_perf.reports.digest import build_columns
from mlflow_perf.reports.tables import Tile
from mlflow_perf.tracking.fleet_sums import Sums
from mlflow_perf.web.trends import Trend

WEEK_SEC = 7 * 86_400.0
_WEEKS = 12
_MOST_ROWS = 50
_FILTERS = {"experiment": "experiment", "user": "user", "component": "component"}

SumRuns = Callable[[str, "float | None", "float | None"], "list[Sums] | None"]
"""Takes a grouping and a span of time, Unix time in seconds; returns the sums of each group."""


@dataclass(frozen=True)
class Week:
    """What one week held.

    Attributes:
        name: The week, as in `2026-W47`.
        used_pct: Used hours in per cent of the greatest week's held ones.
        unused_pct: Unused hours likewise.
        text: The figures in words.
    """

    name: str
    used_pct: float
    unused_pct: float
    text: str


@dataclass(frozen=True)
class Overview:
    """The content of the overview.

    Attributes:
        by: What the rows are groups of.
        tiles: The totals of the span, against the span before.
        weeks: The last weeks, the oldest first.
        header: Headings of the groups' table.
        rows: Name, filter of the list, and cells with the length of their bars, of each group.
        left_out: How many groups are not shown.
        worse: What got worse in the last seven days; sentences.
        advice: What would change what wasted most; sentences by component.
        trends: The components' trends.
    """

    by: str
    tiles: Sequence[Tile]
    weeks: Sequence[Week]
    header: Sequence[str]
    rows: Sequence[tuple[str, dict[str, str], list[tuple[str, int]]]]
    left_out: int = 0
    worse: Sequence[str] = ()
    advice: Sequence[tuple[str, str]] = ()
    trends: Sequence[Trend] = field(default_factory=list)


def list_edges(span_sec: float, now: float) -> list[float]:
    """Return the moments between which the overview sums up, the earliest first."""
    spans = (span_sec, 2 * span_sec, _WEEKS * WEEK_SEC, WEEK_SEC, 2 * WEEK_SEC)
    return sorted({now - span for span in spans})


def build_overview(
    sum_runs: SumRuns, experiments: Mapping[str, str], *, by: str, span_sec: float, now: float
) -> Overview | None:
    """Return the overview without advice and trends; None if the store cannot be summed up.

    Args:
        sum_runs: Sums up the runs that the user may read.
        experiments: The experiments that the user may read: id → name.
        by: One of `GROUPS`.
        span_sec: How far back the totals and the groups go.
        now: Unix time in seconds.
    """
    names = {int(key): name for key, name in experiments.items() if key.isdecimal()}

    def read(group: str, since: float, until: float | None = None) -> list[FleetRow] | None:
        found = sum_runs(group, since, until)
        return None if found is None else build_rows(group, found, names)

    rows = read(by, now - span_sec)
    if rows is None:
        return None
    earlier = read(by, now - 2 * span_sec, now - span_sec) or []
    weeks = read("week", now - _WEEKS * WEEK_SEC) or []
    group = by if by != "week" else "component"
    worse = find_worse(
        read(group, now - WEEK_SEC) or [],
        read(group, now - 2 * WEEK_SEC, now - WEEK_SEC) or [],
    )
    header, cells = _build_table(by, rows[:_MOST_ROWS])
    ids = {name: key for key, name in experiments.items()}
    groups = [row.group for row in rows[:_MOST_ROWS]]
    # The filter that lists the runs of a group, where the list has one.
    filters = [
        {_FILTERS[by]: ids.get(group, group) if by == "experiment" else group}
        if group != NO_GROUP and by in _FILTERS
        else {}
        for group in groups
    ]
    return Overview(
        by,
        _build_tiles(add_rows(rows), add_rows(earlier)),
        _build_weeks(weeks),
        header,
        list(zip(groups, filters, cells, strict=True)),
        max(0, len(rows) - _MOST_ROWS),
        worse,
    )


def _build_tiles(whole: FleetRow, before: FleetRow) -> list[Tile]:
    """Return the totals, each with its change against the span before."""

    def compare(new: float | None, old: float | None) -> str:
        if not old or new is None:
            return ""
        return f"{format_change(100.0 * (new - old) / old)} on the time before"

    figures, past = whole.figures, before.figures
    share = f"{100.0 * whole.failed / whole.runs:.1f}% of the runs" if whole.runs else ""
    tiles = [
        Tile("Runs", f"{whole.runs:,}", compare(whole.runs, before.runs)),
        Tile("Failed or killed", f"{whole.failed:,}", share),
    ]
    for name, label, kind, unit in (
        ("cpu_hours", "CPU time held", "CPU time used by nobody", "CPU h"),
        ("gpu_hours", "GPU time held", "GPU time unused", "GPU h"),
        ("cost", "Cost", "Cost of what was unused", ""),
    ):
        held, unused = figures[name], figures[f"unused_{name}"]
        if held is not None:
            (text,) = format_for_people([held], unit)
            tiles.append(Tile(label, text, compare(held, past[name])))
        if held and unused is not None:
            part = f"{100.0 * unused / held:.0f}% of it"
            tiles.append(Tile(kind, format_for_people([unused], unit, cpu_hours=[held])[0], part))
    return tiles


def _build_weeks(rows: Sequence[FleetRow]) -> list[Week]:
    """Return the weeks, the oldest first, as bars of the same scale."""
    ordered = sorted(rows, key=lambda row: row.group)[-_WEEKS:]
    most = max((row.figures["cpu_hours"] or 0.0 for row in ordered), default=0.0)
    weeks = []
    for row in ordered:
        held = row.figures["cpu_hours"] or 0.0
        unused = min(held, row.figures["unused_cpu_hours"] or 0.0)
        hours = [
            format_for_people([value], "CPU h", cpu_hours=[most])[0] for value in (held, unused)
        ]
        runs = f"{format_count(row.runs, 'run')}, {row.failed:,} failed"
        text = f"{hours[0]} held, {hours[1]} used by nobody; {runs}"
        scale = 100.0 / most if most else 0.0
        weeks.append(Week(row.group, scale * (held - unused), scale * unused, text))
    return weeks


def _build_table(
    by: str, rows: Sequence[FleetRow]
) -> tuple[list[str], list[list[tuple[str, int]]]]:
    """Return the headings, and of each row its texts with the length of their bars."""
    figures = build_columns(rows)
    columns: list[Sequence[float | None]] = [[float(row.runs) for row in rows]]
    columns.append([float(row.failed) for row in rows])
    columns += [column.values for column in figures]
    texts: list[list[tuple[str, int]]] = []
    for i, values in enumerate(columns):
        most = max((value or 0.0 for value in values), default=0.0)
        shape = "{:,.0f}" if i < 2 else "{:,.1f}" if most >= 10 else "{:,.2f}"
        shown = [MISSING if value is None else shape.format(value) for value in values]
        shares = [round(100 * max(0.0, value or 0.0) / most) if most else 0 for value in values]
        texts.append(list(zip(shown, shares, strict=True)))
    header = [by, "runs", "failed", *(column.head for column in figures)]
    return header, [list(row) for row in zip(*texts, strict=True)]
