"""The page of a comparison as plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from mlflow_perf.core.format import MISSING, format_change, quantity
from mlflow_perf.core.json_io import read_number
from mlflow_perf.model.metrics import find_metric


@dataclass(frozen=True)
class ComparedRow:
    """One metric of one component and node, across the runs.

    Attributes:
        metric: The key.
        meaning: One sentence for the tooltip.
        texts: The figure of each run.
        change: The change from the first run to the last as text.
        change_pct: The same as a number; None if there is none.
        verdict: `better`, `worse`, or empty.
        bar_pct: Length of the bar that shows the size of the change, at most 100.
    """

    metric: str
    meaning: str
    texts: list[str]
    change: str
    change_pct: float | None
    verdict: str
    bar_pct: float


@dataclass(frozen=True)
class Group:
    """The metrics of one component: of the run as a whole, or of one node."""

    component: str
    node: str
    rows: list[ComparedRow] = field(default_factory=list)


@dataclass(frozen=True)
class ComparisonPage:
    """The content of a comparison's page.

    Attributes:
        runs: Labels of the runs.
        better: How many figures got better.
        worse: How many got worse.
        notes: What a reader must know, such as different hardware.
        groups: The figures, by component and node.
    """

    runs: list[str]
    better: int
    worse: int
    notes: list[str]
    groups: list[Group]


def build_comparison_page(data: Mapping[str, Any]) -> ComparisonPage:
    """Return the page of a comparison.

    Args:
        data: The comparison as plain data, from `mlflow_perf.analysis.compare.Comparison.as_dict`.
    """
    runs = [str(run) for run in data.get("runs") or []]
    groups: dict[tuple[str, str], Group] = {}
    for row in data.get("rows") or []:
        node = row.get("node")
        key = (str(row.get("component") or ""), "" if node is None else str(node))
        groups.setdefault(key, Group(*key)).rows.append(_build_row(row, len(runs)))
    verdicts = [row.verdict for group in groups.values() for row in group.rows]
    return ComparisonPage(
        runs,
        better=verdicts.count("better"),
        worse=verdicts.count("worse"),
        notes=[str(note) for note in data.get("notes") or []],
        groups=list(groups.values()),
    )


def _build_row(row: Mapping[str, Any], runs: int) -> ComparedRow:
    key = str(row.get("metric") or "")
    known = find_metric(key)
    unit = str(row.get("unit") or (known.unit if known else ""))
    texts = [quantity(read_number(value), unit) for value in row.get("values") or []]
    change = read_number(row.get("change_pct"))
    return ComparedRow(
        metric=key,
        meaning=known.meaning if known else "",
        texts=texts + [MISSING] * (runs - len(texts)),
        change=format_change(change),
        change_pct=change,
        verdict=row["verdict"] if row.get("verdict") in ("better", "worse") else "",
        bar_pct=round(min(100.0, abs(change or 0.0)), 1),
    )
