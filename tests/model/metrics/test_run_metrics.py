"""The metrics of a run as a whole."""

from __future__ import annotations

from mlflow_perf.model.metrics import METRICS, RUN_METRICS, find_metric
from mlflow_perf.model.summary import summarise_run


def test_run_keys_are_their_own() -> None:
    """Keys of a run begin with `run_`, so that no metric of a node has the same one."""
    keys = [metric.key for metric in RUN_METRICS]
    assert len(keys) == len(set(keys))
    assert all(key.startswith("run_") for key in keys)
    assert not {*keys} & {metric.key for metric in METRICS}
    assert all(find_metric(metric.key) is metric for metric in RUN_METRICS)


def test_run_figures_weigh_nodes_by_their_hours() -> None:
    """A run's utilisation is its used over its held hours, and imbalance is max over mean − 1."""
    nodes = [
        {"node_cpu_hours": 1.0, "node_used_cpu_hours": 1.0, "node_unused_cpu_hours": 0.0,
         "duration_sec": 5.0, "max_t_mem_percent": 10.0},
        {"node_cpu_hours": 3.0, "node_used_cpu_hours": 0.0, "node_unused_cpu_hours": 3.0,
         "duration_sec": 9.0, "max_t_mem_percent": 30.0},
    ]  # fmt: skip
    run = summarise_run(nodes)
    assert run["run_cpu_hours"] == 4.0
    assert run["run_unused_cpu_hours"] == 3.0
    assert run["run_cpu_avg_utilization_pct"] == 25.0
    assert run["run_imbalance_pct"] == 100.0
    assert run["run_duration_sec"] == 9.0
    assert run["run_max_t_mem_percent"] == 30.0
    assert run["run_node_count"] == 2.0
    assert "run_total_disk_io_read_mb" not in run
    assert summarise_run([]) == {}


def test_a_source_that_no_node_has_is_absent() -> None:
    """Without nodes there is no figure, and nodes without GPUs have no GPU figures."""
    assert summarise_run([]) == {}
    figures = summarise_run([{"duration_sec": 3.0}])
    assert figures == {"run_duration_sec": 3.0, "run_node_count": 1.0}
