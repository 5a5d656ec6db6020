"""The document: the one thing between recording and output. Imports errors, series and summary.

One format for one node or many (`mlflow-perf/1`): strict JSON, columnar, loads what older programs
wrote, keeps keys that it does not know, and merges.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mlflow_perf.core.hooks import hooks
from mlflow_perf.core.json_io import Columns, from_json, round_columns, to_json, write_text
from mlflow_perf.errors import DocumentError
from mlflow_perf.model.summary import summarise, summarise_run

if TYPE_CHECKING:
    import pandas as pd

__all__ = [
    "SCHEMA",
    "NodeDocument",
    "PerfDocument",
    "round_columns",
    "to_json",
    "worst_status",
    "write_text",
]

SCHEMA = "mlflow-perf/1"
_FAMILY = "mlflow-perf/"
_WORST_FIRST = ("FAILED", "KILLED", "RUNNING", "FINISHED")


def worst_status(found: Iterable[str]) -> str:
    """Return the status of a whole from those of its parts; empty when none is known."""
    known = set(found)
    return next((status for status in _WORST_FIRST if status in known), "")


@dataclass
class NodeDocument:
    """What one node of a job reported.

    Attributes:
        node: Facts of the node: `index`, `count`, `hostname`, `cpu_count`, `launcher` …
        component: Name of the component that ran.
        run_id: MLflow run that holds it.
        status: `FINISHED`, `FAILED`, `KILLED` or `RUNNING`.
        started: Unix time of the first report, in seconds.
        duration_sec: Length of the block on a monotonic clock.
        summary: Metric key → value.
        reports: Columnar reports; a gauge's peaks within merged rows in `<column>_max`.
        operations: Operations by name, as `mlflow_perf.recorders.operations` writes them.
        transfers: Transfers by name, as `mlflow_perf.recorders.transfers` writes them.
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
    extra: dict[str, Any] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """Return the node as plain data, unknown keys included."""
        known = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "extra"}
        return {**self.extra, **{k: v for k, v in known.items() if v is not None}}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> NodeDocument:
        """Return the node that `as_dict` wrote.

        Raises:
            DocumentError: When a known key holds something of another type, or the columns of
                `reports` are not all of one length.
        """
        known = {f.name for f in fields(cls)} - {"extra"}
        node = cls(
            **{k: _present(v) if k == "summary" else v for k, v in data.items() if k in known}
        )
        node.extra = {k: v for k, v in data.items() if k not in known}
        _check_node(node)
        return node

    def rows(self) -> list[dict[str, float]]:
        """Return the reports as rows, in the order of time; a missing value has no key."""
        length = len(next(iter(self.reports.values()), []))
        items = list(self.reports.items())
        return [
            {name: value for name, column in items if (value := column[i]) is not None}
            for i in range(length)
        ]


_DICTS = ("node", "summary", "reports", "operations", "transfers")
_TEXTS = ("component", "run_id", "status")
_NUMBERS = ("started", "duration_sec")


_COLUMN_TYPES = {float, int, type(None)}


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _present(summary: Any) -> Any:
    """Return a summary without the keys that have no value: what was NaN when it was saved."""
    if not isinstance(summary, dict):
        return summary
    return {key: value for key, value in summary.items() if value is not None}


def _check_node(node: NodeDocument) -> None:
    for name in _DICTS:
        if not isinstance(getattr(node, name), dict):
            raise DocumentError(f"A node's {name!r} must be an object.")
    for name in _TEXTS:
        if not isinstance(getattr(node, name), (str, type(None))):
            raise DocumentError(f"A node's {name!r} must be a text.")
    for name in _NUMBERS:
        value = getattr(node, name)
        if value is not None and not _is_number(value):
            raise DocumentError(f"A node's {name!r} must be a number.")
    for key, value in node.summary.items():
        if not _is_number(value):
            raise DocumentError(f"The summary's {key!r} is {value!r}, not a number.")
    _check_columns(node.reports)


def _check_columns(reports: Mapping[str, Any]) -> None:
    if not all(isinstance(column, list) for column in reports.values()):
        raise DocumentError("A node's 'reports' must hold one list per column.")
    lengths = {len(column) for column in reports.values()}
    if len(lengths) > 1:
        raise DocumentError(f"The columns of a node's 'reports' differ in length: {lengths}.")
    for name, column in reports.items():
        # Nine times faster than asking each value, for what almost every column is.
        if {*map(type, column)} <= _COLUMN_TYPES:
            continue
        if not all(value is None or _is_number(value) for value in column):
            raise DocumentError(f"The column {name!r} holds something that is not a number.")


@dataclass
class PerfDocument:
    """The reports of one node or many: what is logged, loaded, compared and drawn.

    Attributes:
        nodes: Node index → what it reported.
        extra: Keys beside `schema` and `nodes`, kept for the round trip.
    """

    nodes: dict[int, NodeDocument] = field(default_factory=dict)
    extra: dict[str, Any] = field(default_factory=dict)

    @property
    def run_summary(self) -> dict[str, float]:
        """The figures of the run as a whole: metric key → value, from all nodes."""
        return summarise_run(node.summary for node in self.nodes.values())

    def as_dict(self) -> dict[str, Any]:
        """Return the document as plain data."""
        nodes = {str(index): self.nodes[index].as_dict() for index in sorted(self.nodes)}
        return {"schema": SCHEMA, **self.extra, "nodes": nodes}

    @classmethod
    def from_dict(cls, data: Any) -> PerfDocument:
        """Return the document in `data`: ours, or the seed's `{node: [report, …]}`.

        Raises:
            DocumentError: When it is neither, or of a later schema.
        """
        if not isinstance(data, dict):
            raise DocumentError("A performance document must be a JSON object.")
        if "schema" not in data:
            return _from_seed(data)
        if data["schema"] != SCHEMA:
            raise DocumentError(_wrong_schema(data["schema"]))
        nodes = data.get("nodes")
        if not isinstance(nodes, dict):
            raise DocumentError("A performance document needs 'nodes': an object by node index.")
        extra = {k: v for k, v in data.items() if k not in ("schema", "nodes")}
        return cls({_index(k): _node(k, v) for k, v in nodes.items()}, extra)

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

        Where both hold a node of the same index, the one that ended later stays.
        """
        nodes = dict(self.nodes)
        for index, node in other.nodes.items():
            nodes[index] = max(nodes[index], node, key=_order) if index in nodes else node
        extra = {
            key: max((d.extra[key] for d in (self, other) if key in d.extra), key=to_json)
            for key in {*self.extra, *other.extra}
        }
        return PerfDocument(nodes, extra)

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the document to a file, whole or not at all, and return its path.

        Raises:
            OSError: When the place cannot be written.
        """
        return write_text(Path(path), to_json(self.as_dict()))

    def to_frame(self) -> pd.DataFrame:
        """Return the reports as a pandas frame: a row per report, column `node` with the index.

        Rows stand by node index, then in the order of time; a missing value is NaN.
        """
        import pandas as pd

        frames = [
            pd.DataFrame({"node": index, **node.reports}, dtype=float).astype({"node": int})
            for index, node in sorted(self.nodes.items())
            if node.reports
        ]
        frame: pd.DataFrame = pd.concat(frames, ignore_index=True) if frames else pd.DataFrame()
        return frame if frames else frame.assign(node=[])

    def plot(self, **options: Any) -> Any:
        """Return the curves as a matplotlib figure; options as in `reports.matplotlib_figure`.

        Raises:
            MissingDependencyError: When matplotlib is not installed.
        """
        return hooks.plot(self, **options)

    def _repr_html_(self) -> str:
        """Return the report for a notebook."""
        return hooks.notebook_html(self)


def _wrong_schema(schema: Any) -> str:
    if isinstance(schema, str) and schema.startswith(_FAMILY):
        return (
            f"This document has the schema {schema!r}; this version reads {SCHEMA!r}. "
            "Upgrade mlflow-perf to read it."
        )
    return f"This is no performance document: its schema is {schema!r}."


def _index(key: Any) -> int:
    try:
        index = int(key)
    except (TypeError, ValueError):
        index = -1
    if index < 0:
        raise DocumentError(f"A node's index is {key!r}; it must be a whole number of at least 0.")
    return index


def _node(key: Any, data: Any) -> NodeDocument:
    if not isinstance(data, dict):
        raise DocumentError(f"Node {key} must be an object.")
    try:
        return NodeDocument.from_dict(data)
    except DocumentError as error:
        raise DocumentError(f"Node {key}: {error}") from error


def _from_seed(data: Mapping[str, Any]) -> PerfDocument:
    """Return the document in the format of lightgbm-benchmark: `{node: [report, …]}`."""
    seed = all(
        isinstance(reports, list) and all(isinstance(r, dict) for r in reports)
        for reports in data.values()
    )
    if not seed or not data:
        raise DocumentError("This is no performance document: it has no 'schema'.")
    return PerfDocument({_index(k): _seed_node(_index(k), v) for k, v in data.items()})


def _seed_node(index: int, reports: list[dict[str, Any]]) -> NodeDocument:
    names = dict.fromkeys(name for report in reports for name in report)
    columns = {name: [report.get(name) for report in reports] for name in names}
    _check_columns(columns)
    node = NodeDocument({"index": index}, reports=columns)
    # The seed's IO counters count from boot.
    rows = node.rows()
    node.summary = summarise(rows, counters_from_first=True)
    node.duration_sec = node.summary.get("duration_sec")
    node.started = rows[0].get("timestamp") if rows else None
    return node


def _order(node: NodeDocument) -> tuple[float, str]:
    return (node.started or 0.0) + (node.duration_sec or 0.0), to_json(node.as_dict())
