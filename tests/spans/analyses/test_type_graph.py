"""The graph of span types."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from mlflow_perf import spans
from mlflow_perf.errors import SpansError


def test_the_graph_counts_relations(real: Path) -> None:
    """Each relation between two types once, with its kind and number."""
    graph = spans.type_graph(real)
    relations = {(r["from"], r["to"], r["kind"]): r["count"] for r in graph["relations"]}
    assert relations["parsl.monitoring.workflow", "parsl.monitoring.task", "subspan"] == 13
    assert relations["parsl.monitoring.task", "parsl.rundir.task", "facet"] == 13
    assert {t["type"] for t in graph["types"]} >= {
        "parsl.monitoring.block",
        "parsl.monitoring.node",
    }


def test_graphviz_draws_the_graph(hostile: Path, tmp_path: Path) -> None:
    """Names of any kind are names in the picture, and nothing else."""
    if shutil.which("dot") is None:
        pytest.skip("Graphviz is not installed")
    picture = spans.draw_graph(hostile, tmp_path / "graph.svg").read_text("utf-8")
    assert "&lt;img onerror=1&gt;" in picture
    assert "<img" not in picture
    dot = spans.draw_graph(hostile, tmp_path / "graph.dot").read_text("utf-8")
    assert dot.count("->") == 1


def test_a_graph_needs_a_known_ending(real: Path, tmp_path: Path, monkeypatch: Any) -> None:
    """Another ending, or no Graphviz, is one sentence."""
    with pytest.raises(SpansError, match="must end in"):
        spans.draw_graph(real, tmp_path / "graph.gif")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SpansError, match="graphviz"):
        spans.draw_graph(real, tmp_path / "graph.png")
