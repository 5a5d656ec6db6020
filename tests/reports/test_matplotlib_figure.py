"""A document as a matplotlib figure, and as a notebook's cell."""

from __future__ import annotations

import builtins
import html
import re
from typing import Any

import pytest
from tests.reports import html_samples as samples

from mlflow_perf.errors import DocumentError, MissingDependencyError
from mlflow_perf.model.document import NodeDocument, PerfDocument
from mlflow_perf.reports.html import render
from mlflow_perf.reports.matplotlib_figure import plot
from mlflow_perf.reports.notebook import show


@pytest.mark.parametrize(("nodes", "lines"), [(1, 1), (3, 3), (10, 2)])
def test_each_chart_has_its_lines(nodes: int, lines: int) -> None:
    """One line per node, or median and highest of many; the folded charts only when asked for."""
    pytest.importorskip("matplotlib")
    document = samples.document(nodes, rows=30)
    figure = plot(document)
    shown = [axis for axis in figure.axes if axis.get_visible()]
    titles = [axis.get_title(loc="left") for axis in shown]
    assert titles[:2] == ["CPUs: job, others, idle", "Job's memory"]
    assert "Loopback" not in titles
    assert len(shown[titles.index("Node's CPUs")].get_lines()) == lines
    more = [a.get_title(loc="left") for a in plot(document, minor=True).axes if a.get_visible()]
    assert "Loopback" in more


def test_nothing_to_plot_is_said() -> None:
    """A document without reports is refused in a sentence."""
    pytest.importorskip("matplotlib")
    with pytest.raises(DocumentError, match="nothing to plot"):
        plot(PerfDocument({0: NodeDocument(summary={"duration_sec": 1.0})}))


def test_without_matplotlib_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where matplotlib is missing the error says how to get it."""
    real = builtins.__import__

    def without(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.startswith("matplotlib"):
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(MissingDependencyError, match="pip install"):
        plot(samples.document(1, rows=3))


def test_a_cell_holds_the_whole_report() -> None:
    """The frame's source is the page itself, escaped, whatever names it holds."""
    document = samples.hostile_document()
    found = re.fullmatch(r'<iframe [^>]*?srcdoc="([^"]*)"[^>]*></iframe>', show(document))
    assert found is not None
    assert html.unescape(found[1]) == render(document)


def test_the_figure_says_what_it_shows() -> None:
    """Title, units and times are on it, and the limit where it is near the curves."""
    pytest.importorskip("matplotlib")
    figure = plot(samples.document(1, rows=300))
    assert figure.get_suptitle() == "train, 2025-11-20 12:00:00 UTC, 4 min 59 s, 1 node"
    shown = [axis for axis in figure.axes if axis.get_visible()]
    assert {axis.get_xlabel() for axis in shown} == {"time, min"}
    assert all(axis.get_ylabel() for axis in shown)
    assert "limit" in shown[0].get_legend_handles_labels()[1]
