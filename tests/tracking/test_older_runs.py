"""Runs of lightgbm-benchmark's classes, and of ours with nothing but the import changed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import mlflow
import pytest
from click.testing import CliRunner
from mlflow import MlflowClient

import mlflow_perf
from mlflow_perf import PerfReportPlotter, cli
from mlflow_perf.errors import RunNotFoundError


def _reports(cpu_pct: float, boot_mb: float = 0.0) -> list[dict[str, float]]:
    return [
        {
            "timestamp": 1e9 + 10 * i, "cpu_pct_per_cpu_avg": cpu_pct, "cpu_pct_per_cpu_min": 1.0,
            "cpu_pct_per_cpu_max": 99.0, "mem_percent": 30.0 + i, "disk_usage_percent": 20.0,
            "disk_io_read_mb": boot_mb + i, "disk_io_write_mb": boot_mb, "net_io_lo_sent_mb": 0.0,
            "net_io_ext_sent_mb": 0.0, "net_io_lo_recv_mb": 0.0, "net_io_ext_recv_mb": 0.0,
        }
        for i in range(6)
    ]  # fmt: skip


class SeedLogger:
    """Logs the eighteen metrics of lightgbm-benchmark only."""

    def log_metric(self, key: str, value: float, step: int) -> None:
        if key.startswith(("cpu_avg_", "max_t_", "total_", "node_cpu_", "node_unused_cpu_")):
            mlflow.log_metric(key, value, step=step)


def _log_run(experiment: str, *cpu_pct: float, artifact: bool) -> str:
    """Log a run as lightgbm-benchmark's script does, with these nodes, and return its id."""
    with mlflow.start_run(experiment_id=experiment) as run:
        plotter = PerfReportPlotter(SeedLogger(), cpu_count=4)
        for node, pct in enumerate(cpu_pct):
            plotter.add_perf_reports(_reports(pct, boot_mb=5000.0), node)
        plotter.report_nodes_perf()
        mlflow.log_dict({"learning_rate": [0.1]}, "parameters.json")
        if artifact:
            mlflow.log_artifact(plotter.save_to())
        return str(run.info.run_id)


def _run(*arguments: str) -> Any:
    result = CliRunner().invoke(cli.main, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout) if "--json" in arguments else result.output


@pytest.mark.parametrize("artifact", [False, True])
def test_commands_work_on_an_older_run(
    client: MlflowClient, experiment: str, tmp_path: Path, artifact: bool
) -> None:
    """With or without the saved reports, show, compare, advise and report have both its nodes."""
    old, new = (
        _log_run(experiment, *pct, artifact=artifact) for pct in ((40.0, 60.0), (80.0, 80.0))
    )
    shown = _run("show", old, "--json")["nodes"]
    assert [shown[node]["cpu_avg_utilization_pct"] for node in "01"] == [40.0, 60.0]
    assert shown["0"]["total_disk_io_read_mb"] == pytest.approx(5.0 if artifact else 5005.0)
    assert "40" in _run("show", old)
    assert "cpu_avg_utilization_pct" in json.dumps(_run("compare", old, new, "--json"))
    assert _run("advise", old)
    _run("report", old, "-o", str(tmp_path / "page.html"))
    assert old in (tmp_path / "page.html").read_text(encoding="utf-8")
    document = mlflow_perf.load(old)
    assert bool(document.nodes[0].reports) is artifact
    assert document.nodes[1].node["count"] == 2


def test_a_run_with_a_few_metrics_of_ours_is_no_older_run(
    client: MlflowClient, experiment: str
) -> None:
    """A run without the metrics that every old run has still holds nothing."""
    with mlflow.start_run(experiment_id=experiment) as run:
        mlflow.log_metric("cpu_avg_utilization_pct", 3.0)
    with pytest.raises(RunNotFoundError, match="no performance document"):
        mlflow_perf.load(run.info.run_id)
