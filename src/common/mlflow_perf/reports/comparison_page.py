"""The page of a comparison as plain data."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from mlflow_perf.analysis.metric_text import find_repeats, format_row, is_of_node
from mlflow_perf.core.format import MISSING, format_change, quantity
from mlflow_perf.core.json_io import read_number
from mlflow_perf.model.metrics import find_metric, group_metric, name_metric
from mlflow_perf.model.metrics.names import GROUPS

_NODES_MAX = 4
"""The nodes of a step on more nodes than this are not listed."""

_MOST_CELLS = 20_000


@dataclass(frozen=True)
class Cell:
    """One run's part of a row.

    Attributes:
        text: The figure.
        change: How it differs from the baseline, as text; empty for the baseline itself.
        verdict: `better`, `worse`, or empty.
        detail: A few words more.
        share_pct: Length of its bar; None for none.
        value: The figure, by which a table sorts.
    """

    text: str
    change: str = ""
    verdict: str = ""
    detail: str = ""
    share_pct: float | None = None
    value: float | None = None


@dataclass(frozen=True)
class ComparedRow:
    """One fact or metric across the runs.

    Attributes:
        name: Its name for people.
        key: The metric's key, or what says more than the name.
        meaning: One sentence for the tooltip.
        cells: One per run.
    """

    name: str
    key: str
    meaning: str
    cells: list[Cell]


@dataclass
class Group:
    """The metrics of one step: of the run as a whole, or of one node.

    Attributes:
        node: Index of the node as text; empty for the whole.
        parts: Group of metrics → the rows of the job's own figures that differ.
        same: The rows that do not differ.
        of_node: The rows of figures of the whole node.
    """

    node: str
    parts: dict[str, list[ComparedRow]] = field(default_factory=dict)
    same: list[ComparedRow] = field(default_factory=list)
    of_node: list[ComparedRow] = field(default_factory=list)


@dataclass(frozen=True)
class ComparisonPage:
    """The content of a comparison's page.

    Attributes:
        runs: Labels of the runs.
        baseline: Index of the run that the others are compared with.
        sentences: What changed from the baseline to each run; empty for the baseline.
        better: How many figures of the last run are better.
        worse: How many are worse.
        notes: What a reader must know, such as different hardware.
        facts: Title of a table → its rows by step: verdicts, parameters, phases, functions.
        steps: Step → its figures: of the run as a whole or of its only node, then of each node.
        left_out: How many rows of single nodes are left out.
        curves: The curves of each step, for the page's script.
    """

    runs: list[str]
    baseline: int = 0
    sentences: list[str] = field(default_factory=list)
    better: int = 0
    worse: int = 0
    notes: list[str] = field(default_factory=list)
    facts: dict[str, dict[str, list[ComparedRow]]] = field(default_factory=dict)
    steps: dict[str, list[Group]] = field(default_factory=dict)
    left_out: int = 0
    curves: list[dict[str, Any]] = field(default_factory=list)


def build_comparison_page(
    data: Mapping[str, Any], curves: Sequence[dict[str, Any]] = ()
) -> ComparisonPage:
    """Return the page of a comparison.

    Args:
        data: The comparison as plain data, from `mlflow_perf.analysis.compare.Comparison.as_dict`.
        curves: From `compared_curves.build_compared_curves`.
    """
    runs = [str(run) for run in data.get("runs") or []]
    rows = list(data.get("rows") or [])
    # Some operations say little more than another one.
    repeats = find_repeats((str(row.get("metric") or ""), row.get("values") or []) for row in rows)
    rows = [row for row in rows if str(row.get("metric") or "") not in repeats]
    many = {row.get("component") for row in rows if (row.get("node") or 0) >= _NODES_MAX}
    room = max(1, _MOST_CELLS // (len(runs) or 1))
    kept = [row for row in rows if row.get("node") is None or row.get("component") not in many]
    last = [str(row.get("verdict")) for row in kept]
    baseline = int(data.get("baseline") or 0)
    return ComparisonPage(
        runs,
        baseline,
        [str(text) for text in data.get("sentences") or []],
        better=last.count("better"),
        worse=last.count("worse"),
        notes=[str(note) for note in data.get("notes") or []],
        facts=_build_facts(data),
        steps=_build_steps(kept[:room], len(runs), baseline),
        left_out=len(rows) - len(kept[:room]),
        curves=list(curves),
    )


def _build_steps(
    rows: Iterable[Mapping[str, Any]], runs: int, baseline: int
) -> dict[str, list[Group]]:
    """Return the rows by step and node; rows that differ are grouped by metric."""
    steps: dict[str, dict[str, Group]] = {}
    for row in rows:
        node, metric = row.get("node"), str(row.get("metric") or "")
        place = "" if node is None else str(node)
        group = steps.setdefault(str(row.get("component") or ""), {}).setdefault(
            place, Group(place)
        )
        built = _build_row(row, runs, baseline)
        # Of data from before the comparison itself said it.
        has_change = any(one.change for one in built.cells) or None in (row.get("values") or [])
        if is_of_node(metric):
            group.of_node.append(built)
        elif row.get("is_changed", has_change):
            group.parts.setdefault(group_metric(metric), []).append(built)
        else:
            group.same.append(built)
    rank = {name: i for i, name in enumerate(GROUPS)}
    for of_step in steps.values():
        for group in of_step.values():
            ordered = sorted(group.parts, key=lambda name: rank.get(name, len(rank)))
            group.parts = {name: group.parts[name] for name in ordered}
    return {step: list(groups.values()) for step, groups in steps.items()}


def _build_row(row: Mapping[str, Any], runs: int, baseline: int) -> ComparedRow:
    key = str(row.get("metric") or "")
    known = find_metric(key)
    unit = str(row.get("unit") or (known.unit if known else ""))
    values = [read_number(value) for value in row.get("values") or []]
    values += [None] * (runs - len(values))
    # Of data from before there were several: the last run's.
    changes = row.get("changes") or [None] * (runs - 1) + [row.get("change_pct")]
    verdicts = row.get("verdicts") or [""] * (runs - 1) + [row.get("verdict")]
    cells = []
    if unit in ("s", "ms", "MB"):  # people say times and sizes each in its own unit
        texts = [MISSING if value is None else quantity(value, unit) for value in values]
    else:
        texts = format_row(values, unit)
    for i, text in enumerate(texts):
        change = read_number(changes[i]) if i < len(changes) else None
        verdict = verdicts[i] if i < len(verdicts) and verdicts[i] in ("better", "worse") else ""
        is_same = i < len(verdicts) and verdicts[i] == "same"
        shown = "" if i == baseline or is_same or not change else format_change(change)
        cells.append(Cell(text, shown, verdict, value=values[i]))
    return ComparedRow(name_metric(key), key, known.meaning if known else "", cells)


def _build_facts(data: Mapping[str, Any]) -> dict[str, dict[str, list[ComparedRow]]]:
    """Return the tables of facts, by title and step."""
    tables: dict[str, dict[str, list[ComparedRow]]] = {}
    sources = (
        ("Held back by", "verdicts"),
        ("Parameters", "parameters"),
        ("Phases", "phases"),
        ("Functions", "functions"),
    )
    for title, source in sources:
        rows = list(data.get(source) or [])
        is_time = source in ("phases", "functions")
        longest: dict[str, float] = {}
        for row in rows if is_time else ():
            known = [read_number(value) or 0.0 for value in row.get("values") or []]
            step = str(row.get("step") or "")
            longest[step] = max(longest.get(step, 0.0), *known)
        for row in rows:
            step, details = str(row.get("step") or ""), list(row.get("details") or [])
            where = str(details[0]) if source == "functions" else ""
            said = details if source != "functions" else []
            cells = []
            for i, value in enumerate(row.get("values") or []):
                detail = str(said[i]) if i < len(said) else ""
                seconds = read_number(value) if is_time else None
                if is_time:
                    share = 100 * seconds / longest[step] if seconds else None
                    text = quantity(seconds, "s")
                    cells.append(Cell(text, detail=detail, share_pct=share, value=seconds))
                else:
                    cells.append(Cell(MISSING if value is None else str(value), detail=detail))
            name = str(row.get("name") or step or "the run")
            part = "" if source == "verdicts" else step
            rows_of = tables.setdefault(title, {}).setdefault(part, [])
            rows_of.append(ComparedRow(name, where, "", cells))
    return tables
