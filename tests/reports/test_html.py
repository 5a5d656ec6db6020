"""What a report shows, as data, and that rendering it keeps to the rules."""

from __future__ import annotations

import base64
import json
import re
from pathlib import Path

import html_samples as samples
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlflow_perf.core.format import clock_time, cpu_time, duration, number, quantity
from mlflow_perf.model.document import NodeDocument, PerfDocument
from mlflow_perf.model.metrics import metric_for
from mlflow_perf.reports import html
from mlflow_perf.reports.charts import charts_for
from mlflow_perf.reports.comparison_page import build_comparison_page
from mlflow_perf.reports.curves import FEW_NODES, NodeCurves, build_curves
from mlflow_perf.reports.html import render, render_comparison
from mlflow_perf.reports.operation_rows import MOST_ROWS, operation_rows
from mlflow_perf.reports.run_page import build_run_page
from mlflow_perf.reports.workflow_page import build_workflow_page

ASSETS = Path(html.__file__).parent / "templates"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 ms"),
        (0.0421, "42.1 ms"),
        (12.34, "12.3 s"),
        (59.99, "1 min"),
        (245, "4 min 05 s"),
        (3600, "1 h"),
        (7620, "2 h 07 min"),
        (300_000, "3 d 11 h"),
        (None, "–"),
        (float("nan"), "–"),
    ],
)
def test_durations_read_well(seconds: float | None, text: str) -> None:
    """A length of time stands in the unit that suits it."""
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (1536.0, "MB", "1.5 GB"),
        (3 * 1024.0**2, "MB", "3 TB"),
        (12.0, "MB", "12 MB"),
        (0.25, "MB", "256 kB"),
        (41.234, "%", "41.2%"),
        (5, "", "5"),
        (250, "ms", "250 ms"),
        (1234567, "", "1\u202f234\u202f567"),
        (float("inf"), "MB", "–"),
    ],
)
def test_quantities_take_the_unit_that_suits_them(value: float, unit: str, text: str) -> None:
    """A figure is shown with three digits and its unit."""
    assert quantity(value, unit) == text


def test_a_short_job_uses_cpu_seconds() -> None:
    """CPU time below a tenth of an hour is told in CPU-seconds."""
    assert cpu_time(0.0) == "0 CPU s"
    assert cpu_time(0.01) == "36 CPU s"
    assert cpu_time(0.00998 / 3600, whole=0.01) == "0.01 CPU s"
    assert cpu_time(2.06) == "2.06 CPU h"


@given(st.floats())
def test_any_number_has_a_text(value: float) -> None:
    """No number, however odd, breaks a figure."""
    assert number(value)
    assert clock_time(value)


def test_unknown_columns_get_charts_of_their_own() -> None:
    """A user's reader's column is drawn; a peak column is not taken for one."""
    charts = charts_for(["cpu_pct_per_cpu_avg", "queue_length", "queue_length_max", "timestamp"])
    assert [chart.title for chart in charts] == ["CPU", "queue_length"]


def _curves(nodes: int, rows: int) -> list[NodeCurves | None]:
    document = samples.document(nodes, rows=rows)
    return [NodeCurves.of(index, node) for index, node in document.nodes.items()]


def test_one_node_is_drawn_as_it_was_reported() -> None:
    """Of one node every report is a point, and a counter becomes a rate."""
    document = samples.document(1, rows=100)
    curves = build_curves([NodeCurves.of(0, document.nodes[0])])
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
        NodeDocument(started=0.0, reports={"elapsed_sec": list(range(len(c))), "mem_percent": c})
        for c in columns
    ]
    curves = build_curves([NodeCurves.of(i, node) for i, node in enumerate(nodes)])
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
    """Nodes that started at different times stand where they were in the run."""
    document = samples.document(2, rows=50)
    document.nodes[1].started = (document.nodes[1].started or 0.0) + 50
    curves = build_curves([NodeCurves.of(i, n) for i, n in document.nodes.items()])
    assert curves is not None
    first, second = curves.values["mem_percent"]
    assert first is not None
    assert second is not None
    half = len(curves.x) // 2
    assert all(v is None for v in second[: half - 2])
    assert all(v is None for v in first[half + 2 :])


def test_a_page_of_one_node_is_small() -> None:
    """One node of a thousand reports makes less than 400 kB."""
    assert len(render(samples.document(1, rows=1000)).encode()) < 400_000


def test_operations_are_summed_over_nodes_and_bounded() -> None:
    """Counts and totals add up, percentiles are the highest node's, and the table has an end."""
    one = {"fit": {"count": 2, "total_ms": 10.0, "p95_ms": 7.0, "min_ms": 3.0}}
    two = {"fit": {"count": 3, "total_ms": 20.0, "p95_ms": 9.0, "min_ms": 4.0}}
    row = operation_rows([one, two])["rows"][0]
    assert (row["count"], row["total"], row["avg"]) == ("5", "30 ms", "6 ms")
    assert row["figures"] == ["9 ms", "3 ms"]
    many = {f"op{i}": {"count": 1, "total_ms": float(i)} for i in range(100_000)}
    table = operation_rows([many])
    assert len(table["rows"]) == MOST_ROWS
    assert table["left_out"] == 100_000 - MOST_ROWS
    assert table["rows"][0]["name"] == "op99999"


def test_operations_come_from_the_summary_too() -> None:
    """The metrics ops/… and the block `times` of a document fill the same table."""
    node = NodeDocument(
        summary={"ops/load/p50_ms": 4.0, "ops/a/b/avg_ms": 2.0, "ops/n/count": 3.0},
        operations={"times": {"load": {"count": 1, "total_ms": 4.0}}, "counters": {"rows": 7}},
    )
    report = build_run_page(PerfDocument({0: node}))
    assert {row["name"] for row in report.operations["rows"]} == {"load", "a/b"}
    assert report.counters == [("n", "3"), ("rows", "7")]


def test_a_counter_beyond_floats_does_not_cost_the_report() -> None:
    """A whole number is a sum of any size; what cannot be drawn is left out."""
    node = NodeDocument(operations={"counters": {"rows": 7, "huge": 10**400, "deep": -(10**400)}})
    assert build_run_page(PerfDocument({0: node})).counters == [("rows", "7")]


def test_the_headline_says_what_there_is() -> None:
    """Headline figures, verdict, overhead and meanings come from the document and the table."""
    report = build_run_page(samples.document(2, rows=60))
    labels = [tile.label for tile in report.tiles]
    assert labels[:4] == ["Duration", "CPU busy", "CPU unused", "Memory peak"]
    assert report.verdict["bottleneck"] == "cpu"
    assert report.overhead == "0.041%"
    row = metric_for("run_duration_sec")
    assert row is not None
    assert report.tiles[0].meaning == row.meaning


def test_what_is_missing_is_said() -> None:
    """An empty document, a node without reports and one that still runs each get their sentence."""
    assert "No performance data" in build_run_page(PerfDocument({})).notes[0]
    silent = NodeDocument(summary={"duration_sec": 1.0}, status="RUNNING")
    notes = " ".join(build_run_page(PerfDocument({0: silent})).notes)
    assert "without reports" in notes
    assert "had not ended" in notes


def test_nodes_may_come_one_by_one() -> None:
    """An iterator of nodes gives the same page as the document that holds them."""
    document = samples.document(3, rows=20)
    assert render(document) == render(document.nodes[i] for i in range(3))


def test_the_gantt_places_bars_in_time() -> None:
    """A bar stands where its step ran, with its waiting before it, whatever is missing."""
    flow = build_workflow_page(samples.WORKFLOW)
    train = next(bar for bar in flow.bars if bar.label == "train")
    assert train.left == pytest.approx(100 * 220 / 900, abs=0.01)
    assert train.width == pytest.approx(100 * 480 / 900, abs=0.01)
    assert train.waited == pytest.approx(100 * 30 / 900, abs=0.01)
    assert len(train.nodes) == 4
    assert flow.status == "FAILED"
    assert build_workflow_page({}).bars == []
    assert build_workflow_page({"steps": [{"name": "x"}, "odd"]}).bars[0].width == 0.0


@given(st.lists(st.tuples(st.floats(0, 1e9), st.floats(0, 1e6), st.floats(0, 1e6)), max_size=6))
def test_bars_stay_on_the_axis(steps: list[tuple[float, float, float]]) -> None:
    """No bar begins before the axis or ends after it."""
    data = [
        {"name": str(i), "started": s, "duration_sec": d, "waited_sec": w}
        for i, (s, d, w) in enumerate(steps)
    ]
    flow = build_workflow_page({"steps": data})
    for bar in flow.bars:
        assert bar.left - bar.waited >= 0
        assert bar.left + bar.width <= 100.01
    assert all(0 <= place <= 100 for place, _ in flow.ticks)


def test_a_comparison_counts_what_changed() -> None:
    """The tally, the texts and the signs come from the rows; a missing value has no change."""
    page = build_comparison_page(samples.COMPARISON)
    assert (page.better, page.worse) == (1, 1)
    assert page.groups[0].rows[0].texts == ["10 min", "8 min"]
    assert page.groups[0].rows[0].change == "-20.0%"
    assert page.groups[1].rows[1].texts == ["0 MB", "–"]
    assert page.groups[1].rows[1].change == "–"


@given(st.text(max_size=40))
@settings(max_examples=60, deadline=None)
def test_any_text_survives(text: str) -> None:
    """Whatever a name holds, the page's structure and its data stay whole."""
    node = NodeDocument(
        node={"hostname": text},
        component=text,
        summary={"duration_sec": 1.0},
        reports={"elapsed_sec": [0.0, 1.0], f"x{text}": [1.0, 2.0]},
        operations={text: {"count": 1, "total_ms": 1.0}},
        extra={"bottleneck": text, "advice": text},
    )
    page = render(PerfDocument({0: node}))
    assert page.count("<script") == page.count("</script>") == 3
    found = re.search(r'<script type="application/json" id="curves">(.*?)</script>', page, re.S)
    assert found is not None
    assert f"x{text}" in json.loads(found[1])["values"]
    compared = render_comparison({"runs": [text, text], "notes": [text]})
    assert compared.count("<script") == 1


def test_assets_cannot_end_their_element() -> None:
    """No script or style sheet of ours holds what would end the element that it stands in."""
    for path in [*ASSETS.rglob("*.js"), *ASSETS.rglob("*.css")]:
        text = path.read_text(encoding="utf-8").lower()
        assert "</script" not in text, path
        assert "</style" not in text, path
        assert "<!--" not in text, path


def test_the_page_names_no_address() -> None:
    """Nothing in the page is loaded from anywhere, and its policy forbids it besides."""
    page = render(samples.document(1, rows=10))
    assert not re.search(
        r'(?:src|href|action)\s*=\s*["\']?(?!data:)[a-z/]', page.split("<script")[0]
    )
    assert "default-src 'none'" in page
    assert "'unsafe-eval'" not in page
    assert page.index('<meta charset="utf-8">') < 200


def test_no_nan_reaches_the_page() -> None:
    """A value that is missing or not finite becomes a gap, in strict JSON."""
    node = NodeDocument(
        reports={
            "elapsed_sec": [0.0, None, 2.0],
            "mem_percent": [float("nan"), 5.0, None],
            "disk_io_read_mb": [0.0, 0.0, float("inf")],
        }
    )
    page = render(PerfDocument({0: node}))
    assert "NaN" not in page.split('id="curves">')[1].split("</script>")[0]


SVG = '<svg viewBox="0 0 10 10"><text>a&amp;b</text><script>alert(1)</script></svg>'


def _images(page: str) -> list[str]:
    found = re.findall(r'<img src="data:image/svg\+xml;base64,([^"]+)"', page)
    return [base64.b64decode(data).decode() for data in found]


def test_pictures_stand_as_images() -> None:
    """A picture is the data of an image, never markup of the page."""
    page = render(samples.document(1, rows=5), pictures={samples.HOSTILE: SVG})
    assert _images(page) == [SVG.replace("<svg", '<svg xmlns="http://www.w3.org/2000/svg"')]
    assert "<script>alert" not in page
    assert samples.HOSTILE not in page
    assert "<img src=" not in render(samples.document(1, rows=5))


def test_a_picture_that_is_too_large_is_named() -> None:
    """The page stays small whatever a picture holds, and says what is not there."""
    svg = f"<svg>{'x' * 400_000}</svg>"
    page = render(samples.document(1, rows=5), pictures={"Huge": svg, "Small": SVG})
    assert len(_images(page)) == 1
    assert "The picture “Huge” is left out" in page


def test_the_gpus_of_all_nodes_are_weighted_by_their_hours() -> None:
    """The headline says what the metric and the table of runs say: eight GPUs count as eight."""
    nodes = {
        i: NodeDocument(
            {"index": i},
            summary={
                "duration_sec": 3600.0,
                "gpu_avg_utilization_pct": busy,
                "node_gpu_hours": hours,
                "node_unused_gpu_hours": hours * (1 - busy / 100.0),
            },
        )
        for i, (busy, hours) in enumerate([(90.0, 8.0), (0.0, 1.0)])
    }
    document = PerfDocument(nodes)
    tiles = {tile.label: tile.value for tile in build_run_page(document).tiles}
    assert document.run_summary["run_gpu_avg_utilization_pct"] == pytest.approx(80.0)
    assert tiles["GPU busy"] == "80%"


def test_any_text_can_be_written() -> None:
    """Half a surrogate pair, as of a file's name that is no UTF-8, keeps no page from its file."""
    node = NodeDocument(component="a\udc80", operations={"attributes": {"file": "b\udc81"}})
    assert "a?" in render(PerfDocument({0: node})).encode("utf-8").decode()
