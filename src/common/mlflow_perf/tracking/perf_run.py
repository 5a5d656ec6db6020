"""A run with its figures, from MLflow or from a document."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from mlflow_perf.core.format import clean_metric_key, duration
from mlflow_perf.core.json_io import from_json, read_number, require_number
from mlflow_perf.core.uris import redact_param
from mlflow_perf.model.document import (
    CIRCUMSTANCES,
    PerfDocument,
    first_start,
    last_end,
    read_status,
    worst_status,
)

if TYPE_CHECKING:
    from mlflow.entities import Run

TAG = "mlflow_perf."
"""Start of our tags."""

STATUS_TAG = f"{TAG}status"
"""Tag of every run that has a report, with the worst status; also of one that never ran."""

PARENT_TAG = "mlflow.parentRunId"
"""MLflow's tag that names the run of which a run is a child."""

IMPORTED_TAG = f"{TAG}imported_from"
"""Tag of a run that was imported; its figures are the mean of its nodes."""

GROUP_TAG = f"{TAG}group"
"""Tag of a group's parent run, with the group's name."""

PIPELINE_TAG = f"{TAG}pipeline"
"""Tag of a pipeline's parent run, with the pipeline's name."""

BEGAN_TAG = f"{TAG}began"
"""Tag of a step's run that its job made itself, with the Unix time of the step's begin."""

MEASURED_TAG = f"{TAG}measured_by"
"""Tag of a run whose first component's figures are contained in those of the run that it names."""

SUBMITTED_TAG = f"{TAG}submitted"
"""Tag of an imported run: the Unix time from which it waited for its start, in seconds."""

TOO_SHORT = "too short"
"""The verdict on a block of less than a second; its tag says `balanced`, and its advice this."""

COUNT_TAG = f"{TAG}step_count"
"""Tag of a workflow's parent with the number of its steps' runs in its report.

Whoever may read only some of them sees that others exist.
"""

STEPS_TAG = f"{TAG}steps_in."
"""Start of a parent's tags that name other experiments with steps of it.

Steps of other experiments count only there: whoever may not write to a run cannot add steps to it.
"""

_LIVE = "system/"
"""Start of the metrics that come while a job runs."""

BEYOND_FIGURES = 1e150
"""No figure is as large: sums, differences and squares of figures are numbers."""

_OLDER_METRICS = frozenset({"cpu_avg_utilization_pct", "max_t_mem_percent", "node_cpu_hours"})
"""Metrics that every run of lightgbm-benchmark's classes has, and every one of ours."""


@dataclass(frozen=True)
class PerfRun:
    """What is known of one run: its figures, and its document where that was read.

    Attributes:
        label: Short name for people: the run's name and the start of its id, or a path.
        run_id: The MLflow run; None for a file that names none.
        name: The run's name in MLflow.
        experiment_id: The run's experiment in MLflow.
        component: The component that ran.
        status: `FINISHED`, `FAILED`, `KILLED`, `RUNNING`: the worst that MLflow and the reports of
            the run say; None where unknown.
        started: Unix time in seconds.
        ended: Unix time in seconds; None while it runs.
        seen: Unix time of its newest metric, in seconds; None without one.
        metrics: Metric key → the value of its largest step.
        params: The run's parameters, without passwords, keys and the queries of addresses.
        tags: The run's tags.
        document: The nodes' documents, mostly without their curves; None where they were not read
            or do not exist.
        is_deleted: Whether MLflow has it as deleted.
    """

    label: str
    run_id: str | None = None
    name: str | None = None
    experiment_id: str | None = None
    component: str | None = None
    status: str | None = None
    started: float | None = None
    ended: float | None = None
    seen: float | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)
    params: Mapping[str, str] = field(default_factory=dict)
    tags: Mapping[str, str] = field(default_factory=dict)
    document: PerfDocument | None = None
    is_deleted: bool = False

    def __post_init__(self) -> None:
        """Hide the secrets in the parameters, for every output alike."""
        shown = {name: redact_param(name, value) for name, value in self.params.items()}
        object.__setattr__(self, "params", shown)

    @classmethod
    def from_mlflow(cls, run: Run) -> PerfRun:
        """Return what MLflow knows of a run, without its document."""
        info, data = run.info, run.data
        name = info.run_name or data.tags.get("mlflow.runName")
        metrics = data._metric_objs  # noqa: SLF001 - no other way to their times without a request
        is_deleted = info.lifecycle_stage == "deleted"
        return cls(
            f"{name or 'run'} ({info.run_id[:8]}{', deleted' if is_deleted else ''})",
            run_id=info.run_id,
            name=name,
            experiment_id=info.experiment_id,
            component=data.tags.get(f"{TAG}component"),
            # A block may have failed in a run that goes on, and a run after its block.
            status=read_status(info.status, data.tags.get(STATUS_TAG, "")),
            started=find_start(info, data.tags, data.metrics),
            ended=info.end_time / 1000 if info.end_time else None,
            seen=max((one.timestamp / 1000 for one in metrics), default=None),
            # A loss that was NaN is not a figure, and strict JSON cannot hold it.
            metrics={k: v for k, v in data.metrics.items() if is_figure(v)},
            params=data.params,
            tags=data.tags,
            is_deleted=is_deleted,
        )

    @classmethod
    def from_document(cls, label: str, document: PerfDocument) -> PerfRun:
        """Return a run made from a document alone, read from a file or a folder."""
        nodes = document.all_nodes()
        return cls(
            label,
            run_id=nodes[0].run_id if nodes else None,
            component=nodes[0].component if nodes else None,
            status=worst_status(n.status or "" for n in nodes) or None,
            started=first_start(nodes),
            ended=last_end(nodes),
            document=document,
        )

    @property
    def components(self) -> dict[str, PerfRun]:
        """Each further component that reported to the run, by its name, as a run of its own."""
        try:
            named = from_json(self.tags.get(f"{TAG}components") or "[]")
        except ValueError:
            named = []
        documents = self.document.components if self.document is not None else {}
        listed = named if isinstance(named, list) else []
        names = {*documents, *(n for n in listed if isinstance(n, str))}
        return {name: self._narrow(name, documents.get(name)) for name in sorted(names)}

    def split(self) -> list[PerfRun]:
        """Return the run by component: the first one as its own nodes say, and others."""
        others = list(self.components.values())
        own = list(self.document.nodes.values()) if others and self.document is not None else []
        # A run may have failed though none of its reports did.
        told = [n.status or "" for n in own] if self.status in {o.status for o in others} else ()
        status, ended = worst_status(told) or self.status, last_end(own) or self.ended
        return [replace(self, status=status, ended=ended) if own else self, *others]

    def find_component(self, component: str) -> PerfRun | None:
        """Return the run as this component reported it; None if it did not report to the run."""
        return self if self.component == component else self.components.get(component)

    def _narrow(self, component: str, document: PerfDocument | None) -> PerfRun:
        prefix = f"{clean_metric_key(component)}/"
        nodes = [] if document is None else document.all_nodes()
        # The verdict in the run's tags is that of the first component.
        of_report = ("bottleneck", "advice", *(CIRCUMSTANCES if nodes else ()))
        foreign = [f"{TAG}{n}" for n in ("step", "components", "measured_by", *of_report)]
        tags = {k: v for k, v in self.tags.items() if k not in foreign}
        said = nodes[0].extra if nodes else {}
        tags |= {f"{TAG}{n}": str(said[n]) for n in of_report if n in said}
        own = {k.removeprefix(prefix): v for k, v in self.metrics.items() if k.startswith(prefix)}
        return replace(
            self,
            label=f"{component} of {self.label}",
            component=component,
            status=worst_status(node.status or "" for node in nodes) or self.status,
            started=first_start(nodes) or self.started,
            ended=last_end(nodes) or self.ended,
            metrics=own,
            tags={**tags, f"{TAG}component": component},
            document=document,
        )

    @property
    def parent_id(self) -> str | None:
        """The run that this one is a child of."""
        return self.tags.get(PARENT_TAG)

    @property
    def cause(self) -> str:
        """Why it ended early, in a few words; empty where it ended by itself."""
        said = "" if self.document is None else self.document.cause
        return said or self.tags.get(f"{TAG}cause", "")

    @property
    def verdict(self) -> str:
        """What held the run back, in one word for people; empty where nothing says it."""
        word = self.tags.get(f"{TAG}bottleneck", "")
        is_short = word == "balanced" and TOO_SHORT in self.tags.get(f"{TAG}advice", "")
        return TOO_SHORT if is_short else word

    @property
    def is_cut_off(self) -> bool:
        """Whether `recover` stored what a killed process left: its durations are lower bounds."""
        nodes = () if self.document is None else self.document.nodes.values()
        return bool(self.tags.get(f"{TAG}cut_off")) or any(node.is_cut_off for node in nodes)

    @property
    def step_experiments(self) -> list[str]:
        """The experiments with the run's steps: its own, and those that its tags name."""
        home = str(self.experiment_id)
        named = (key.removeprefix(STEPS_TAG) for key in self.tags if key.startswith(STEPS_TAG))
        # A database fails for an id that is no number; other stores have none that is one.
        return [home, *sorted(one for one in named if one.isdecimal() == home.isdecimal())]

    def count_unread_steps(self, read: int) -> int:
        """Return how many steps of this workflow's report are not among those that were read."""
        said = self.tags.get(COUNT_TAG, "")
        return max(0, int(said) - read) if said.isdecimal() and len(said) < 10 else 0

    @property
    def is_baseline(self) -> bool:
        """Whether the tag `mlflow_perf.baseline` pins the run as its component's baseline."""
        return self.tags.get(f"{TAG}baseline", "").lower() not in ("false", "0", "no", "")

    @property
    def step(self) -> str:
        """Name of the step that this run is of its workflow; else the component's name."""
        return self.tags.get(f"{TAG}step") or self.component or self.name or self.label

    @property
    def is_group(self) -> bool:
        """Whether it only holds a workflow's steps: the parent of a group or of a pipeline."""
        return not self.has_figures and (GROUP_TAG in self.tags or PIPELINE_TAG in self.tags)

    def place_in(self, group: PerfRun) -> PerfRun:
        """Return the run as a step of the workflow that contains its group: `group/step`."""
        outer = group.step.replace(",", " ")  # a comma divides the steps before this one
        tags = {**self.tags, f"{TAG}step": f"{outer}/{self.step}"}
        tags.pop(f"{TAG}depends_on", None)
        if self.depends_on:  # the first steps of a group waited for what came before the group
            tags[f"{TAG}depends_on"] = ",".join(f"{outer}/{name}" for name in self.depends_on)
        return replace(self, tags=tags)

    @property
    def depends_on(self) -> tuple[str, ...] | None:
        """Steps that had to end before this one began; None where the runner noted nothing."""
        said = self.tags.get(f"{TAG}depends_on")
        return None if said is None else tuple(n.strip() for n in said.split(",") if n.strip())

    @property
    def submitted(self) -> float | None:
        """Unix time from which it waited for its start, in seconds; None where nobody noted it."""
        with suppress(ValueError):
            return read_number(float(self.tags.get(SUBMITTED_TAG, "")))
        return None

    @property
    def nodes(self) -> dict[int, dict[str, float]]:
        """Node index → its metrics; from the document, else those of a run of one node.

        A metric of MLflow is read back with the value of its largest step only, so without the
        document a run of several nodes has none here, unless it was imported.
        """
        if self.document is not None:
            return {index: node.summary for index, node in sorted(self.document.nodes.items())}
        is_known = self.node_count == 1 or IMPORTED_TAG in self.tags
        # A workflow's parent has the figures of its steps, and was on no node itself.
        if "duration_sec" not in self.metrics or not is_known or self.is_group:
            return {}
        others = (f"{clean_metric_key(name)}/" for name in self.components)
        foreign = ("run_", _LIVE, *others)
        own = {k: v for k, v in self.metrics.items() if not k.startswith(foreign)}
        return {index: dict(own) for index in range(self.node_count)}

    @property
    def figures(self) -> dict[str, float]:
        """The run-level metrics, from the document where there is one."""
        if self.document is not None:
            return self.document.run_summary
        return {k: v for k, v in self.metrics.items() if k.startswith("run_")}

    @property
    def metric_keys(self) -> set[str]:
        """Keys of all metrics that `read_worst` finds."""
        return {*self.metrics, *self.figures}.union(*self.nodes.values())

    def read_worst(self, key: str, *, upward: bool) -> float | None:
        """Return a metric's value: the worst node's, else the run's own; None if it has none.

        Args:
            key: Key of the metric.
            upward: Whether higher values are worse.
        """
        if of_nodes := [node[key] for node in self.nodes.values() if key in node]:
            return max(of_nodes) if upward else min(of_nodes)
        return self.figures.get(key, self.metrics.get(key))

    @property
    def node_count(self) -> int:
        """Number of nodes that reported."""
        if self.document is not None:
            return len(self.document.nodes)
        return int(self.metrics.get("run_node_count", self.metrics.get("node_count", 1.0)))

    @property
    def has_figures(self) -> bool:
        """Whether performance data of the run is known."""
        if self.document is not None:
            return True
        # Keys may start with a prefix of the user's (`metrics_prefix=…`).
        logged = any(key.endswith("duration_sec") for key in self.metrics)
        return self.is_older or (logged and f"{TAG}component" in self.tags)

    @property
    def is_older(self) -> bool:
        """Whether the run holds metrics of lightgbm-benchmark's classes, or of ours by themselves.

        Such a run has no document of ours, but perhaps a JSON file of the old `save_to`.
        """
        return f"{TAG}component" not in self.tags and self.metrics.keys() >= _OLDER_METRICS

    def explain_missing_end(self, now: float | None = None) -> str:
        """Say that a run that is RUNNING has no report yet, and what to do if its job was killed.

        Args:
            now: Unix time in seconds; default: the present.
        """
        whole = "its report"
        if any(key.startswith(_LIVE) for key in self.metrics):
            whole = f"its curves so far are among its metrics ({_LIVE}…), the rest of its report"
        text = f"The run {self.label} is RUNNING: {whole} is logged at the end."
        if (host := self.tags.get(f"{TAG}hostname")) is None:
            return text
        if self.seen is not None:
            age = duration(max(0.0, (time.time() if now is None else now) - self.seen))
            text += f" Its last metric came {age} ago."
        then = f"`mlflow-perf recover` on {host} stores what it left."
        return f"{text} If its process was killed, {then}"

    @property
    def duration_sec(self) -> float | None:
        """How long the run took; None while it runs."""
        if self.started is None or self.ended is None:
            return None
        return max(0.0, self.ended - self.started)


def find_start(info: Any, tags: Mapping[str, str], metrics: Mapping[str, float]) -> float | None:
    """Return when what a run is of started: a step, or the earliest job of an imported workflow.

    MLflow cannot move a run's start. A job may have made its step's run late, and a later import
    may add earlier jobs.

    Args:
        info: What has its `start_time` and `end_time`: MLflow's object, or a row of its table.
        tags: The run's tags.
        metrics: The run's metrics.
    """
    if info.start_time is None:
        return None
    started = float(info.start_time / 1000)
    if info.end_time and {IMPORTED_TAG, PIPELINE_TAG} <= tags.keys():
        started = min(started, info.end_time / 1000 - metrics.get("duration_sec", 0.0))
    with suppress(ValueError):
        started = min(started, require_number(float(tags.get(BEGAN_TAG, "")), least=0))
    return started


def is_figure(value: float) -> bool:
    """Return whether a value of a metric is a number; MLflow keeps infinity as the largest one."""
    return abs(value) < BEYOND_FIGURES
