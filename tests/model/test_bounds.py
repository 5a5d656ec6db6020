"""What a page reads of its documents is bounded, and the page says what was left out."""

from __future__ import annotations

import pytest

from mlflow_perf.model import bounds
from mlflow_perf.model.bounds import Bounds
from mlflow_perf.model.document import NodeDocument, PerfDocument
from mlflow_perf.reports.html import build_context, render


def make_node(count: int) -> NodeDocument:
    """Return a node with so many of everything that has a name."""
    names = [f"n{i}" for i in range(count)]
    numbers = dict.fromkeys(names, 1.0)
    return NodeDocument(
        {"index": 0, **numbers},
        "job",
        summary=numbers,
        reports={name: [1.0, 2.0] for name in names},
        operations={"counters": numbers, "times": {name: {"count": 1} for name in names}},
        transfers={name: {"num_successful": 1} for name in names},
        steps={name: {} for name in names},
    )


def test_a_usual_document_is_not_cut() -> None:
    """Nothing is left out, and nothing said, of as much as a recorder writes."""
    some = Bounds()
    node = make_node(90)
    assert list(some.bound([node])) == [node]
    assert some.list_left_out() == []


def test_a_page_of_a_million_figures_is_bounded() -> None:
    """A document of a million figures makes a page of a few megabytes, which says what lacks."""
    node = NodeDocument(summary={f"k{i}": 1.0 for i in range(1_000_000)})
    page = render(PerfDocument({0: node}))
    assert len(page) < 5_000_000
    assert "975,000 figures left out" in page


def test_each_part_is_cut_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures, facts, columns, operations, transfers and loops have each their bound."""
    for name in [name for name in vars(bounds) if name.startswith("_MOST_")]:
        monkeypatch.setattr(bounds, name, 10)
    report = build_context([make_node(30)])["report"]
    (note,) = [text for text in report.notes if "left out" in text]
    for part in ("21 facts", "20 figures", "20 columns", "40 operations", "20 transfers"):
        assert part in note
    assert "20 loops" in note
    assert max(map(len, (report.counters, report.transfers, report.metrics))) <= 10


def test_a_page_reads_so_many_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nodes beyond the bound are counted, each component of a file with many of them included."""
    monkeypatch.setattr(bounds, "MOST_NODES", 3)
    nodes = {i: NodeDocument(component=f"c{i}", summary={"duration_sec": 1.0}) for i in range(9)}
    report = build_context(PerfDocument(nodes))["report"]
    assert len(report.others) == 2
    assert "6 nodes left out" in report.notes[-1]
