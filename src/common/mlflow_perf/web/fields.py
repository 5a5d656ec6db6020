"""The fields of a run that the list can show: our figures, the user's metrics, and parameters.

A field has one name in the address, whether it is a column, the order or the group: `started`,
`run_cpu_hours`, `metrics.auc`, `params.leaves`.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from mlflow_perf.analysis.metric_text import find_unit
from mlflow_perf.core.format import clean_metric_key
from mlflow_perf.model.metrics import find_metric
from mlflow_perf.tracking.fleet_sums import USER_TAG
from mlflow_perf.tracking.perf_run import PARENT_TAG, TAG, PerfRun

ATTRIBUTES = {"started": "start_time", "name": "run_name", "status": "status"}
"""Field → attribute in MLflow's search language."""

TAGS = {
    "component": f"{TAG}component",
    "bottleneck": f"{TAG}bottleneck",
    "user": USER_TAG,
    "workflow": PARENT_TAG,
}
"""Field → its tag."""

_LABELS = {
    "name": "Run",
    "component": "Component",
    "started": "Started",
    "status": "Status",
    "bottleneck": "Verdict",
    "user": "User",
    "workflow": "Workflow",
    "experiment": "Experiment",
}
_OURS = ("ops/", "transfers/", "steps/", "system/", "run_")
_NUMBER = re.compile(r"[-+]?(\d{1,30}(\.\d{0,30})?|\.\d{1,30})([eE][-+]?\d{1,2})?", re.ASCII)
_LONGEST = 250


@dataclass(frozen=True)
class Column:
    """One column of our figures.

    Attributes:
        key: The metric; its name in the address.
        label: Heading.
        instead: The node's metric that replaces a missing figure of the run.
        live: The metric of MLflow's system metrics with the present value of a running job.
        minor: Whether it is shown only when it is chosen.
    """

    key: str
    label: str
    instead: str = ""
    live: str = ""
    minor: bool = False


COLUMNS = (
    Column("run_duration_sec", "Duration", "duration_sec"),
    Column("run_node_count", "Nodes", "node_count", minor=True),
    Column("run_job_cpu_avg_cores", "Job's CPUs", "job_cpu_avg_cores", "system/job_cpu_cores"),
    Column("run_job_cpu_hours", "CPU time used", "job_cpu_hours", minor=True),
    Column("run_cpu_hours", "CPU time held", "node_cpu_hours"),
    Column("run_unused_cpu_hours", "Used by nobody", "node_unused_cpu_hours"),
    Column("run_job_max_mem_mb", "Job's memory", "job_max_mem_mb",
           "system/job_memory_megabytes"),
    Column("run_gpu_avg_utilization_pct", "GPU busy", "gpu_avg_utilization_pct",
           "system/gpu_0_utilization_percentage"),
    Column("run_cost", "Cost", "node_cost"),
    Column("run_imbalance_pct", "Imbalance", minor=True),
    Column("run_cpu_avg_utilization_pct", "Node's CPUs", "cpu_avg_utilization_pct",
           "system/cpu_utilization_percentage", minor=True),
    Column("run_max_t_mem_percent", "Node's memory", "max_t_mem_percent",
           "system/system_memory_usage_percentage", minor=True),
    Column("run_total_disk_io_read_mb", "Node's disk, read", "total_disk_io_read_mb", minor=True),
    Column("run_total_disk_io_write_mb", "Node's disk, written", "total_disk_io_write_mb",
           minor=True),
)  # fmt: skip
"""The figures of ours in the list, if any run has them."""

SUMMED = (
    "run_job_cpu_hours",
    "run_cpu_hours",
    "run_unused_cpu_hours",
    "run_cost",
    "run_total_disk_io_read_mb",
    "run_total_disk_io_write_mb",
)
"""The figures of steps that add up to those of their workflow."""

HIGHEST = ("run_max_t_mem_percent", "run_job_max_mem_mb")
"""The figures of steps of which the largest is that of their workflow."""

BY_KEY = {column.key: column for column in COLUMNS}
_COLUMN_LABELS = {key: c.label for c in COLUMNS for key in (c.key, c.instead) if key}


@dataclass(frozen=True)
class Field:
    """One thing that a run may have.

    Attributes:
        name: Its name in the address.
        kind: `attribute`, `tag`, `metric` or `param`.
        key: The attribute, the tag, the metric or the parameter.
    """

    name: str
    kind: str
    key: str

    @property
    def label(self) -> str:
        """The heading of its column."""
        if self.kind == "metric":
            return _COLUMN_LABELS.get(self.key, self.key)
        return _LABELS.get(self.name, self.key)

    @property
    def meaning(self) -> str:
        """What it is, in one sentence."""
        if self.kind == "param":
            return f"The parameter {self.key}."
        known = find_metric(self.key) if self.kind == "metric" else None
        return known.meaning if known else f"The metric {self.key}, as the job logged it."

    @property
    def unit(self) -> str:
        """Its unit; empty without one."""
        if self.kind != "metric":
            return ""
        # A user's `…_sec` has the unit that its ending says.
        return find_unit(self.key)

    @property
    def keys(self) -> list[str]:
        """Its key, and the one that replaces it where a run lacks it."""
        column = BY_KEY.get(self.key) if self.kind == "metric" else None
        return [self.key, column.instead] if column and column.instead else [self.key]

    @property
    def search_names(self) -> list[str]:
        """Its keys in MLflow's search language."""
        kinds = {"metric": "metrics", "param": "params", "tag": "tags", "attribute": "attributes"}
        keys = [self.key] if self.kind == "attribute" else [f"`{key}`" for key in self.keys]
        return [f"{kinds[self.kind]}.{key}" for key in keys]

    def read(self, run: PerfRun) -> float | str | None:
        """Return a run's value; None if it has none."""
        if self.kind == "param":
            return run.params.get(self.key)
        if self.kind == "metric":
            return read_figure(run, self.key)
        if self.kind == "tag":
            own = {"component": run.component, "bottleneck": run.verdict or None}
            return own.get(self.name, run.tags.get(self.key))
        return {"started": run.started, "name": run.name, "status": run.status}[self.name]

    def read_present(self, run: PerfRun) -> float | None:
        """Return the present value of what a running job has no figure of yet; None if unknown."""
        column = BY_KEY.get(self.key) if self.kind == "metric" else None
        if column is None or run.status != "RUNNING" or self.read(run) is not None:
            return None
        return run.metrics.get(column.live)


STARTED = Field("started", "attribute", ATTRIBUTES["started"])


def read_field(name: str) -> Field | None:
    """Return the field of a name in an address; None for an empty or an overlong one.

    A bare name that is none of ours is a metric of the user's: `auc` is `metrics.auc`.
    """
    if name in ATTRIBUTES:
        return Field(name, "attribute", ATTRIBUTES[name])
    if name in TAGS:
        return Field(name, "tag", TAGS[name])
    start, _, key = name.partition(".")
    kind = {"metrics": "metric", "params": "param"}.get(start)
    if kind is None:
        kind, key = "metric", name
    key = key.strip("`\"'")
    if not key or len(key) > _LONGEST or "`" in key:
        return None
    return Field(key if kind == "metric" and key in BY_KEY else f"{kind}s.{key}", kind, key)


def is_users_metric(key: str, components: Iterable[str] = ()) -> bool:
    """Return whether a metric is the job's own, such as `auc`.

    Args:
        key: Key of the metric.
        components: The run's further components, whose figures have their name in front.
    """
    prefixes = (f"{clean_metric_key(name)}/" for name in components)
    own = key.removeprefix(next(filter(key.startswith, prefixes), ""))
    return find_metric(own) is None and not own.startswith(_OURS)


def read_figure(run: PerfRun, key: str) -> float | None:
    """Return a run's figure: the run's own, else that of its only node."""
    value, column = run.metrics.get(key), BY_KEY.get(key)
    if value is not None or column is None:
        return value
    # Of a metric of several nodes, MLflow keeps the last node's value.
    return run.metrics.get(column.instead) if run.node_count == 1 else None


def list_keys(fields: Iterable[Field]) -> list[str]:
    """Return the keys of the metrics that fields are read from."""
    keys: list[str] = []
    for field in fields:
        if field.kind == "metric":
            column = BY_KEY.get(field.key)
            keys += [field.key, *((column.instead, column.live) if column else ())]
    return [key for key in dict.fromkeys(keys) if key]


def read_number(value: float | str | None) -> float | None:
    """Return a value as a number; None for a text that is none."""
    if isinstance(value, str):
        return float(value) if _NUMBER.fullmatch(value.strip()) else None
    return value


def offer_fields(
    metrics: Mapping[str, int], params: Mapping[str, int], components: Collection[str]
) -> list[Field]:
    """Return the user's metrics and the parameters that some runs have, the most frequent first.

    Args:
        metrics: Key of a metric → how many runs have it.
        params: The same for the parameters.
        components: Further components of the runs.
    """
    users = (key for key in metrics if is_users_metric(key, components))
    own = sorted(users, key=lambda k: (-metrics[k], k))
    named = sorted(params, key=lambda k: (-params[k], k))
    found = [read_field(f"metrics.{k}") for k in own] + [read_field(f"params.{k}") for k in named]
    return [field for field in found if field is not None]
