"""Runs beside each other, matched step by step and node by node. Imports runs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mlflow_perf.analysis import markdown, metric_text
from mlflow_perf.analysis.step_runs import StepRuns, compare_hardware, load_step_runs, several
from mlflow_perf.errors import SettingError
from mlflow_perf.tracking.load import RunRef
from mlflow_perf.tracking.perf_run import PerfRun

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Comparison", "Row", "compare"]

NODES_MAX = 3
"""Up to so many nodes of a step are shown one by one."""

SAME_PCT = 5.0
"""Relative changes up to this are called the same: single runs waver by as much."""


@dataclass(frozen=True)
class Row:
    """One metric of one node of one step, in every run.

    Attributes:
        component: Name of the step.
        node: Index of the node; None for a figure of the run as a whole.
        metric: Key of the metric.
        unit: Its unit.
        values: One per run, in their order; None where a run has none.
        change_pct: The last value against the first, in per cent; None where one of them is
            missing, or the first is 0 and the last is not.
        verdict: `better`, `worse`, `same`, or `""` where neither direction is better.
    """

    component: str
    node: int | None
    metric: str
    unit: str
    values: tuple[float | None, ...]
    change_pct: float | None
    verdict: str

    def as_dict(self) -> dict[str, Any]:
        """Return the row as plain data."""
        return {
            "component": self.component,
            "node": self.node,
            "metric": self.metric,
            "unit": self.unit,
            "values": list(self.values),
            "change_pct": self.change_pct,
            "verdict": self.verdict,
        }


@dataclass(frozen=True)
class Comparison:
    """Runs beside each other.

    Attributes:
        labels: The runs' names, in their order.
        rows: Their metrics, by step, node and the order of the metric table.
        notes: What has to be known to read them: different hardware, steps that are missing.
    """

    labels: tuple[str, ...]
    rows: tuple[Row, ...]
    notes: tuple[str, ...] = ()

    @property
    def better(self) -> list[Row]:
        """The rows that improved from the first run to the last, the largest change first."""
        return self._of("better")

    @property
    def worse(self) -> list[Row]:
        """The rows that got worse from the first run to the last, the largest change first."""
        return self._of("worse")

    def _of(self, verdict: str) -> list[Row]:
        rows = [row for row in self.rows if row.verdict == verdict]
        return sorted(rows, key=lambda row: -abs(_or_infinite(row.change_pct)))

    def changed(self) -> list[Row]:
        """Return the rows that are not the same in all runs, in their order."""
        return [row for row in self.rows if _differs(row)]

    def headlines(self) -> list[Row]:
        """Return the rows that differ; of a step on many nodes only those of the run as a whole."""
        many = {row.component for row in self.rows if (row.node or 0) >= NODES_MAX}
        return [r for r in self.changed() if r.node is None or r.component not in many]

    def as_dict(self) -> dict[str, Any]:
        """Return the comparison as plain data: what the HTML is made from."""
        return {
            "runs": list(self.labels),
            "rows": [row.as_dict() for row in self.rows],
            "notes": list(self.notes),
        }

    def to_frame(self) -> pd.DataFrame:
        """Return a pandas frame: a row per metric, a column per run."""
        import pandas as pd

        index = [(row.component, row.node, row.metric) for row in self.rows]
        frame: pd.DataFrame = pd.DataFrame(
            [row.values for row in self.rows],
            columns=list(self.labels),
            index=pd.MultiIndex.from_tuples(index, names=["component", "node", "metric"]),
        )
        return frame

    def to_markdown(self, *, everything: bool = False) -> str:
        """Return the comparison as Markdown.

        Args:
            everything: Also the rows that are the same, and each of many nodes.
        """
        rows = self.rows if everything else self.headlines()
        parts = [f"### Comparison of {len(self.labels)} runs", _legend(self.labels)]
        parts += [f"> {markdown.escape(note)}" for note in self.notes]
        parts.append(_markdown_table(self.labels, rows) if rows else "Nothing differs.")
        return "\n\n".join(parts) + "\n"


def compare(
    runs: RunRef | PerfRun | Sequence[RunRef | PerfRun], *, documents: bool | None = None
) -> Comparison:
    """Return runs, or whole workflows, beside each other.

    A workflow's steps are matched by their names, the nodes of a step by their index. Two runs
    whose components have different names are matched all the same.

    Args:
        runs: Run ids, paths, folders or runs that were read already; at least one.
        documents: As in `runs.get_runs`.

    Raises:
        SettingError: When no run is given.
        RunNotFoundError: When one does not exist or holds no performance data.
        DocumentError: When a file is not a document that this version reads.
    """
    if not runs:
        raise SettingError("Name the runs to compare.")
    subjects, renamed = matched(load_step_runs(several(runs), documents=documents))
    steps = list(dict.fromkeys(name for subject in subjects for name in subject.steps))
    rows = [row for step in steps for row in _rows_of(step, subjects)]
    notes = (*renamed, *compare_hardware(subjects), *_missing(steps, subjects))
    return Comparison(_labels(subjects), tuple(rows), notes)


def _labels(subjects: Sequence[StepRuns]) -> tuple[str, ...]:
    """Return the labels; one that comes again is numbered."""
    labels: list[str] = []
    for subject in subjects:
        count = labels.count(subject.label) if len(subjects) <= 100 else 0
        labels.append(f"{subject.label} #{count + 1}" if count else subject.label)
    return tuple(labels)


def matched(subjects: Sequence[StepRuns]) -> tuple[list[StepRuns], list[str]]:
    """Return the subjects with one name for the step where each has but one, and a note on it."""
    names = list(dict.fromkeys(name for subject in subjects for name in subject.steps))
    if len(names) == 1 or any(len(subject.steps) != 1 for subject in subjects):
        return list(subjects), []
    same = [StepRuns(s.label, s.run, {names[0]: next(iter(s.steps.values()))}) for s in subjects]
    shown = ", ".join(names[:5]) + (" …" if len(names) > 5 else "")
    return same, [f"The runs are of different components: {shown}."]


def _missing(steps: Sequence[str], subjects: Sequence[StepRuns]) -> Iterator[str]:
    for step in steps:
        without = [s.label for s in subjects if step not in s.steps]
        if without:
            yield f"The step {step} is not in {_some(without)}."
    unfinished = [
        f"{name} of {s.label} ({run.status})" if s.is_workflow else f"{s.label} ({run.status})"
        for s in subjects
        for name, run in s.steps.items()
        if run.status not in (None, "FINISHED")
    ]
    if unfinished:
        yield f"Not finished, so not the figures of the whole work: {_some(unfinished)}."


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return ", ".join(names[:5]) + more


def _rows_of(step: str, subjects: Sequence[StepRuns]) -> Iterator[Row]:
    runs = [subject.steps.get(step) for subject in subjects]
    if any(run is not None and run.node_count > 1 for run in runs):
        yield from _rows(step, None, [run.figures if run else {} for run in runs])
    by_node = [run.nodes if run else {} for run in runs]
    for node in sorted({index for nodes in by_node for index in nodes}):
        yield from _rows(step, node, [nodes.get(node, {}) for nodes in by_node])


def _rows(step: str, node: int | None, columns: Sequence[dict[str, float]]) -> Iterator[Row]:
    keys = {key for column in columns for key in column}
    for key in sorted(keys, key=metric_text.rank_metric):
        values = tuple(column.get(key) for column in columns)
        change = change_pct(values[0], values[-1])
        verdict = _verdict(key, values[0], values[-1])
        yield Row(step, node, key, metric_text.find_unit(key), values, change, verdict)


def change_pct(base: float | None, new: float | None) -> float | None:
    """Return how far `new` is from `base`, in per cent of it; None where that has no meaning."""
    if base is None or new is None:
        return None
    if base == new:
        return 0.0
    change = 100.0 * (new - base) / abs(base) if base else math.inf
    return change if math.isfinite(change) else None


def _verdict(key: str, base: float | None, new: float | None) -> str:
    wanted = metric_text.find_direction(key)
    if not wanted or base is None or new is None:
        return ""
    if is_same(key, base, new):
        return "same"
    return "better" if (new < base) == (wanted == "lower") else "worse"


def is_same(key: str, base: float, new: float) -> bool:
    """Return whether two values differ by no more than single runs do."""
    change = change_pct(base, new)
    small = change is not None and abs(change) <= SAME_PCT
    return small or abs(new - base) <= metric_text.find_resolution(key)


def _differs(row: Row) -> bool:
    known = [value for value in row.values if value is not None]
    if len(known) < len(row.values):
        return bool(known)
    return not all(is_same(row.metric, known[0], value) for value in known)


def _or_infinite(value: float | None) -> float:
    return math.inf if value is None else value


def _legend(labels: Sequence[str]) -> str:
    lines = [f"{i}. {markdown.escape(label)}" for i, label in enumerate(labels, 1)]
    return "\n".join(lines)


def _markdown_table(labels: Sequence[str], rows: Sequence[Row]) -> str:
    header = ["Step", "Node", "Metric", *(f"Run {i}" for i in range(1, len(labels) + 1)), "Change"]
    cells = [
        [
            markdown.escape(row.component),
            "all" if row.node is None else str(row.node),
            markdown.format_code(row.metric),
            *(metric_text.format_value(value, row.unit) for value in row.values),
            f"{metric_text.format_change(row.change_pct)} {row.verdict}".strip(),
        ]
        for row in rows
    ]
    return markdown.format_table(header, cells, right=len(labels) + 1)
