"""The report of a run's nodes as plain data. Imports the document, the summary and its own parts.

Nodes are read one by one and only what is shown is kept of each, so that a run of a thousand nodes
need not be in memory at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from mlflow_perf.core.format import clock_time, quantity
from mlflow_perf.model.document import NodeDocument, PerfDocument, worst_status
from mlflow_perf.model.summary import summarise_run
from mlflow_perf.reports import operation_rows as ops
from mlflow_perf.reports.charts import Chart
from mlflow_perf.reports.curves import FEW_NODES, Curves, NodeCurves, build_curves
from mlflow_perf.reports.pictures import Picture
from mlflow_perf.reports.tables import (
    Tile,
    build_tiles,
    choose_verdict,
    list_facts,
    metric_rows,
    node_rows,
)

__all__ = ["Report", "build_run_page"]

_MOST_FACTS = 8


@dataclass
class Report:
    """What the page of a run shows.

    Attributes:
        title: Heading: the component's name unless another was given.
        status: `FINISHED`, `FAILED`, `KILLED`, `RUNNING`, or empty when it is not known.
        run_id: MLflow run, or empty.
        started: When the first node started, as text.
        tiles: Headline figures.
        verdict: `bottleneck` and `advice`, where they are known.
        nodes: Table of the nodes: `columns` and `rows`.
        operations: Table of the operations: `columns`, `rows` and `left_out`.
        counters: Counter and its sum over the nodes, as texts.
        transfers: Transfers with their figures.
        facts: Of up to eight nodes: label of the node and what is known of it.
        metrics: Table of all metrics.
        curves: What the charts draw, as data for the page; None without reports.
        overhead: Our own cost, as text; empty when it is not known.
        notes: What is missing from the report, one sentence each.
        pictures: Ready-made pictures, such as those of the workflow's spans.
    """

    title: str
    status: str = ""
    run_id: str = ""
    started: str = ""
    tiles: list[Tile] = field(default_factory=list)
    verdict: dict[str, str] = field(default_factory=dict)
    nodes: dict[str, Any] = field(default_factory=dict)
    operations: dict[str, Any] = field(default_factory=dict)
    counters: list[tuple[str, str]] = field(default_factory=list)
    transfers: list[dict[str, Any]] = field(default_factory=list)
    facts: list[tuple[str, list[tuple[str, str]]]] = field(default_factory=list)
    metrics: list[dict[str, Any]] = field(default_factory=list)
    curves: dict[str, Any] | None = None
    overhead: str = ""
    notes: list[str] = field(default_factory=list)
    pictures: list[Picture] = field(default_factory=list)


class _Reader:
    """Takes the nodes one by one and keeps of each what the page shows."""

    def __init__(self) -> None:
        self.curves: list[NodeCurves | None] = []
        self.summaries: list[dict[str, float]] = []
        self.facts: list[dict[str, Any]] = []
        self.details: list[tuple[str, list[tuple[str, str]]]] = []
        self.extras: list[Mapping[str, Any]] = []
        self.operations: list[ops.Figures] = []
        self.transfers: list[ops.Figures] = []
        self.counters: dict[str, float] = {}
        self.components: list[str] = []
        self.run_ids: list[str] = []
        self.starts: list[float] = []

    def add(self, index: int, node: NodeDocument) -> None:
        """Keep what the page shows of a node."""
        self.curves.append(NodeCurves.of(index, node))
        timed = ops.figures_in(node, "ops")
        self.operations.append(timed)
        self.transfers.append(ops.figures_in(node, "transfers"))
        for name, value in ops.counters_of(node, timed).items():
            self.counters[name] = self.counters.get(name, 0.0) + value
        self.summaries.append({k: v for k, v in node.summary.items() if not k.startswith("ops/")})
        host = str(node.node.get("hostname") or "")
        self.facts.append({"index": index, "hostname": host, "status": node.status or ""})
        if len(self.details) < _MOST_FACTS:
            self.details.append((f"Node {index}", list_facts(node)))
        self.extras.append({k: node.extra.get(k) for k in ("bottleneck", "advice")})
        self.components.append(node.component or "")
        self.run_ids.append(node.run_id or "")
        if node.started is not None:
            self.starts.append(node.started)


def build_run_page(
    source: PerfDocument | Iterable[NodeDocument], *, title: str | None = None
) -> Report:
    """Return the report of a run.

    Args:
        source: The document, or its nodes one after another.
        title: Heading; default: the component's name.
    """
    reader = _read(source)
    run = summarise_run(reader.summaries)
    report = Report(title or _first(reader.components) or "Performance report")
    report.status, report.run_id = (
        worst_status(f["status"] for f in reader.facts),
        _first(reader.run_ids),
    )
    report.started = clock_time(min(reader.starts)) if reader.starts else ""
    report.tiles = build_tiles(reader.summaries, run)
    report.verdict = choose_verdict(_extras(source, reader))
    report.nodes = node_rows(reader.facts, reader.summaries)
    report.operations = ops.operation_rows(reader.operations)
    report.counters = [(k, quantity(v, "")) for k, v in sorted(reader.counters.items())]
    report.transfers = ops.transfer_rows(reader.transfers)
    report.facts = [(label, facts) for label, facts in reader.details if facts]
    report.metrics = metric_rows(reader.summaries)
    curves = build_curves(reader.curves)
    report.curves = None if curves is None else _curve_data(curves)
    report.overhead = _overhead(reader.summaries)
    report.notes = _notes(reader, curves)
    return report


def _read(source: PerfDocument | Iterable[NodeDocument]) -> _Reader:
    reader = _Reader()
    if isinstance(source, PerfDocument):
        for index in sorted(source.nodes):
            reader.add(index, source.nodes[index])
    else:
        for number, node in enumerate(source):
            index = node.node.get("index", number)
            reader.add(index if isinstance(index, int) else number, node)
    return reader


def _first(texts: Iterable[str]) -> str:
    return next((text for text in texts if text), "")


def _extras(source: Any, reader: _Reader) -> list[Mapping[str, Any]]:
    whole = source.extra if isinstance(source, PerfDocument) else {}
    return [whole] if whole.get("bottleneck") else reader.extras


def _overhead(summaries: list[dict[str, float]]) -> str:
    costs = [s["perf_overhead_pct"] for s in summaries if "perf_overhead_pct" in s]
    return quantity(max(costs), "%") if costs else ""


def _curve_data(curves: Curves) -> dict[str, Any]:
    """Return the curves as the page's script takes them."""
    return {
        "started": curves.started,
        "x": curves.x,
        "nodes": curves.nodes,
        "charts": [chart for spec in curves.charts if (chart := _chart_data(spec, curves))],
        "values": curves.values,
        "spread": curves.spread,
    }


def _chart_data(chart: Chart, curves: Curves) -> dict[str, Any] | None:
    drawn = [
        {"key": curve.column, "label": curve.label, "role": curve.role}
        for curve in chart.curves
        if curve.column in curves.values or curve.column in curves.spread
    ]
    if not any(curve["role"] == "line" for curve in drawn):
        return None
    parts = ("name", "title", "unit", "meaning", "top")
    minor = chart.minor or not any(_moves(curve["key"], curves) for curve in drawn)
    return {**{part: getattr(chart, part) for part in parts}, "minor": minor, "curves": drawn}


def _moves(key: str, curves: Curves) -> bool:
    """Return whether a curve is anywhere above 0."""
    if key in curves.spread:
        return True
    return any(any(one) for one in curves.values[key] if one is not None)


def _notes(reader: _Reader, curves: Curves | None) -> list[str]:
    notes = []
    if not reader.summaries:
        notes.append("No performance data has been reported so far.")
    elif curves is None:
        notes.append("There are no curves: the nodes sent their figures without reports.")
    running = sum(fact["status"] == "RUNNING" for fact in reader.facts)
    if running:
        notes.append(f"{running} of {len(reader.facts)} nodes had not ended: figures so far.")
    silent = sum(c is None for c in reader.curves)
    if curves is not None and silent:
        notes.append(f"{silent} of {len(reader.curves)} nodes have no curves.")
    if len(reader.facts) > FEW_NODES:
        notes.append(_MANY)
    return notes


_MANY = (
    "With this many nodes the curves show the distribution over the nodes, and each cell of a "
    "heat map the highest value of one node in one interval: no peak is left out."
)
