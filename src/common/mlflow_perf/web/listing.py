"""The table of runs as plain data: columns, search, sorting, addresses.

The address holds the user's whole choice, so that it can be kept and sent.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import urlencode

from mlflow_perf.core.format import clock_time, format_count, quantity
from mlflow_perf.errors import SettingError
from mlflow_perf.model.metrics import find_metric
from mlflow_perf.reports.tables import explain_metric
from mlflow_perf.tracking.perf_run import PARENT_TAG, PerfRun
from mlflow_perf.tracking.search import quote_literal

_MOST_RUNS = 1000
_DIGITS = 19  # more of them are beyond what a database counts to
_OURS = "tags.`mlflow_perf.component` LIKE '%'"
_STATUSES = ("FINISHED", "FAILED", "KILLED", "RUNNING")


@dataclass(frozen=True)
class Column:
    """One column of figures.

    Attributes:
        key: The metric; its name in the address.
        label: Heading.
        instead: The node's metric that replaces a missing figure of the run.
    """

    key: str
    label: str
    instead: str = ""


COLUMNS = (
    Column("run_duration_sec", "Duration", "duration_sec"),
    Column("run_node_count", "Nodes", "node_count"),
    Column("run_job_cpu_avg_cores", "Job's CPUs", "job_cpu_avg_cores"),
    Column("run_job_cpu_hours", "CPU time", "job_cpu_hours"),
    Column("run_cpu_hours", "Held", "node_cpu_hours"),
    Column("run_job_max_mem_mb", "Job's memory", "job_max_mem_mb"),
    Column("run_gpu_avg_utilization_pct", "GPU busy", "gpu_avg_utilization_pct"),
    Column("run_imbalance_pct", "Imbalance"),
    Column("run_cpu_avg_utilization_pct", "Node's CPUs", "cpu_avg_utilization_pct"),
    Column("run_unused_cpu_hours", "Unused by all", "node_unused_cpu_hours"),
    Column("run_max_t_mem_percent", "Node's memory", "max_t_mem_percent"),
    Column("run_total_disk_io_read_mb", "Node's disk read", "total_disk_io_read_mb"),
    Column("run_total_disk_io_write_mb", "written", "total_disk_io_write_mb"),
)
"""The figures that the table shows if any run has them."""

_SUMMED = (
    "run_job_cpu_hours",
    "run_cpu_hours",
    "run_unused_cpu_hours",
    "run_total_disk_io_read_mb",
    "run_total_disk_io_write_mb",
)
_ORDERS = {
    "started": "attributes.start_time",
    "name": "attributes.run_name",
    "component": "tags.`mlflow_perf.component`",
    "status": "attributes.status",
    "bottleneck": "tags.`mlflow_perf.bottleneck`",
    **{column.key: f"metrics.`{column.key}`" for column in COLUMNS},
}
FILTER_TAGS = {
    "component": "mlflow_perf.component",
    "bottleneck": "mlflow_perf.bottleneck",
    "workflow": PARENT_TAG,
}
"""Name of a filter in the address → the tag that it compares."""

_FILTERS = {name: f"tags.`{tag}`" for name, tag in FILTER_TAGS.items()}
_FILTERS["status"] = "attributes.status"


@dataclass(frozen=True)
class Choice:
    """The user's choice, as in the address.

    Attributes:
        experiments: Ids; empty for all.
        equal: Filter → its required value.
        query: A further condition in MLflow's search language.
        text: A part of the name, the component or the id.
        sort: Column, with `-` in front for the largest first.
        limit: Most runs.
        page: Token of a further page.
        workspace: The workspace of MLflow's that is read; empty for the default.
    """

    experiments: tuple[str, ...] = ()
    equal: Mapping[str, str] = field(default_factory=dict)
    query: str = ""
    text: str = ""
    sort: str = "-started"
    limit: int = _MOST_RUNS
    page: str = ""
    workspace: str = ""

    @property
    def offset(self) -> int:
        """How many rows come before the page; 0 if `page` is a token of MLflow's search."""
        return int(self.page) if self.page.isdecimal() and len(self.page) < _DIGITS else 0

    @classmethod
    def from_query(cls, values: Mapping[str, list[str]]) -> Choice:
        """Return the choice in an address.

        Args:
            values: Name → its values in the address.

        Raises:
            SettingError: When the sort or the limit is not a valid one.
        """
        one = {name: found[0].strip() for name, found in values.items() if found}
        sort = one.get("sort") or "-started"
        if sort.removeprefix("-") not in _ORDERS:
            raise SettingError(f"There is no column {sort!r} to sort by.")
        text = one.get("limit") or str(_MOST_RUNS)
        digits = text.isascii() and text.isdigit() and len(text) < _DIGITS
        if not digits or not 1 <= int(text) <= _MOST_RUNS:
            raise SettingError(
                f"limit is {text[:20]!r}; it must be a whole number from 1 to {_MOST_RUNS}."
            )
        return cls(
            experiments=tuple(e for e in values.get("experiment", []) if e),
            equal={name: one[name] for name in _FILTERS if one.get(name)},
            query=one.get("filter", ""),
            text=one.get("q", ""),
            sort=sort,
            limit=int(text),
            page=one.get("page", ""),
            workspace=one.get("workspace", ""),
        )

    def address(self, **changes: Any) -> str:
        """Return the query of the address, with changes; an empty value leaves a name out."""
        pairs: list[tuple[str, str]] = [("experiment", e) for e in self.experiments]
        values = {**self.equal, "filter": self.query, "q": self.text, "sort": self.sort}
        values["workspace"] = self.workspace
        values["limit"] = "" if self.limit == _MOST_RUNS else str(self.limit)
        values.update(changes)
        if values["sort"] == "-started":
            values["sort"] = ""
        pairs += [(name, str(value)) for name, value in values.items() if value]
        return urlencode(pairs)


def build_search(choice: Choice) -> tuple[str, list[str]]:
    """Return the condition and the order in MLflow's search language.

    The component is not in the condition: that language has no "or" for a run's several components.

    Raises:
        SettingError: When a value holds both kinds of quotes, which that language cannot express.
    """
    conditions = [_OURS]
    equal = {name: value for name, value in choice.equal.items() if name != "component"}
    conditions += [f"{_FILTERS[name]} = {quote_literal(value)}" for name, value in equal.items()]
    if choice.query:
        conditions.append(choice.query)
    order = _ORDERS[choice.sort.removeprefix("-")]
    return " AND ".join(conditions), [f"{order} {'DESC' if choice.sort[0] == '-' else 'ASC'}"]


@dataclass(frozen=True)
class Found:
    """One page of runs.

    Attributes:
        runs: The runs, without their documents.
        next_page: Token of the next page, or None.
        steps: Id of each run that is a workflow → its steps.
    """

    runs: list[PerfRun]
    next_page: str | None = None
    steps: Mapping[str, Sequence[PerfRun]] = field(default_factory=dict)


@dataclass(frozen=True)
class Listing:
    """The content of the page of runs.

    Attributes:
        heads: Heading, sort name, meaning and address of each column that sorts.
        rows: One dictionary per run: the variables of the template.
        older: Address of the next page, or empty.
        shown: How many runs are shown, in words.
    """

    heads: list[dict[str, str]]
    rows: list[dict[str, Any]]
    older: str
    shown: str


_FIRST_HEADS = (
    ("name", "Run", "The run's name in MLflow."),
    ("component", "Component", "What ran."),
    ("started", "Started", "When the run started."),
    ("status", "Status", "How the run ended."),
    ("bottleneck", "Held back by", "The resource that held the job back."),
)


def build_listing(found: Found, choice: Choice, experiments: Mapping[str, str]) -> Listing:
    """Return the table of runs.

    Args:
        found: The runs that a search found.
        choice: The user's choice.
        experiments: The experiments that the user may read: id → name.
    """
    wanted = choice.text.casefold()
    kept = [
        _sum_steps(run, found.steps.get(str(run.run_id), []))
        for run in found.runs
        if any(
            wanted in (part or "").casefold()
            for part in (run.name, run.component, *run.components, run.run_id)
        )
    ]
    columns = [c for c in COLUMNS if any(_read_figure(run, c) is not None for run in kept)]
    heads = [_build_head(*head, choice) for head in _FIRST_HEADS]
    for column in columns:
        meaning = explain_metric(column.key)
        heads.append(_build_head(column.key, column.label, meaning, choice, number=True))
    rows = []
    for run in kept:
        row = _build_row(run, columns, experiments)
        row["steps"] = row["steps_address"] = ""
        if steps := found.steps.get(str(run.run_id)):
            row["steps"] = format_count(len(steps), "step")
            of_workflow = replace(choice, equal={"workflow": str(run.run_id)}, text="", page="")
            row["steps_address"] = of_workflow.address()
        rows.append(row)
    older = choice.address(page=found.next_page) if found.next_page else ""
    shown = format_count(len(kept), "run") + (", more follow" if older else "")
    return Listing(heads, rows, older, shown)


def _sum_steps(run: PerfRun, steps: Sequence[PerfRun]) -> PerfRun:
    """Return a workflow with the figures of its steps if it has none of its own."""
    summaries = [step.metrics for step in steps]
    if not any(summaries):
        return run
    metrics = dict(run.metrics)
    for key in _SUMMED:
        values = [summary[key] for summary in summaries if key in summary]
        if values:
            metrics[key] = sum(values)
    for key in ("run_max_t_mem_percent", "run_job_max_mem_mb"):
        if highest := [summary[key] for summary in summaries if key in summary]:
            metrics[key] = max(highest)
    if metrics.get("run_cpu_hours"):
        unused = metrics.get("run_unused_cpu_hours", 0.0) / metrics["run_cpu_hours"]
        metrics["run_cpu_avg_utilization_pct"] = 100.0 * (1.0 - unused)
    if run.duration_sec is not None:
        metrics["run_duration_sec"] = run.duration_sec
    return replace(run, metrics=metrics)


def _build_head(
    name: str, label: str, meaning: str, choice: Choice, *, number: bool = False
) -> dict[str, str]:
    down, up = choice.sort == f"-{name}", choice.sort == name
    # The first click sorts figures from the largest on, and texts from A to Z.
    other = name if down or not (number or name == "started" or up) else f"-{name}"
    return {
        "label": label,
        "meaning": meaning,
        "address": choice.address(sort=other),
        "sorted": "descending" if down else "ascending" if up else "",
        "class": "n" if number else "",
    }


def _read_figure(run: PerfRun, column: Column) -> float | None:
    value = run.metrics.get(column.key)
    # Of a metric of several nodes, MLflow keeps the last node's value.
    instead = run.metrics.get(column.instead) if run.node_count == 1 else None
    return instead if value is None else value


def _build_row(
    run: PerfRun, columns: Iterable[Column], experiments: Mapping[str, str]
) -> dict[str, Any]:
    cells = []
    for column in columns:
        known = find_metric(column.key)
        unit = known.unit if known else "%" if column.key.endswith("_pct") else ""
        cells.append(quantity(_read_figure(run, column), unit))
    return {
        "id": run.run_id,
        "name": run.name or (run.run_id or "")[:8],
        "experiment_id": run.experiment_id,
        "experiment": experiments.get(str(run.experiment_id), ""),
        "component": ", ".join(filter(None, [run.component, *run.components]))
        or run.tags.get("mlflow_perf.pipeline", ""),
        "started": clock_time(run.started).removesuffix(" UTC"),
        "status": run.status if run.status in _STATUSES else "",
        "bottleneck": run.tags.get("mlflow_perf.bottleneck", ""),
        "advice": run.tags.get("mlflow_perf.advice", ""),
        "parent": run.parent_id or "",
        "cells": cells,
    }
