"""The table of runs as plain data: headings, rows, groups, and the fields to choose from."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from mlflow_perf.analysis.metric_text import format_value
from mlflow_perf.core.format import MISSING, clock_time, cut_text, format_count, quantity
from mlflow_perf.model.document import BROKEN, SKIPPED
from mlflow_perf.tracking.perf_run import TAG, PerfRun
from mlflow_perf.web.choice import Choice
from mlflow_perf.web.fields import (
    COLUMNS,
    HIGHEST,
    SUMMED,
    Field,
    read_field,
    read_figure,
    read_number,
)
from mlflow_perf.web.table import Found

_STATUSES = ("FINISHED", "FAILED", "KILLED", "RUNNING", SKIPPED)
_LONGEST_TEXT = 60
_LONGEST_TITLE = 300
_MOST_GROUPS = 200
_OWN_UNITS = ("s", "ms", "MB")  # each value is shown in the unit that suits it
_SHORT_CPU_HOURS = 0.1
_LARGE = 1e9

_FIRST_HEADS = (
    ("name", "The run's name in MLflow."),
    ("component", "The job's name in its reports."),
    ("started", "When the run started, UTC."),
    ("status", "How the run ended; the worse of MLflow's and the report's."),
    ("bottleneck", "What held the job back, and the first advice."),
)


@dataclass(frozen=True)
class Cell:
    """One cell of figures.

    Attributes:
        text: What it shows.
        title: The whole text, if it was cut; else empty.
        share: Length of its bar in per cent of the column's largest value; None without a bar.
        is_number: Whether it is aligned to the right.
    """

    text: str
    title: str = ""
    share: int | None = None
    is_number: bool = False


@dataclass(frozen=True)
class Group:
    """Rows that belong together.

    Attributes:
        name: The common value; empty if the rows are not grouped.
        shown: How many runs, and how many failed, in words.
        cells: Sums of hours, costs and bytes; means of the other figures.
        rows: One dictionary per run: the variables of the template.
    """

    name: str
    shown: str
    cells: Sequence[Cell]
    rows: Sequence[dict[str, Any]]


@dataclass(frozen=True)
class Listing:
    """The content of the page of runs.

    Attributes:
        heads: Heading, sort name, meaning and address of each column that sorts.
        groups: The rows, in one group or several.
        older: Address of the next page, or empty.
        shown: How many runs are shown, in words.
        picker: Title → the fields to choose from: name, label, and whether it is a column.
    """

    heads: list[dict[str, str]]
    groups: list[Group]
    older: str
    shown: str
    picker: dict[str, list[tuple[str, str, bool]]]

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The rows of all groups."""
        return [row for group in self.groups for row in group.rows]


def build_listing(found: Found, choice: Choice, experiments: Mapping[str, str]) -> Listing:
    """Return the table of runs.

    Args:
        found: The runs that a search found.
        choice: The user's choice.
        experiments: The experiments that the user may read: id → name.
    """
    kept = prepare_runs(found)
    fields = list_columns(found, choice, kept)
    values = [[field.read(run) for field in fields] for run in kept]
    present = [[field.read_present(run) for field in fields] for run in kept]
    scales = [
        _Scale(field, [row[i] for row in values] + [row[i] for row in present])
        for i, field in enumerate(fields)
    ]
    heads = [_build_head(name, read_field(name), meaning, choice) for name, meaning in _FIRST_HEADS]
    heads += [
        _build_head(field.name, field, field.meaning, choice, scale)
        for field, scale in zip(fields, scales, strict=True)
    ]
    grouped: dict[str, list[int]] = {}
    for i, run in enumerate(kept):
        grouped.setdefault(_name_group(run, choice.group, experiments), []).append(i)
    groups = []
    for name, members in list(grouped.items())[:_MOST_GROUPS]:
        rows = [
            {
                **_build_row(kept[i], found, choice, experiments),
                "cells": [
                    scale.build_cell(value, now)
                    for scale, value, now in zip(scales, values[i], present[i], strict=True)
                ],
            }
            for i in members
        ]
        cells = [s.sum_up([values[i][j] for i in members]) for j, s in enumerate(scales)]
        failed = sum(kept[i].status in BROKEN for i in members)
        shown = format_count(len(members), "run") + (f", {failed} failed" if failed else "")
        groups.append(Group(name, shown, cells if choice.group else [], rows))
    older = choice.address(page=found.next_page) if found.next_page else ""
    shown = format_count(len(kept), "run") + (", more follow" if older else "")
    return Listing(heads, groups, older, shown, _build_picker(found, fields, kept))


def prepare_runs(found: Found) -> list[PerfRun]:
    """Return the runs with the sums of their steps, and with how long running ones have run."""
    runs = []
    for run in found.runs:
        whole = _sum_steps(run, found.steps.get(str(run.run_id), []))
        if whole.status == "RUNNING" and whole.started is not None:
            metrics = {"run_duration_sec": max(0.0, time.time() - whole.started), **whole.metrics}
            whole = replace(whole, metrics=metrics)
        runs.append(whole)
    return runs


def list_columns(found: Found, choice: Choice, runs: Sequence[PerfRun]) -> list[Field]:
    """Return the fields that are columns: from the address, else a choice that fits the runs."""
    if choice.columns:
        return choice.shown
    ours = []
    for column in COLUMNS:
        field = read_field(column.key)
        in_use = not column.minor or choice.order.key == column.key
        if column.key == "run_node_count":
            in_use = any(run.node_count > 1 for run in runs)
        if field and in_use and any(_has_value(field, run) for run in runs):
            ours.append(field)
    return [*ours, *found.columns]


def _has_value(field: Field, run: PerfRun) -> bool:
    return field.read(run) is not None or field.read_present(run) is not None


class _Scale:
    """Formats the values of one column: in one unit, and with the same decimals.

    Times and sizes have the unit that suits each of them.

    Args:
        field: The column.
        values: All values of it.
    """

    def __init__(self, field: Field, values: Sequence[float | str | None]) -> None:
        numbers = [read_number(value) for value in values]
        known = [number for number in numbers if number is not None]
        self.field = field
        self.is_number = bool(known) and len(known) == sum(v is not None for v in values)
        self._largest = max(map(abs, known), default=0.0)
        # A bar says nothing where all are the same, and has no length below 0.
        self._has_bars = self.is_number and min(known) >= 0 and min(known) < max(known)
        self._factor, self.unit = 1.0, field.unit
        self._unit_of_each = self.unit if self.unit in _OWN_UNITS else ""
        if self.unit == "CPU h" and self._largest < _SHORT_CPU_HOURS:
            self._factor, self.unit = 3600.0, "CPU s"
        if self.unit in _OWN_UNITS:
            self.unit = ""
        magnitude = math.floor(math.log10(self._largest * self._factor or 1.0))
        digits = 2 if self.unit else 3
        self._decimals = digits - magnitude if -3 <= digits - magnitude <= 6 else None
        if not self.unit and all(number.is_integer() for number in known):
            self._decimals = 0

    def format(self, value: float | str | None) -> str:
        """Return the text of a value, without the unit that the heading names."""
        if value is None or isinstance(value, str) or self.field.kind == "attribute":
            return MISSING if value is None else str(value)
        if self._unit_of_each:
            return quantity(value, self._unit_of_each)
        value *= self._factor
        if self._decimals is None or abs(value) >= _LARGE:
            return format_value(value)
        text = f"{value:,.{max(0, min(4, self._decimals))}f}"
        return f"<{text[:-1]}1" if value > 0 and not text.strip("0.") else text

    def build_cell(self, value: float | str | None, present: float | None = None) -> Cell:
        """Return the cell of a value, or of the present one of a running job."""
        if value is None and present is not None:
            return Cell(f"{self.format(present)} now", "", is_number=self.is_number)
        text = self.format(value)
        number, share = read_number(value), None
        if self._has_bars and number is not None:
            share = round(100 * number / self._largest)
        title = text[:_LONGEST_TITLE] if len(text) > _LONGEST_TEXT else ""
        text = cut_text(text, _LONGEST_TEXT)
        return Cell(text, title, share, self.is_number)

    def sum_up(self, values: Sequence[float | str | None]) -> Cell:
        """Return the cell of a group: a sum or a mean; of texts the common one."""
        numbers = [n for n in map(read_number, values) if n is not None]
        if self.is_number and numbers and self.field.kind != "param":
            if self.field.key in SUMMED:
                return Cell(self.format(sum(numbers)), "sum", is_number=True)
            return Cell(self.format(sum(numbers) / len(numbers)), "mean", is_number=True)
        texts = {str(value) for value in values if value is not None}
        if len(texts) == 1:
            return replace(self.build_cell(texts.pop()), share=None, is_number=self.is_number)
        return Cell(f"{len(texts)} values" if texts else "", is_number=self.is_number)


def _sum_steps(run: PerfRun, steps: Sequence[PerfRun]) -> PerfRun:
    """Return a workflow with the figures of its steps if it has none of its own."""
    if not any(step.metrics for step in steps):
        return run
    metrics = dict(run.metrics)
    for keys, combine in ((SUMMED, sum), (HIGHEST, max)):
        for key in keys:
            values = [v for step in steps if (v := read_figure(step, key)) is not None]
            if values:
                metrics[key] = combine(values)
    if metrics.get("run_cpu_hours"):
        unused = metrics.get("run_unused_cpu_hours", 0.0) / metrics["run_cpu_hours"]
        metrics["run_cpu_avg_utilization_pct"] = 100.0 * (1.0 - unused)
    if run.duration_sec is not None:
        metrics["run_duration_sec"] = run.duration_sec
    return replace(run, metrics=metrics)


def _build_head(
    name: str, field: Field | None, meaning: str, choice: Choice, scale: _Scale | None = None
) -> dict[str, str]:
    number = scale is not None and scale.is_number
    down, up = choice.sort == f"-{name}", choice.sort == name
    # The first click sorts figures from the largest on, and texts from A to Z.
    other = name if down or not (number or name == "started" or up) else f"-{name}"
    return {
        "name": name,
        "label": field.label if field is not None else name,
        "unit": scale.unit if scale is not None else "",
        "meaning": meaning,
        "address": choice.address(sort=other),
        "sorted": "descending" if down else "ascending" if up else "",
        "class": "n" if number else "",
    }


def _build_row(
    run: PerfRun, found: Found, choice: Choice, experiments: Mapping[str, str]
) -> dict[str, Any]:
    steps = found.steps.get(str(run.run_id), [])
    of_workflow = replace(choice, equal={"workflow": str(run.run_id)}, text="", page="", group="")
    return {
        "id": run.run_id,
        "name": run.name or (run.run_id or "")[:8],
        "experiment_id": run.experiment_id,
        "experiment": experiments.get(str(run.experiment_id), ""),
        "component": ", ".join(filter(None, [run.component, *run.components]))
        or run.tags.get(f"{TAG}pipeline", ""),
        "started": clock_time(run.started)[: len("2026-11-22 17:05")],
        "status": run.status if run.status in _STATUSES else "",
        "bottleneck": run.verdict,
        "advice": (run.tags.get(f"{TAG}advice") or _quote_longest_step(steps))[:_LONGEST_TITLE],
        "parent": run.parent_id or "",
        "is_baseline": run.is_baseline,
        "steps": format_count(len(steps), "step") if steps else "",
        "steps_address": of_workflow.address() if steps else "",
    }


def _quote_longest_step(steps: Sequence[PerfRun]) -> str:
    """Return what held back the longest step of a workflow, which has no verdict of its own."""
    longest = max(steps, key=lambda step: step.duration_sec or 0.0, default=None)
    verdict = longest.verdict if longest is not None else ""
    if longest is None or not verdict:
        return ""
    return f"{longest.name} (longest step): {verdict}. {longest.tags.get(f'{TAG}advice', '')}"


def _name_group(run: PerfRun, group: str, experiments: Mapping[str, str]) -> str:
    """Return the name of the group that a run is in."""
    if not group:
        return ""
    if group == "experiment":
        return experiments.get(str(run.experiment_id), str(run.experiment_id))
    field = read_field(group)
    value = field.read(run) if field is not None else None
    if field is None or value is None:
        return "(none)"
    return str(value)[:_LONGEST_TEXT]


def _build_picker(
    found: Found, fields: Sequence[Field], runs: Sequence[PerfRun]
) -> dict[str, list[tuple[str, str, bool]]]:
    """Return the fields to choose from, by kind, with chosen fields that no run has."""
    ours = [f for column in COLUMNS if (f := read_field(column.key)) is not None]
    known = [f for f in ours if f in fields or any(_has_value(f, run) for run in runs)]
    # A bare metric of ours that is no column may have been chosen by its name.
    others = [f for f in fields if f not in known and f not in found.offered]
    picked = {"Performance": known, "Your metrics": [], "Parameters": []}
    for field in (*found.offered, *others):
        picked["Parameters" if field.kind == "param" else "Your metrics"].append(field)
    return {
        title: [(field.name, field.label, field in fields) for field in listed]
        for title, listed in picked.items()
        if listed
    }
