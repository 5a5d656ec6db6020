"""Which charts the columns of a job fill."""

from __future__ import annotations

import pytest

from mlflow_perf.model.columns import COLUMNS
from mlflow_perf.reports.charts import CHARTS, NEVER_DRAWN, select_charts


def test_unknown_columns_get_charts_of_their_own() -> None:
    """A user's reader's column is drawn; a peak column is not taken for one."""
    charts = select_charts(["cpu_pct_per_cpu_avg", "queue_length", "queue_length_max", "timestamp"])
    assert [chart.title for chart in charts] == ["Node's CPUs", "queue_length"]


@pytest.mark.parametrize("name", sorted(COLUMNS.keys() - NEVER_DRAWN))
def test_each_column_of_ours_has_a_place(name: str) -> None:
    """No column of our own readers falls into a chart without a title in plain words."""
    if name in ("gpu_count", "cpu_energy_wh", "carbon_g", "carbon_energy_wh"):
        return
    assert any(curve.column == name for chart in CHARTS for curve in chart.curves)
