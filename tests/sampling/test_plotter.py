"""The plotter: many nodes' reports become metrics, a step per node."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mlflow_perf.model.document import PerfDocument
from mlflow_perf.sampling.plotter import PerfReportPlotter
from mlflow_perf.testing import RecordingSink

SEED_METRICS = {
    "cpu_avg_utilization_pct", "cpu_avg_utilization_over20_pct", "cpu_avg_utilization_over40_pct",
    "cpu_avg_utilization_over80_pct", "cpu_avg_utilization_at100_pct", "max_t_cpu_pct_per_cpu_avg",
    "max_t_cpu_pct_per_cpu_max", "max_t_cpu_pct_per_cpu_min", "node_cpu_hours",
    "node_unused_cpu_hours", "max_t_mem_percent", "max_t_disk_usage_percent",
    "total_disk_io_read_mb", "total_disk_io_write_mb", "total_net_io_lo_sent_mb",
    "total_net_io_ext_sent_mb", "total_net_io_lo_recv_mb", "total_net_io_ext_recv_mb",
}  # fmt: skip
REPORTS = [
    {
        "timestamp": 10.0 + i, "cpu_pct_per_cpu_avg": 50.0, "cpu_pct_per_cpu_min": 0.0,
        "cpu_pct_per_cpu_max": 100.0, "mem_percent": 10.0 + i, "disk_usage_percent": 20.0,
        "disk_io_read_mb": 1.0 * i, "disk_io_write_mb": 2.0 * i, "net_io_lo_sent_mb": 0.0,
        "net_io_ext_sent_mb": 3.0 * i, "net_io_lo_recv_mb": 0.0, "net_io_ext_recv_mb": 4.0 * i,
    }
    for i in range(5)
]  # fmt: skip


def test_each_node_is_a_step() -> None:
    """report_nodes_perf logs every metric of every node with step = node."""
    sink = RecordingSink()
    plotter = PerfReportPlotter(sink, cpu_count=4)
    plotter.add_perf_reports(REPORTS, 0)
    plotter.add_perf_reports(REPORTS[:3], 1)
    plotter.report_nodes_perf()
    assert sink.of_node(0)["max_t_mem_percent"] == 14.0
    assert sink.of_node(1)["max_t_mem_percent"] == 12.0
    assert sink.of_node(0)["total_disk_io_write_mb"] == 8.0
    assert sink.of_node(0)["node_cpu_hours"] == pytest.approx(4 * 4 / 3600)
    assert sink.of_node(0)["node_count"] == 2.0
    assert plotter.all_reports.keys() == {0, 1}


def test_an_assumed_cpu_count_is_said(caplog: pytest.LogCaptureFixture) -> None:
    """Hours from reports that do not say their CPUs come with a warning."""
    sink = RecordingSink()
    plotter = PerfReportPlotter(sink)
    plotter.add_perf_reports(REPORTS, 0)
    plotter.report_nodes_perf()
    assert "node_cpu_hours" in sink.of_node(0)
    assert "cpu_count" in caplog.text


def test_a_single_report_gives_all_eighteen_metrics() -> None:
    """A node with one report, an instant, has every metric of the seed; its hours are 0."""
    sink = RecordingSink()
    plotter = PerfReportPlotter(sink, cpu_count=4)
    plotter.add_perf_reports(REPORTS[:1], 0)
    plotter.report_nodes_perf()
    assert sink.of_node(0).keys() >= SEED_METRICS
    assert sink.of_node(0)["node_cpu_hours"] == sink.of_node(0)["node_unused_cpu_hours"] == 0.0
    assert plotter.all_reports[0] == REPORTS[:1]


def test_no_reports_are_no_metrics() -> None:
    """A node without reports logs nothing but the number of nodes."""
    sink = RecordingSink()
    plotter = PerfReportPlotter(sink)
    plotter.add_perf_reports([], 3)
    plotter.report_nodes_perf()
    assert sink.of_node(3).keys() <= {"node_count"}


def test_saved_reports_load_again(tmp_path: Path) -> None:
    """save_to returns the path of a strict JSON file that a document loads."""
    plotter = PerfReportPlotter(RecordingSink())
    plotter.add_perf_reports(REPORTS, 2)
    path = plotter.save_to(tmp_path / "reports.json")
    assert path == str(tmp_path / "reports.json")
    assert PerfDocument.from_dict(
        json.loads((tmp_path / "reports.json").read_text())
    ).nodes.keys() == {2}
    assert json.loads(Path(plotter.save_to()).read_text()).keys() == {"2"}


def test_saved_reports_are_strict_json(tmp_path: Path) -> None:
    """A value that is not finite is written as null and is missing in the metrics."""
    sink = RecordingSink()
    plotter = PerfReportPlotter(sink, cpu_count=2)
    busy = [50.0, float("nan"), 50.0]
    reports = [{"timestamp": at, "cpu_pct_per_cpu_avg": v} for at, v in enumerate(busy)]
    plotter.add_perf_reports(reports, 0)
    plotter.report_nodes_perf()
    text = Path(plotter.save_to(tmp_path / "reports.json")).read_text()
    assert json.loads(text, parse_constant=pytest.fail)["0"][1]["cpu_pct_per_cpu_avg"] is None
    assert PerfDocument.from_json(text).nodes[0].summary["cpu_avg_utilization_pct"] == 50.0
