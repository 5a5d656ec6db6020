"""Which charts the columns of a job fill."""

from __future__ import annotations

from mlflow_perf.reports.charts import select_charts


def test_unknown_columns_get_charts_of_their_own() -> None:
    """A user's reader's column is drawn; a peak column is not taken for one."""
    charts = select_charts(["cpu_pct_per_cpu_avg", "queue_length", "queue_length_max", "timestamp"])
    assert [chart.title for chart in charts] == ["CPU", "queue_length"]
