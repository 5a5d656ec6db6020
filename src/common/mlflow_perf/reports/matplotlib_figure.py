"""A document as a matplotlib figure."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from mlflow_perf.core.extras import needing
from mlflow_perf.core.format import clock_time, duration, format_count
from mlflow_perf.errors import DocumentError
from mlflow_perf.model.document import PerfDocument

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from mlflow_perf.reports.charts import Chart, Curve
    from mlflow_perf.reports.curves import Curves

_COLUMNS = 2
_WIDTH_IN, _ROW_IN = 10.0, 2.2
_MINUTE_SEC, _HOUR_SEC = 60.0, 3600.0
_FAR = 4.0


def plot(document: PerfDocument, *, minor: bool = False) -> Figure:
    """Return the curves of a document as a matplotlib figure, a chart per kind of resource.

    Up to eight nodes have a line each; of more, the median, the 10th to 90th percentile and the
    highest node are drawn.

    Args:
        document: The nodes.
        minor: Also draw the curves that the report folds, such as loopback traffic.

    Raises:
        MissingDependencyError: When matplotlib is not installed.
        DocumentError: When no node has reports.
    """
    with needing("matplotlib", "spans"):
        from matplotlib.figure import Figure
    from mlflow_perf.reports.curves import NodeCurves, build_curves

    nodes = (
        NodeCurves.from_document(index, node) for index, node in sorted(document.nodes.items())
    )
    curves = build_curves(nodes)
    if curves is None:
        raise DocumentError("There is nothing to plot: no node of the document has reports.")
    charts = [c for c in curves.charts if (minor or not c.minor) and _list_lines(c, curves)]
    rows = math.ceil(len(charts) / _COLUMNS)
    figure = Figure(figsize=(_WIDTH_IN, _ROW_IN * rows), layout="constrained")
    axes = figure.subplots(rows, _COLUMNS, squeeze=False, sharex=True).flatten()
    for axis, chart in zip(axes, charts, strict=False):
        _draw(axis, chart, curves)
    for axis in axes[len(charts) :]:
        axis.set_visible(False)
    ended = list(document.nodes.values())
    took = max((node.duration_sec or 0.0 for node in ended), default=0.0)
    started = min((n.started for n in ended if n.started is not None), default=None)
    parts = [
        next((node.component for node in ended if node.component), "") or "",
        clock_time(started, missing=""),
        duration(took) if took else "",
        format_count(len(ended), "node"),
    ]
    figure.suptitle(", ".join(part for part in parts if part), fontsize=11)
    return figure


def _list_lines(chart: Chart, curves: Curves) -> list[Curve]:
    return [
        curve
        for curve in chart.curves
        if curve.role == "line" and (curve.column in curves.values or curve.column in curves.spread)
    ]


def _draw(axis: Any, chart: Chart, curves: Curves) -> None:
    length_sec = float(curves.x[-1] or 0.0)
    scale, unit = 1.0, "s"
    if length_sec >= 3 * _MINUTE_SEC:
        scale, unit = (_MINUTE_SEC, "min") if length_sec < 3 * _HOUR_SEC else (_HOUR_SEC, "h")
    x = [(value or 0.0) / scale for value in curves.x]
    edges = {curve.role: curve.column for curve in chart.curves if curve.role != "line"}
    if len(curves.nodes) == 1 and edges:
        low = curves.values.get(edges.get("low", ""), [None])[0]
        high = curves.values.get(edges.get("high", ""), [None])[0]
        if low and high:
            axis.fill_between(x, _fill_gaps(low), _fill_gaps(high), alpha=0.2, linewidth=0)
    stacked = chart.stacked and len(curves.nodes) == 1
    if stacked:
        _draw_stack(axis, chart, curves, x)
    for curve in () if stacked else _list_lines(chart, curves):
        if curve.column in curves.spread:
            found = curves.spread[curve.column]
            spread = {edge: _fill_gaps(found[edge]) for edge in ("median", "low", "high", "max")}
            (line,) = axis.plot(x, spread["median"], label=f"{curve.label}: median", linewidth=1)
            look = {"color": line.get_color(), "linewidth": 0.6, "linestyle": "--"}
            axis.fill_between(
                x, spread["low"], spread["high"], color=look["color"], alpha=0.2, linewidth=0
            )
            axis.plot(x, spread["max"], label=f"{curve.label}: highest", **look)
            continue
        for node, values in zip(curves.nodes, curves.values[curve.column], strict=True):
            if values is not None:
                name = f"node {node}: {curve.label}" if len(curves.nodes) > 1 else curve.label
                axis.plot(x, _fill_gaps(values), label=name, linewidth=1)
    for curve in () if stacked else chart.curves:
        values = curves.values.get(curve.column, [None])[0] if curve.role == "limit" else None
        # The limit is drawn where it is near enough to leave the curves their shape.
        if values and max(_fill_gaps(values)) <= _FAR * axis.get_ylim()[1]:
            look = {"linewidth": 1, "linestyle": "--", "color": "tab:red"}
            axis.plot(x, _fill_gaps(values), label="limit", **look)
    axis.set_title(chart.title, loc="left", fontsize=10)
    axis.set_ylabel(chart.unit or "count")
    axis.set_xlabel(f"time, {unit}")
    axis.tick_params(labelbottom=True)
    axis.set_ylim(0, chart.top)
    axis.grid(visible=True, alpha=0.3)
    if axis.get_legend_handles_labels()[0]:
        axis.legend(fontsize=7, ncols=2)


def _draw_stack(axis: Any, chart: Chart, curves: Curves, x: list[float]) -> None:
    """Draw the curves of one node on top of each other, and their limit."""
    layers, limit = {}, None
    for curve in chart.curves:
        values = curves.values.get(curve.column, [None])[0]
        if values and curve.role == "limit":
            limit = _fill_gaps(values)
        elif values:
            layers[curve.label] = _fill_gaps(values)
    axis.stackplot(x, *layers.values(), labels=list(layers), alpha=0.5)
    if limit:
        axis.plot(x, limit, label="limit", linewidth=1, linestyle="--")


def _fill_gaps(values: list[float | None]) -> list[float]:
    return [math.nan if value is None else value for value in values]
