"""The performance document `mlflow-perf/1`: one JSON format for the reports of one node or many."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID  # noqa: F401 - where a job's file hides it, msgspec ends Python 3.12

import msgspec

from mlflow_perf.core.hooks import hooks
from mlflow_perf.core.json_io import Columns, from_json, to_json, write_text
from mlflow_perf.errors import DocumentError
from mlflow_perf.model.metrics import Metric, find_metric
from mlflow_perf.model.summary import summarise, summarise_run

if TYPE_CHECKING:
    import pandas as pd

SCHEMA = "mlflow-perf/1"
_FAMILY = "mlflow-perf/"
AUTOLOG = "autolog"
"""What a node's `recorded_by` says of a run that `autolog()` reported."""
BROKEN = ("FAILED", "KILLED")
"""The statuses of what did not end well."""
WORST_FIRST = (*BROKEN, "RUNNING", "FINISHED")
"""Every status; of several, the first one here counts: what failed had the others killed."""
SKIPPED = "SKIPPED"
"""What the tag `mlflow_perf.status` says of a pipeline's step that was never run.

MLflow has no such status: its run there is KILLED.
"""
CIRCUMSTANCES = ("cause", "cut_off", "elsewhere", "overlapping_runs")
"""Names in a report's `extra`, and of tags of its run, absent where there is nothing to say."""
_SIGTERM, _OF_RANK, _TOGETHER_SEC = "signal SIGTERM", "rank ", 1.0
_TIME_OF_RECORDS = re.compile(r"(ops|transfers)/.*_ms$")
_ITEM_TYPES: dict[str, Any] = {"summary": float, "reports": list[float | None]}


def worst_status(found: Iterable[str]) -> str:
    """Return the worst of several statuses; empty when none is known."""
    known = set(found)
    return next((status for status in WORST_FIRST if status in known), "")


def read_status(stored: str, told: str) -> str:
    """Return the status of a run: the worse of MLflow's and its report's, unless it never ran."""
    return SKIPPED if told == SKIPPED else worst_status((stored, told)) or stored


@dataclass
class NodeDocument:
    """The report of one node of a job.

    Attributes:
        node: Facts about the node: `index`, `count`, `hostname`, `cpu_count`, `launcher` …
        component: Name of the component that ran.
        run_id: MLflow run that holds the document.
        status: `FINISHED`, `FAILED`, `KILLED` or `RUNNING`.
        started: Unix time of the first report, in seconds.
        duration_sec: Length of the block on a monotonic clock.
        summary: Metric key → value.
        reports: Columnar reports; the peaks of a gauge within merged rows are in `<column>_max`.
        operations: Operations by name, as `mlflow_perf.recorders.operations` writes them.
        transfers: Transfers by name, as `mlflow_perf.recorders.transfers` writes them.
        steps: Steps of loops by loop and rank, as `mlflow_perf.recorders.steps` writes them.
        extra: Keys that this version does not know, kept for the round trip.
    """

    node: dict[str, Any] = field(default_factory=dict)
    component: str | None = None
    run_id: str | None = None
    status: str | None = None
    started: float | None = None
    duration_sec: float | None = None
    summary: dict[str, float] = field(default_factory=dict)
    reports: Columns = field(default_factory=dict)
    operations: dict[str, Any] = field(default_factory=dict)
    transfers: dict[str, Any] = field(default_factory=dict)
    steps: dict[str, Any] = field(default_factory=dict)
    extra: dict[str, Any] = field(default_factory=dict)

    @property
    def is_cut_off(self) -> bool:
        """Whether it is what a killed process left: its duration is a lower bound."""
        return bool(self.extra.get("cut_off"))

    def as_dict(self) -> dict[str, Any]:
        """Return the node as plain data, including unknown keys."""
        known = {name: getattr(self, name) for name in _KNOWN}
        if not self.steps:  # most jobs have no such loop
            del known["steps"]
        return {**self.extra, **{k: v for k, v in known.items() if v is not None}}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> NodeDocument:
        """Return the node that `as_dict` wrote, less what cannot be, as a negative time.

        Raises:
            DocumentError: When a known key holds a value of the wrong type, or the columns of
                `reports` differ in length.
        """
        known = {key: value for key, value in data.items() if key in _KNOWN}
        if isinstance(summary := known.get("summary"), dict):
            # A figure that was NaN when it was saved is null in the file.
            known["summary"] = {key: v for key, v in summary.items() if v is not None}
        try:
            node = msgspec.convert(known, cls)
        except msgspec.ValidationError as error:
            raise DocumentError(_locate_fault(known, str(error))) from error
        lengths = {len(column) for column in node.reports.values()}
        if len(lengths) > 1:
            raise DocumentError(f"The columns of a node's 'reports' differ in length: {lengths}.")
        node.extra = {key: value for key, value in data.items() if key not in _KNOWN}
        for key in [key for key, value in node.summary.items() if value < 0]:
            metric, is_time = find_metric(key), bool(_TIME_OF_RECORDS.match(key))
            if is_time or (isinstance(metric, Metric) and not metric.is_signed):
                del node.summary[key]
        if node.duration_sec is not None and node.duration_sec < 0:
            node.duration_sec = None
        return node

    def rows(self) -> list[dict[str, float]]:
        """Return the reports as rows, in the order of time; a missing value has no key."""
        length = len(next(iter(self.reports.values()), []))
        items = list(self.reports.items())
        return [
            {name: value for name, column in items if (value := column[i]) is not None}
            for i in range(length)
        ]


_KNOWN = {f.name: None for f in fields(NodeDocument) if f.name != "extra"}


def _locate_fault(data: Mapping[str, Any], problem: str) -> str:
    """Return msgspec's message as a sentence that names the wrong value, also within a mapping."""
    types, _, place = problem.partition(" - at `$.")
    name = re.split(r"\W", place, maxsplit=1)[0]
    if name in _ITEM_TYPES and isinstance(data[name], dict):
        for key, value in data[name].items():
            try:
                msgspec.convert(value, _ITEM_TYPES[name])
            except msgspec.ValidationError:
                name = f"{name}.{key}"
                break
    types = types.replace("Expected", "must be of type").replace(", got", ", not")
    return f"A node's {name!r} {types}."


@dataclass
class PerfDocument:
    """The reports of one node or many, which are logged, loaded, compared and drawn.

    Attributes:
        nodes: Node index → the node's report.
        extra: Keys besides `schema`, `nodes` and `components`, kept for the round trip.
        components: Name of a further component that reported to the same run → its document.
    """

    nodes: dict[int, NodeDocument] = field(default_factory=dict)
    extra: dict[str, Any] = field(default_factory=dict)
    components: dict[str, PerfDocument] = field(default_factory=dict)

    @property
    def run_summary(self) -> dict[str, float]:
        """The figures of the run as a whole: metric key → value, from all nodes."""
        return summarise_run(node.summary for node in self.nodes.values())

    @property
    def cause(self) -> str:
        """Why the job ended early, in a few words; empty where it ended by itself.

        Of several nodes it is that of the first that ended: the others were ended because of it. A
        node whose other ranks are ended, too, ends with those: a SIGTERM within a second, and what
        a pipeline's runner says of another rank, count less than what else ended a node.
        """
        ends = {i: (n.started or 0.0) + (n.duration_sec or 0.0) for i, n in self.nodes.items()}
        causes = {i: str(n.extra["cause"]) for i, n in self.nodes.items() if n.extra.get("cause")}
        if not causes:
            return ""
        soon = min(ends[index] for index in causes) + _TOGETHER_SEC
        others = {i: (why == _SIGTERM) + why.startswith(_OF_RANK) for i, why in causes.items()}
        first = min(causes, key=lambda i: (ends[i] > soon, others[i], ends[i], i))
        is_of_node = len(self.nodes) > 1 and not causes[first].startswith(_OF_RANK)
        return f"{causes[first]}, node {first}" if is_of_node else causes[first]

    def as_dict(self) -> dict[str, Any]:
        """Return the document as plain data."""
        nodes = {str(index): self.nodes[index].as_dict() for index in sorted(self.nodes)}
        data: dict[str, Any] = {"schema": SCHEMA, **self.extra, "nodes": nodes}
        if self.components:
            data["components"] = {n: self.components[n].as_dict() for n in sorted(self.components)}
        return data

    def all_nodes(self) -> list[NodeDocument]:
        """Return the nodes by their indexes, then those of the further components."""
        others = [self.components[name].all_nodes() for name in sorted(self.components)]
        return [*(self.nodes[index] for index in sorted(self.nodes)), *chain(*others)]

    @classmethod
    def from_dict(cls, data: Any) -> PerfDocument:
        """Return the document in `data`: in our format, or the seed's `{node: [report, …]}`.

        Raises:
            DocumentError: When it is neither, or has a later schema.
        """
        if not isinstance(data, dict):
            raise DocumentError("A performance document must be a JSON object.")
        if "schema" not in data:
            return _from_seed(data)
        schema, nodes = data["schema"], data.get("nodes")
        if schema != SCHEMA:
            if isinstance(schema, str) and schema.startswith(_FAMILY):
                raise DocumentError(
                    f"This document has the schema {schema!r}; this version reads {SCHEMA!r}. "
                    "Upgrade mlflow-perf to read it."
                )
            raise DocumentError(f"This is not a performance document: its schema is {schema!r}.")
        if not isinstance(nodes, dict):
            raise DocumentError("A performance document needs 'nodes': an object by node index.")
        known = ("schema", "nodes", "components")
        document = cls(extra={k: v for k, v in data.items() if k not in known})
        components = data.get("components", {})
        if not isinstance(components, dict):
            raise DocumentError("A performance document's 'components' must be an object by name.")
        for name, other in components.items():
            if not isinstance(other, dict) or "schema" not in other or "components" in other:
                raise DocumentError(f"The component {name!r} must be a performance document.")
            document.components[str(name)] = cls.from_dict(other)
        for key, node in nodes.items():
            index = _read_index(key)
            if not isinstance(node, dict):
                raise DocumentError(f"Node {key} must be an object.")
            try:
                document.nodes[index] = NodeDocument.from_dict(node)
            except DocumentError as error:
                raise DocumentError(f"Node {key}: {error}") from error
        return document

    @classmethod
    def from_json(cls, text: str | bytes) -> PerfDocument:
        """Return the document in a JSON text.

        Raises:
            DocumentError: When it is not JSON, or not a document.
        """
        try:
            data = from_json(text)
        except (ValueError, RecursionError) as error:
            raise DocumentError(f"This is not a JSON document: {error}.") from error
        return cls.from_dict(data)

    def merge(self, other: PerfDocument) -> PerfDocument:
        """Return a document with the nodes of both; associative and commutative.

        If both have a node of the same index, the node that ended later is kept.
        """

        def rank(node: NodeDocument) -> tuple[float, str]:
            return (node.started or 0.0) + (node.duration_sec or 0.0), to_json(node.as_dict())

        nodes = dict(self.nodes)
        for index, node in other.nodes.items():
            nodes[index] = max(nodes[index], node, key=rank) if index in nodes else node
        extra = {
            key: max((d.extra[key] for d in (self, other) if key in d.extra), key=to_json)
            for key in {*self.extra, *other.extra}
        }
        components = dict(self.components)
        for name, document in other.components.items():
            components[name] = components.get(name, PerfDocument()).merge(document)
        return PerfDocument(nodes, extra, components)

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the document to a file, whole or not at all, and return its path.

        Raises:
            OSError: When the file cannot be written.
        """
        return write_text(Path(path), to_json(self.as_dict()))

    def to_frame(self) -> pd.DataFrame:
        """Return the reports as a pandas frame: a row per report, column `node` with the index.

        Rows are sorted by node index, then by time; a missing value is NaN.
        """
        import pandas as pd

        frames = [
            pd.DataFrame({"node": index, **node.reports}, dtype=float).astype({"node": int})
            for index, node in sorted(self.nodes.items())
            if node.reports
        ]
        frame: pd.DataFrame = pd.concat(frames or [pd.DataFrame({"node": []})], ignore_index=True)
        return frame

    def plot(self, **options: Any) -> Any:
        """Return the curves as a matplotlib figure; options as in `reports.matplotlib_figure`.

        Raises:
            MissingDependencyError: When matplotlib is not installed.
        """
        return hooks.plot(self, **options)

    def _repr_html_(self) -> str:
        """Return the report for a notebook."""
        return hooks.notebook_html(self)


def _read_index(key: Any) -> int:
    try:
        index = int(key)
    except (TypeError, ValueError):
        index = -1
    if index < 0:
        raise DocumentError(f"A node's index is {key!r}; it must be a whole number of at least 0.")
    return index


def _from_seed(data: Mapping[str, Any]) -> PerfDocument:
    """Return the document in the format of lightgbm-benchmark: `{node: [report, …]}`."""
    is_seed = all(
        isinstance(reports, list) and all(isinstance(r, dict) for r in reports)
        for reports in data.values()
    )
    if not is_seed or not data:
        raise DocumentError("This is not a performance document: it has no 'schema'.")
    document = PerfDocument()
    for key, reports in data.items():
        index = _read_index(key)
        names = dict.fromkeys(name for report in reports for name in report)
        columns = {name: [report.get(name) for report in reports] for name in names}
        node = NodeDocument.from_dict({"node": {"index": index}, "reports": columns})
        # The seed's IO counters count from boot.
        rows = node.rows()
        node.summary = summarise(rows, counters_from_first=True)
        node.duration_sec = node.summary.get("duration_sec")
        node.started = rows[0].get("timestamp") if rows else None
        document.nodes[index] = node
    return document


def first_start(nodes: Iterable[NodeDocument]) -> float | None:
    """Return when the first node began, Unix time in seconds; None where no node says it."""
    return min((n.started for n in nodes if n.started is not None), default=None)


def last_end(nodes: Iterable[NodeDocument]) -> float | None:
    """Return when the last node ended, Unix time in seconds; None where no node says it."""
    ends = (n.started + (n.duration_sec or 0.0) for n in nodes if n.started is not None)
    return max(ends, default=None)
