"""The curves of a job, from the reports of its nodes."""

from __future__ import annotations

import base64

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.reports import html_samples as samples

from mlflow_perf.model.document import NodeDocument
from mlflow_perf.reports.curves import FEW_NODES, NodeCurves, build_curves


def test_one_node_is_drawn_as_it_was_reported() -> None:
    """Of one node every report is a point, and a counter becomes a rate."""
    document = samples.document(1, rows=100)
    curves = build_curves([NodeCurves.from_document(0, document.nodes[0])])
    assert curves is not None
    assert len(curves.x) == 100
    (busy,) = curves.values["cpu_pct_per_cpu_avg"]
    assert busy == pytest.approx(document.nodes[0].reports["cpu_pct_per_cpu_avg"], abs=0.01)
    (read,) = curves.values["disk_io_read_mb"]
    assert read is not None
    total = document.nodes[0].summary["total_disk_io_read_mb"]
    assert sum(v or 0.0 for v in read[1:]) == pytest.approx(total, rel=1e-3)


@given(
    st.lists(
        st.lists(st.floats(0, 100, width=32), min_size=1, max_size=40),
        min_size=FEW_NODES + 1,
        max_size=FEW_NODES + 4,
    )
)
@settings(max_examples=30, deadline=None)
def test_no_peak_is_lost_of_many_nodes(columns: list[list[float]]) -> None:
    """The heat map's largest cell of each node is that node's largest value."""
    nodes = [
        NodeDocument(
            started=0.0,
            reports={"elapsed_sec": [float(i) for i in range(len(c))], "mem_percent": [*c]},
        )
        for c in columns
    ]
    curves = build_curves([NodeCurves.from_document(i, node) for i, node in enumerate(nodes)])
    assert curves is not None
    if not any(map(any, columns)):
        assert curves.spread == {}
        return
    spread = curves.spread["mem_percent"]
    cells = base64.b64decode(spread["cells"])
    width = len(curves.x)
    for row, column in enumerate(columns):
        known = [c for c in cells[row * width : (row + 1) * width] if c != 255]
        largest = max(known) / 254 * spread["scale"]
        assert largest == pytest.approx(max(column), abs=spread["scale"] / 254 + 1e-6)
    assert max(v for v in spread["max"] if v is not None) == pytest.approx(
        max(map(max, columns)), rel=2e-3, abs=1e-6
    )


def test_few_nodes_share_one_time_axis() -> None:
    """Nodes that started at different times are drawn at their times in the run."""
    document = samples.document(2, rows=50)
    document.nodes[1].started = (document.nodes[1].started or 0.0) + 50
    curves = build_curves([NodeCurves.from_document(i, n) for i, n in document.nodes.items()])
    assert curves is not None
    first, second = curves.values["mem_percent"]
    assert first is not None
    assert second is not None
    half = len(curves.x) // 2
    assert all(v is None for v in second[: half - 2])
    assert all(v is None for v in first[half + 2 :])


def test_others_and_idle_fill_the_jobs_limit() -> None:
    """Job, others and idle add up to the limit at every report; a document's own columns stay."""
    one = samples.node(rows=20)
    one.node["mem_total_mb"] = 64000.0
    curves = build_curves([NodeCurves.from_document(0, one)])
    assert curves is not None
    keys = ("job_cpu_cores", "others_cpu_cores", "idle_cpu_cores")
    parts = [curves.values[key][0] or [] for key in keys]
    assert [sum(v or 0.0 for v in at) for at in zip(*parts, strict=True)] == pytest.approx(
        [16.0] * 20, abs=0.1
    )
    assert "idle_mem_mb" in curves.values
    one.reports["others_cpu_cores"] = [3.0] * 20
    curves = build_curves([NodeCurves.from_document(0, one)])
    assert curves is not None
    assert curves.values["others_cpu_cores"] == [[3] * 20]


def test_the_last_fraction_of_an_interval_draws_no_false_drop() -> None:
    """A counter that did not move in the last millisecond was not idle: it has the whole's rate."""
    columns: dict[str, list[float | None]] = {
        "elapsed_sec": [0.0, 1.0, 2.0, 2.01],
        "cpu_stall_sec": [0.0, 1.0, 2.0, 2.0],
    }
    node = NodeDocument(started=0.0, duration_sec=2.01, reports=columns)
    curves = build_curves([NodeCurves.from_document(0, node)])
    assert curves is not None
    assert curves.values["cpu_stall_sec"] == [[100.0, 100.0, 100.0, pytest.approx(99.0, abs=0.1)]]
