"""Runs side by side, matched step by step and node by node."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from mlflow_perf.analysis import markdown, metric_text
from mlflow_perf.analysis.change_sentence import describe_change
from mlflow_perf.analysis.profile_changes import compare_profiles
from mlflow_perf.analysis.run_facts import RunFacts, collect_facts
from mlflow_perf.analysis.step_runs import (
    Ref,
    StepRuns,
    as_list,
    compare_hardware,
    list_steps,
    load_step_runs,
)
from mlflow_perf.analysis.step_texts import describe_step_changes
from mlflow_perf.core.format import format_change, format_count, join_some
from mlflow_perf.core.hooks import hooks
from mlflow_perf.errors import SettingError
from mlflow_perf.model.metrics.names import name_metric
from mlflow_perf.tracking.perf_run import PerfRun

if TYPE_CHECKING:
    import pandas as pd

NODES_MAX = 3
"""A step on more nodes than this is shown as a whole, not node by node."""

SAME_PCT = 5.0
"""Relative changes up to this count as no change: single runs vary by as much."""


@dataclass(frozen=True)
class Row:
    """One metric of one node of one step, in every run.

    Attributes:
        component: Name of the step.
        node: Index of the node; None for a figure of the run as a whole.
        metric: Key of the metric.
        unit: Its unit.
        values: One per run, in their order; None where a run has none.
        changes: Each value against the baseline's, in per cent; None where one of them is
            missing, or the baseline's is 0 and the other is not.
        verdicts: Of each value `better`, `worse` or `same`; `""` where neither direction is better,
            or where the metric counts all processes of the node.
        last: Index of the run whose change and verdict are the row's: the last but the baseline.
    """

    component: str
    node: int | None
    metric: str
    unit: str
    values: tuple[float | None, ...]
    changes: tuple[float | None, ...]
    verdicts: tuple[str, ...]
    last: int

    @property
    def change_pct(self) -> float | None:
        """The change of the last run against the baseline, in per cent."""
        return self.changes[self.last]

    @property
    def verdict(self) -> str:
        """The verdict on the last run against the baseline."""
        return self.verdicts[self.last]

    def as_dict(self) -> dict[str, Any]:
        """Return the row as plain data."""
        last = {"change_pct": self.change_pct, "verdict": self.verdict}
        return {**asdict(self), **last, "is_changed": self.is_changed}

    @property
    def is_changed(self) -> bool:
        """Whether the runs differ in this metric, or some of them lack it."""
        known = [value for value in self.values if value is not None]
        if len(known) < len(self.values):
            return bool(known)
        return not all(_is_same(self.metric, known[0], value) for value in known)


@dataclass(frozen=True)
class Comparison:
    """Runs side by side.

    Attributes:
        labels: The runs' names, in their order.
        rows: Their metrics, by step, node and the order of the metric table.
        notes: What a reader must know: different hardware, missing steps, unfinished runs.
        baseline: Index of the run that the others are compared with.
        sentences: What changed from the baseline to each run, and why; empty for the baseline.
        facts: Parameters that differ, verdicts, phases and functions.
        steps: Per run its steps by name, for reading their curves.
    """

    labels: tuple[str, ...]
    rows: tuple[Row, ...]
    notes: tuple[str, ...] = ()
    baseline: int = 0
    sentences: tuple[str, ...] = ()
    facts: RunFacts = field(default_factory=RunFacts)
    steps: tuple[Mapping[str, PerfRun], ...] = field(default=(), repr=False)

    @property
    def sentence(self) -> str:
        """What changed from the baseline to the last run, and why; empty for a single run."""
        return next((text for text in reversed(self.sentences) if text), "")

    @property
    def better(self) -> list[Row]:
        """The rows that improved from the first run to the last, the largest change first."""
        return self._judged("better")

    @property
    def worse(self) -> list[Row]:
        """The rows that got worse from the first run to the last, the largest change first."""
        return self._judged("worse")

    def _judged(self, verdict: str) -> list[Row]:
        rows = [row for row in self.rows if row.verdict == verdict]
        endless = -math.inf
        return sorted(rows, key=lambda r: endless if r.change_pct is None else -abs(r.change_pct))

    def changed(self) -> list[Row]:
        """Return the rows in which the runs differ, in their order."""
        return [row for row in self.rows if row.is_changed]

    def headlines(self) -> list[Row]:
        """Return the changed rows that say most.

        Of a step on many nodes only those of the run as a whole, and of an operation those that
        say more than another one.
        """
        many = {row.component for row in self.rows if (row.node or 0) >= NODES_MAX}
        repeats = metric_text.find_repeats((row.metric, row.values) for row in self.rows)
        return [
            row
            for row in self.changed()
            if row.metric not in repeats and (row.node is None or row.component not in many)
        ]

    def as_dict(self) -> dict[str, Any]:
        """Return the comparison as plain data: the input of the HTML page."""
        return {
            "runs": list(self.labels),
            "baseline": self.baseline,
            "sentence": self.sentence,
            "sentences": list(self.sentences),
            **self.facts.as_dict(),
            "rows": [row.as_dict() for row in self.rows],
            "notes": list(self.notes),
        }

    def _repr_html_(self) -> str:
        """Return the page for a notebook."""
        return hooks.notebook_html(self)

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
            everything: Include the unchanged rows, and each node of a step on many nodes.
        """
        count = len(self.labels)
        legend = [f"{i}. {markdown.escape(label)}" for i, label in enumerate(self.labels, 1)]
        parts = [f"### Comparison of {count} runs"]
        parts += [f"**{markdown.escape_sentence(self.sentence)}**"] if self.sentence else []
        parts.append("\n".join(legend))
        parts += [f"> {markdown.escape(note)}" for note in self.notes]
        cells = [
            [
                markdown.escape(row.component),
                "all" if row.node is None else str(row.node),
                f"{markdown.escape(name_metric(row.metric))} {markdown.format_code(row.metric)}",
                *metric_text.format_row(row.values, row.unit),
                f"{format_change(row.change_pct)} {row.verdict}".strip(),
            ]
            for row in (self.rows if everything else self.headlines())
        ]
        header = ["Step", "Node", "Figure", *(f"Run {i + 1}" for i in range(count)), "Change"]
        table = markdown.format_table(header, cells, right=count + 1)
        return "\n\n".join([*parts, table if cells else "Nothing differs."]) + "\n"


def compare(
    runs: Ref | Sequence[Ref],
    *,
    baseline: int = 0,
    documents: bool | None = None,
) -> Comparison:
    """Return runs, or whole workflows, side by side.

    The steps of workflows are matched by their names, the nodes of a step by their index. Single
    runs are matched even if their components have different names.

    Args:
        runs: Run ids, paths, folders or runs that were read already, with or without their steps;
            at least one.
        baseline: Index of the run that every other one is compared with.
        documents: As in `tracking.search.get_runs`.

    Raises:
        SettingError: When no run is given, or `baseline` is the index of none.
        RunNotFoundError: When one does not exist or holds no performance data.
        DocumentError: When a file is not a document that this version reads.
    """
    if not runs:
        raise SettingError("Name the runs to compare.")
    sides, notes = match_components(load_step_runs(as_list(runs), documents=documents))
    if not 0 <= baseline < len(sides):
        raise SettingError(f"The baseline is a run from 0 to {len(sides) - 1}, not {baseline}.")
    labels: list[str] = []
    for side in sides:
        repeats = labels.count(side.label) if len(sides) <= 100 else 0
        labels.append(f"{side.label} #{repeats + 1}" if repeats else side.label)
    rows = [row for step in list_steps(sides) for row in _compare_step(step, sides, baseline)]
    last = _find_last(len(sides), baseline)
    pair = sides[baseline], sides[last]
    sentences = [
        "" if side is sides[baseline] else describe_change([sides[baseline]], [side])
        for side in sides
    ]
    names = list_steps(pair)
    functions = []
    for name in names if pair[0] is not pair[1] else ():
        found = [side.steps[name].document for side in pair if name in side.steps]
        known = [document.all_nodes() for document in found if document is not None]
        change = compare_profiles(*known) if len(known) == 2 else None
        if change is not None and change.sentence and change.sentence not in sentences[last]:
            functions.append(f"{name}: {change.sentence}.")
    notes = [*functions, *notes]
    for name in names:
        for text in describe_step_changes([side.steps.get(name) for side in pair]):
            notes.append(text if len(names) == 1 else f"{name}: {text}")
    notes += [*compare_hardware(sides), *_list_missing(sides)]
    return Comparison(
        tuple(labels),
        tuple(rows),
        tuple(notes),
        baseline,
        tuple(sentences),
        collect_facts(sides, baseline=baseline),
        tuple(side.steps for side in sides),
    )


def match_components(sides: Sequence[StepRuns]) -> tuple[list[StepRuns], list[str]]:
    """Return sides whose steps can be compared, and notes on what was done for that.

    Of a step that was tried again the last attempt counts; single runs get one common step name.
    """
    last = [side.without_retried() for side in sides]
    notes = [
        f"{side.label}: left out {format_count(count, 'failed attempt')} of what was tried again."
        for side, kept in zip(sides, last, strict=True)
        if (count := len(side.steps) - len(kept.steps))
    ]
    names = list_steps(last)
    if len(names) == 1 or any(len(side.steps) != 1 for side in last):
        return last, notes
    same = [StepRuns(s.label, s.run, {names[0]: next(iter(s.steps.values()))}) for s in last]
    shown = ", ".join(names[:5]) + (" …" if len(names) > 5 else "")
    return same, [*notes, f"The runs are of different components: {shown}."]


def _list_missing(sides: Sequence[StepRuns]) -> Iterator[str]:
    for step in list_steps(sides):
        without = [side.label for side in sides if step not in side.steps]
        if without:
            yield f"The step {step} is not in {join_some(without)}."
    unfinished = [
        f"{side.name_step(name)} ({run.status})"
        for side in sides
        for name, run in side.steps.items()
        if run.status not in (None, "FINISHED")
    ]
    if unfinished:
        yield f"Not finished, so not the figures of the whole work: {join_some(unfinished)}."


def _find_last(count: int, baseline: int) -> int:
    """Return the index of the last run but the baseline; that of the only one."""
    return count - 2 if baseline == count - 1 and count > 1 else count - 1


def _compare_step(step: str, sides: Sequence[StepRuns], baseline: int) -> Iterator[Row]:
    runs = [side.steps.get(step) for side in sides]
    if any(run is not None and run.node_count > 1 for run in runs):
        whole = [run.figures if run else {} for run in runs]
        yield from _compare_columns(step, None, whole, baseline)
    by_node = [run.nodes if run else {} for run in runs]
    for node in sorted({index for nodes in by_node for index in nodes}):
        columns = [nodes.get(node, {}) for nodes in by_node]
        yield from _compare_columns(step, node, columns, baseline)


def _compare_columns(
    step: str, node: int | None, columns: Sequence[dict[str, float]], baseline: int
) -> Iterator[Row]:
    keys = {key for column in columns for key in column}
    last = _find_last(len(columns), baseline)
    for key in sorted(keys, key=lambda k: (metric_text.is_of_node(k), metric_text.rank_metric(k))):
        values = tuple(column.get(key) for column in columns)
        base = values[baseline]
        changes = tuple(calculate_change_pct(base, value) for value in values)
        verdicts = tuple(_judge(key, base, value) for value in values)
        yield Row(step, node, key, metric_text.find_unit(key), values, changes, verdicts, last)


def _judge(key: str, base: float | None, new: float | None) -> str:
    """Return whether a value is better than the baseline's."""
    # What others did on the node is neither better nor worse work of the job.
    wanted = "" if metric_text.is_of_node(key) else metric_text.find_direction(key)
    if not wanted or base is None or new is None:
        return ""
    if _is_same(key, base, new):
        return "same"
    return "better" if (new < base) == (wanted == "lower") else "worse"


def calculate_change_pct(base: float | None, new: float | None) -> float | None:
    """Return the change from `base` to `new` in per cent of `base`; None if it has no meaning."""
    if base is None or new is None:
        return None
    if base == new:
        return 0.0
    # What is left of a difference of two equal figures is as good as 0.
    change = 100.0 * (new - base) / abs(base) if abs(base) > 1e-12 * abs(new) else math.inf
    return change if math.isfinite(change) else None


def _is_same(key: str, base: float, new: float) -> bool:
    """Return whether two values differ by no more than single runs do."""
    change = calculate_change_pct(base, new)
    small = change is not None and abs(change) <= SAME_PCT
    return small or abs(new - base) <= metric_text.find_resolution(key)
