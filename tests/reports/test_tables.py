"""The headline figures, tables and facts of a report."""

from __future__ import annotations

import pytest
from tests.reports import html_samples as samples

from mlflow_perf.model.document import NodeDocument, PerfDocument
from mlflow_perf.model.metrics import find_metric
from mlflow_perf.reports.run_page import build_run_page
from mlflow_perf.reports.tables import choose_verdict, list_facts


def test_the_headline_says_what_there_is() -> None:
    """Headline figures, verdict, overhead and meanings come from the document and the table."""
    report = build_run_page(samples.document(2, rows=60))
    labels = [tile.label for tile in report.tiles]
    assert labels[:4] == ["Duration", "Job's CPUs", "Unused by the job", "Job's memory"]
    assert report.verdict["bottleneck"] == report.findings[0].bottleneck
    assert report.overhead == "0.041% of one core"
    row = find_metric("run_duration_sec")
    assert row is not None
    assert report.tiles[0].meaning == row.meaning


def test_the_cost_of_measuring_a_short_run_is_in_seconds_too() -> None:
    """MLflow's import takes the same time in every run: a great share of a short one."""
    summary = {"duration_sec": 4.0, "perf_overhead_pct": 76.2}
    report = build_run_page(PerfDocument({0: NodeDocument(summary=summary)}))
    assert report.overhead.startswith("3.05 s of CPU time, MLflow's import included")
    assert "76.2% of one core" in report.overhead


def test_a_sleeping_job_beside_a_busy_neighbour_is_idle() -> None:
    """The headline has the job's own figures first, and names the others' as others'."""
    summary = {"duration_sec": 2.0, "cpu_limit_cores": 2.0, "cpu_avg_utilization_pct": 100.0,
               "job_cpu_avg_cores": 0.0, "job_cpu_hours": 0.0, "node_cpu_hours": 4 / 3600,
               "node_used_cpu_hours": 4 / 3600, "node_unused_cpu_hours": 0.0,
               "job_max_mem_mb": 29.0, "mem_limit_mb": 2048.0, "max_t_mem_percent": 90.0,
               "job_io_read_mb": 0.0, "total_disk_io_read_mb": 70.0,
               "total_net_io_ext_recv_mb": 26.0}  # fmt: skip
    report = build_run_page(PerfDocument({0: NodeDocument(summary=summary)}))
    tiles = {tile.label: (tile.value, tile.detail) for tile in report.tiles}
    assert tiles["Job's CPUs"] == ("0 of 2", "others 2, idle 0")
    assert tiles["Unused by the job"] == ("4 CPU s", "of 4 CPU s held")
    assert tiles["Job's memory"] == ("29 MB", "of 2 GB, node's peak 90%")
    assert tiles["Job's disk read"] == ("0 MB", "0 MB written; node 70 MB, 0 MB")
    assert "Node received" in tiles


def test_without_the_jobs_own_figures_the_nodes_are_named() -> None:
    """A document of another system or an older version still has its headline."""
    summary = {"duration_sec": 60.0, "cpu_avg_utilization_pct": 40.0, "max_t_mem_percent": 30.0}
    report = build_run_page(PerfDocument({0: NodeDocument(summary=summary)}))
    assert [tile.label for tile in report.tiles] == [
        "Duration", "Node's CPUs busy", "Node's memory peak",
    ]  # fmt: skip


def test_the_gpus_of_all_nodes_are_weighted_by_their_hours() -> None:
    """The headline says what the metric and the table of runs say: eight GPUs count as eight."""
    nodes = {
        i: NodeDocument(
            {"index": i},
            summary={
                "duration_sec": 3600.0,
                "gpu_avg_utilization_pct": busy,
                "gpu_others_avg_utilization_pct": 100.0 - busy,
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
    details = {tile.label: tile.detail for tile in build_run_page(document).tiles}
    assert details["GPU busy"] == "others 100%"


def test_the_verdict_is_that_of_most_nodes() -> None:
    """The most frequent bottleneck counts, with the first advice that names it."""
    extras: list[dict[str, str | None]] = [
        {"bottleneck": "disk", "advice": "Slow."},
        {"bottleneck": "cpu", "advice": ""},
        {"bottleneck": "cpu", "advice": "Full."},
        {"bottleneck": None},
    ]
    assert choose_verdict([], extras) == {"bottleneck": "cpu", "advice": "Full."}
    assert choose_verdict([], [{}]) == {}


def test_facts_are_labelled_and_in_order() -> None:
    """Known facts come first under their labels, others by name; empty ones are left out."""
    node = NodeDocument({"index": 3, "zone_id": "a", "memory_mb": 2048, "hostname": "n1",
                         "gpus": ["x", "y"], "scheduler": None, "spot": True})  # fmt: skip
    assert list_facts(node) == [
        ("Host", "n1"),
        ("Memory of the node", "2 GB"),
        ("gpus", "x, y"),
        ("spot", "True"),
        ("zone id", "a"),
    ]
