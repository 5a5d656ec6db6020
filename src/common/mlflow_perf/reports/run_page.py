"""The report of a run's nodes as plain data.

Nodes are read one by one and only what the page shows is kept of each, so that a run of a thousand
nodes need not be in memory at once.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from mlflow_perf.analysis.findings import Finding, findings_of, merge_findings
from mlflow_perf.analysis.slow_nodes import find_slow_nodes, read_durations
from mlflow_perf.core.format import clock_time, format_count, join_some, quantity
from mlflow_perf.core.format import duration as format_duration
from mlflow_perf.errors import DocumentError
from mlflow_perf.model.bounds import Bounds
from mlflow_perf.model.document import NodeDocument, PerfDocument, worst_status
from mlflow_perf.model.summary import summarise_run
from mlflow_perf.recorders.steps import StepMetrics
from mlflow_perf.reports import operation_rows
from mlflow_perf.reports.asked_view import AskedView, build_asked_view
from mlflow_perf.reports.curves import FEW_NODES, Curves, NodeCurves, build_curves
from mlflow_perf.reports.flame import FlameReader
from mlflow_perf.reports.pictures import Picture
from mlflow_perf.reports.step_rows import LoopView, build_loop_views
from mlflow_perf.reports.tables import (
    FindingRow,
    Tile,
    build_finding_rows,
    build_metric_rows,
    build_node_table,
    build_tiles,
    can_be_judged,
    choose_verdict,
    list_facts,
)
from mlflow_perf.tracking.perf_run import PerfRun

_MOST_FACTS = 8
_MUCH_PCT = 5.0
_MOST_ADVISED = 64
_MANY = (
    "With this many nodes the curves show the distribution over the nodes, and each cell of a "
    "heat map the highest value of one node in one interval: no peak is left out."
)


@dataclass
class RunPage:
    """The content of a run's page.

    Attributes:
        title: Heading: the component's name unless another was given.
        status: `FINISHED`, `FAILED`, `KILLED`, `RUNNING`, or empty if unknown.
        run_id: MLflow run, or empty.
        started: When the first node started, as text.
        tiles: Headline figures.
        verdict: `bottleneck` and `advice` of the first finding, if they are known.
        findings: What the job's time went into, the most of it first.
        nodes: Table of the nodes: `columns` and `rows`.
        operations: Table of the operations: `columns`, `rows` and `left_out`.
        loops: The loops of steps, the longest first.
        counters: Counter and its sum over the nodes, as texts.
        transfers: Transfers with their figures.
        facts: Of up to eight nodes: label of the node and its known facts.
        metrics: Table of all metrics.
        curves: The charts as data for the page's script; None without reports.
        flame: The tree of functions for the flame graph; None without a profile.
        overhead: Our own cost, as text; empty if unknown.
        notes: What is missing from the report, one sentence each.
        pictures: Ready-made pictures, such as those of the workflow's spans.
        others: The further components that reported to the same run, without charts of their own.
        name: The run's name in MLflow, where it is not the title; empty without one.
        params: The run's parameters.
        asked: What to ask for next time; None where that is unknown.
        slow_nodes: Indexes of the nodes that took much longer than the others.
    """

    title: str
    status: str = ""
    run_id: str = ""
    started: str = ""
    tiles: list[Tile] = field(default_factory=list)
    verdict: dict[str, str] = field(default_factory=dict)
    findings: list[FindingRow] = field(default_factory=list)
    nodes: dict[str, Any] = field(default_factory=dict)
    operations: dict[str, Any] = field(default_factory=dict)
    loops: list[LoopView] = field(default_factory=list)
    counters: list[tuple[str, str]] = field(default_factory=list)
    transfers: list[dict[str, Any]] = field(default_factory=list)
    facts: list[tuple[str, list[tuple[str, str]]]] = field(default_factory=list)
    metrics: list[dict[str, Any]] = field(default_factory=list)
    curves: dict[str, Any] | None = None
    flame: dict[str, Any] | None = None
    overhead: str = ""
    notes: list[str] = field(default_factory=list)
    pictures: list[Picture] = field(default_factory=list)
    others: list[RunPage] = field(default_factory=list)
    name: str = ""
    params: list[tuple[str, str]] = field(default_factory=list)
    asked: AskedView | None = None
    slow_nodes: list[int] = field(default_factory=list)


class _Reader:
    """Takes the nodes one by one and keeps of each what the page shows."""

    def __init__(self) -> None:
        self.curves: list[NodeCurves | None] = []
        self.summaries: list[dict[str, float]] = []
        self.facts: list[dict[str, Any]] = []
        self.details: list[tuple[str, list[tuple[str, str]]]] = []
        self.extras: list[Mapping[str, Any]] = []
        self.findings: dict[int, list[Finding]] = {}
        self.operations: list[operation_rows.Figures] = []
        self.transfers: list[operation_rows.Figures] = []
        self.counters: dict[str, float] = {}
        self.steps = StepMetrics()
        self.component = ""
        self.run_id = ""
        self.starts: list[float] = []
        self.flame = FlameReader()
        self.places = operation_rows.Places()
        self.slim: dict[int, NodeDocument] = {}
        self.durations: dict[int, float] = {}
        self.longest_sec = 0.0
        self.is_cut_off = False

    def add(self, index: int, node: NodeDocument) -> None:
        """Keep the data of a node that the page shows."""
        self.curves.append(NodeCurves.from_document(index, node))
        timed = operation_rows.read_figures(node, "ops")
        self.operations.append(timed)
        self.places.add(node)
        self.durations |= read_durations([(index, node)])
        self.longest_sec = max(self.longest_sec, node.duration_sec or 0.0)
        self.is_cut_off = self.is_cut_off or node.is_cut_off
        if len(self.slim) < _MOST_ADVISED:
            extra = {k: v for k, v in node.extra.items() if k not in ("profile", "phases")}
            self.slim[index] = replace(node, reports={}, operations={}, extra=extra)
        self.transfers.append(operation_rows.read_figures(node, "transfers"))
        for name, value in operation_rows.read_counters(node, timed).items():
            self.counters[name] = self.counters.get(name, 0.0) + value
        self.summaries.append({k: v for k, v in node.summary.items() if not k.startswith("ops/")})
        with contextlib.suppress(DocumentError):  # of a later version, or damaged
            self.steps.merge(StepMetrics.from_dict(node.steps))
        host = str(node.node.get("hostname") or "")
        self.facts.append({"index": index, "hostname": host, "status": node.status or ""})
        if len(self.details) < _MOST_FACTS:
            self.details.append((f"Node {index}", list_facts(node)))
        if can_be_judged(node):
            self.findings[index] = findings_of(node)
        self.extras.append({k: node.extra.get(k) for k in ("bottleneck", "advice")})
        self.component = self.component or node.component or ""
        self.run_id = self.run_id or node.run_id or ""
        if node.started is not None:
            self.starts.append(node.started)
        self.flame.add(node, min(self.starts, default=0.0))


def build_run_page(
    source: PerfDocument | Iterable[NodeDocument],
    *,
    title: str | None = None,
    run: PerfRun | None = None,
) -> RunPage:
    """Return the page of a run.

    Args:
        source: The document, or its nodes one after another.
        title: Heading; default: the component's name.
        run: What MLflow knows of the run: its name and parameters.
    """
    whole = source.extra if isinstance(source, PerfDocument) else {}
    readers: dict[str, _Reader] = {}
    first = ""
    bounds = Bounds()
    for index, node in _number_nodes(source, bounds):
        # The first node's component has the page, and each other one a section of it.
        first = first or node.component or ""
        readers.setdefault(node.component or first, _Reader()).add(index, node)
    reader, *others = readers.values() or [_Reader()]
    # Components side by side, as of a heterogeneous job: each has nodes of its own.
    taken = {fact["index"] for fact in reader.facts}
    beside: list[NodeCurves] = []
    whose: list[str] = []
    for other in others:
        added = [c for c in other.curves if c is not None and c.index not in taken]
        taken |= {curves.index for curves in added}
        beside += added
        names = join_some(curves.index for curves in added)
        whose += [f"The curves of node {names} are of {other.component}."] if added else []
    page = _make_page(reader, whole, title, beside)
    page.notes += whose
    if run is not None:
        page.name = run.name if run.name and run.name != page.title else ""
        page.params = sorted(run.params.items())
    if len(reader.facts) <= _MOST_ADVISED:
        page.asked = build_asked_view(reader.slim, run)
    page.others = [_make_page(other, {}, None) for other in others]
    page.notes += bounds.list_left_out()
    return page


def _number_nodes(
    source: PerfDocument | Iterable[NodeDocument], bounds: Bounds
) -> Iterator[tuple[int, NodeDocument]]:
    """Yield the nodes with their indexes; those of further components come last."""
    if isinstance(source, PerfDocument):
        for document in (source, *(source.components[name] for name in sorted(source.components))):
            order = sorted(document.nodes)
            yield from zip(order, bounds.bound(document.nodes[i] for i in order), strict=False)
        return
    for number, node in enumerate(bounds.bound(source)):
        index = node.node.get("index", number)
        yield index if isinstance(index, int) else number, node


def _describe_cost(summaries: Iterable[Mapping[str, float]]) -> str:
    """Return what the measuring cost on the node where it cost most; in seconds, too, where much.

    Importing MLflow takes seconds of CPU time: that is much of a short run.
    """
    costs = [s for s in summaries if "perf_overhead_pct" in s]
    if not costs:
        return ""
    most = max(costs, key=lambda s: s["perf_overhead_pct"])
    share, seconds = most["perf_overhead_pct"], most.get("duration_sec")
    text = f"{quantity(share, '%')} of one core"
    if seconds is None or share < _MUCH_PCT:
        return text
    spent = format_duration(share / 100 * seconds)
    return f"{spent} of CPU time, MLflow's import included, which is {text}"


def _make_page(
    reader: _Reader,
    whole: Mapping[str, Any],
    title: str | None,
    beside: Sequence[NodeCurves] = (),
) -> RunPage:
    curves = build_curves([*reader.curves, *beside])
    loops = reader.steps.records()
    durations = reader.durations
    findings = merge_findings(reader.findings, loops, durations) if reader.findings else []
    extras = [whole] if whole.get("bottleneck") else reader.extras
    verdict = choose_verdict(findings, extras)
    is_judged = bool(findings) and verdict.get("bottleneck") == findings[0].bottleneck
    return RunPage(
        title or reader.component or "Performance report",
        status=worst_status(fact["status"] for fact in reader.facts),
        run_id=reader.run_id,
        started=clock_time(min(reader.starts)) if reader.starts else "",
        tiles=build_tiles(
            reader.summaries,
            summarise_run(reader.summaries),
            is_cut_off=reader.is_cut_off,
        ),
        verdict={**verdict, "bottleneck": findings[0].word} if is_judged else verdict,
        findings=build_finding_rows(findings),
        nodes=build_node_table(reader.facts, reader.summaries),
        operations=operation_rows.build_operation_table(
            reader.operations,
            reader.places,
            started=min(reader.starts, default=0.0),
            duration_sec=reader.longest_sec,
        ),
        slow_nodes=find_slow_nodes(durations),
        loops=build_loop_views(loops),
        counters=[(k, quantity(v, "")) for k, v in sorted(reader.counters.items())],
        transfers=operation_rows.build_transfers(reader.transfers),
        facts=[(label, facts) for label, facts in reader.details if facts],
        metrics=build_metric_rows(reader.summaries),
        curves=None if curves is None else _describe_curves(curves, reader.flame.phases),
        flame=reader.flame.build(),
        overhead=_describe_cost(reader.summaries),
        notes=list(_list_notes(reader, curves)),
    )


def _describe_curves(curves: Curves, phases: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the curves as the page's script reads them."""
    charts = []
    for chart in curves.charts:
        drawn = [
            {"key": curve.column, "label": curve.label, "role": curve.role}
            for curve in chart.curves
            if curve.column in curves.values or curve.column in curves.spread
        ]
        if any(curve["role"] == "line" for curve in drawn):
            # A chart in which no curve is ever above 0 is folded away.
            moves = chart.stacked or any(
                key in curves.spread or any(any(one or ()) for one in curves.values[key])
                for key in (curve["key"] for curve in drawn if curve["role"] != "limit")
            )
            parts = ("name", "title", "unit", "meaning", "top", "stacked")
            data = {part: getattr(chart, part) for part in parts}
            charts.append({**data, "minor": chart.minor or not moves, "curves": drawn})
    return {
        "started": curves.started,
        "x": curves.x,
        "nodes": curves.nodes,
        "charts": charts,
        "values": curves.values,
        "spread": curves.spread,
        "phases": list(phases),
    }


def _list_notes(reader: _Reader, curves: Curves | None) -> Iterator[str]:
    count = len(reader.facts)
    if not reader.summaries:
        yield "No performance data has been reported so far."
    elif curves is None:
        yield "There are no curves: the nodes sent their figures without reports."
    running = sum(fact["status"] == "RUNNING" for fact in reader.facts)
    if running:
        yield f"{running} of {format_count(count, 'node')} had not ended: figures so far."
    silent = sum(node is None for node in reader.curves)
    if curves is not None and silent:
        yield f"{silent} of {format_count(count, 'node')} sent no curves."
    if count > FEW_NODES:
        yield _MANY
