"""The metrics of a node."""

from __future__ import annotations

from mlflow_perf.model.metrics import METRICS, find_metric, make_gpu_metrics
from mlflow_perf.model.summary import RunningSummary

EIGHTEEN = {
    "cpu_avg_utilization_pct", "cpu_avg_utilization_over20_pct", "cpu_avg_utilization_over40_pct",
    "cpu_avg_utilization_over80_pct", "cpu_avg_utilization_at100_pct", "max_t_cpu_pct_per_cpu_avg",
    "max_t_cpu_pct_per_cpu_max", "max_t_cpu_pct_per_cpu_min", "node_cpu_hours",
    "node_unused_cpu_hours", "max_t_mem_percent", "max_t_disk_usage_percent",
    "total_disk_io_read_mb", "total_disk_io_write_mb", "total_net_io_lo_sent_mb",
    "total_net_io_ext_sent_mb", "total_net_io_lo_recv_mb", "total_net_io_ext_recv_mb",
}  # fmt: skip


def test_the_table_has_the_seeds_eighteen_keys_once() -> None:
    """The table has the eighteen keys of the seed, and no key twice."""
    keys = [metric.key for metric in METRICS]
    assert set(keys) >= EIGHTEEN
    assert len(keys) == len(set(keys))


def test_a_key_names_its_row() -> None:
    """A row is found by its key, also one of a GPU; an unknown key has no row."""
    for row in (*METRICS, *make_gpu_metrics(11)):
        found = find_metric(row.key)
        assert found is not None
        assert (found.key, found.unit, found.meaning) == (row.key, row.unit, row.meaning)
    assert find_metric("no such key") is None
    assert find_metric("gpu0_no_such_key") is None


def test_every_row_is_complete() -> None:
    """A row has a formula and a meaning for people; without reports it has no value."""
    for row in METRICS:
        assert row.source
        assert row.formula
        assert row.meaning.endswith(".")
        assert row.better in ("", "lower", "higher")
        assert row.compute(RunningSummary()) is None
