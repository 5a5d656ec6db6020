"""The page of a comparison as plain data. Imports the metric table, numbers and text.

Takes what `mlflow_perf.analysis.compare` gives as a plain dictionary: `runs` (labels) and `rows`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from mlflow_perf.core.format import MISSING, quantity
from mlflow_perf.core.json_io import read_number
from mlflow_perf.model.metrics import metric_for

__all__ = ["ComparedRow", "Comparison", "Group", "build_comparison_page"]


@dataclass
class ComparedRow:
    """One metric of one component and node, across the runs.

    Attributes:
        metric: The key.
        meaning: One sentence for the tooltip.
        texts: The figure of each run.
        change: The change from the first run to the last as text.
        change_pct: The same as a number, None where there is none.
        verdict: `better`, `worse`, or empty.
        bar_pct: Length of the bar that stands for the change: its size, at most 100.
    """

    metric: str
    meaning: str
    texts: list[str]
    change: str
    change_pct: float | None
    verdict: str
    bar_pct: float


@dataclass
class Group:
    """The metrics of one component: of the run as a whole, or of one node."""

    component: str
    node: str
    rows: list[ComparedRow] = field(default_factory=list)


@dataclass
class Comparison:
    """What the page of a comparison shows.

    Attributes:
        runs: Labels of the runs.
        better: How many figures got better.
        worse: How many got worse.
        notes: What a reader must know: different hardware, say.
        groups: The figures, by component and node.
    """

    runs: list[str]
    better: int = 0
    worse: int = 0
    notes: list[str] = field(default_factory=list)
    groups: list[Group] = field(default_factory=list)


def build_comparison_page(data: Mapping[str, Any]) -> Comparison:
    """Return what the page shows of a comparison."""
    page = Comparison([str(run) for run in data.get("runs") or []])
    page.notes = [str(note) for note in data.get("notes") or []]
    groups: dict[tuple[str, str], Group] = {}
    for row in data.get("rows") or []:
        node = row.get("node")
        key = (str(row.get("component") or ""), "" if node is None else str(node))
        group = groups.setdefault(key, Group(*key))
        group.rows.append(_row(row, len(page.runs)))
    page.groups = list(groups.values())
    verdicts = [row.verdict for group in page.groups for row in group.rows]
    page.better, page.worse = verdicts.count("better"), verdicts.count("worse")
    return page


def _row(row: Mapping[str, Any], runs: int) -> ComparedRow:
    key = str(row.get("metric") or "")
    known = metric_for(key)
    unit = str(row.get("unit") or (known.unit if known else ""))
    values = list(row.get("values") or [])
    texts = [quantity(read_number(value), unit) for value in values]
    change = read_number(row.get("change_pct"))
    return ComparedRow(
        metric=key,
        meaning=known.meaning if known else "",
        texts=texts + [MISSING] * (runs - len(texts)),
        change=MISSING if change is None else _signed(change),
        change_pct=change,
        verdict=row["verdict"] if row.get("verdict") in ("better", "worse") else "",
        bar_pct=0.0 if change is None else round(min(100.0, abs(change)), 1),
    )


def _signed(change: float) -> str:
    if change >= 1000:
        return f"×{1 + change / 100:,.0f}"
    return f"{change:+.1f}%" if abs(change) < 100 else f"{change:+.0f}%"
