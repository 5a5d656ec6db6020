"""Pages and tables as HTML for the cell of a notebook."""

from __future__ import annotations

from functools import singledispatch

from markupsafe import Markup, escape

from mlflow_perf.analysis.compare import Comparison
from mlflow_perf.analysis.sizing import Suggestion
from mlflow_perf.analysis.workflow import Workflow
from mlflow_perf.core.format import MISSING, duration, format_chance, format_count, quantity
from mlflow_perf.model.document import PerfDocument
from mlflow_perf.reports.compared_curves import read_nodes
from mlflow_perf.reports.html import render, render_comparison

_HEIGHT_PX = 620


@singledispatch
def show(thing: object) -> str:
    """Return a document, comparison, workflow or suggestion as HTML for a notebook's cell.

    Raises:
        TypeError: When it is none of these.
    """
    raise TypeError(f"A {type(thing).__name__} has no page.")


@show.register
def _(document: PerfDocument) -> str:
    return _frame(render(document), "Performance report")


@show.register
def _(comparison: Comparison) -> str:
    nodes = read_nodes(comparison.steps)
    return _frame(render_comparison(comparison.as_dict(), nodes=nodes), "Comparison of runs")


@show.register
def _(workflow: Workflow) -> str:
    page = render(PerfDocument(), title=workflow.name, workflow=workflow.as_dict())
    return _frame(page, "Workflow")


@show.register
def _(suggestion: Suggestion) -> str:
    rows = {
        "Memory": quantity(suggestion.memory_mb, "MB"),
        "Time": duration(suggestion.duration_sec),
        "Chance that it fits": MISSING if suggestion.is_guess else format_chance(suggestion.p_fit),
        "Learned from": format_count(suggestion.runs, "run"),
        "How": suggestion.method,
    }
    if suggestion.predictor:
        rows["Predicted by"] = suggestion.predictor
    line = Markup('<tr><th style="text-align:left">{}</th><td style="text-align:left">{}</td></tr>')
    return f"<table>{''.join(line.format(name, text) for name, text in rows.items())}</table>"


def _frame(page: str, title: str) -> str:
    """Return a page in a frame of its own, so that its style stays its own."""
    return (
        f'<iframe sandbox="allow-scripts allow-downloads" srcdoc="{escape(page)}" '
        f'style="width:100%;height:{_HEIGHT_PX}px;border:0" title="{title}"></iframe>'
    )
