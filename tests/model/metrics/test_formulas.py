"""The formulas of the metrics."""

from __future__ import annotations

from typing import Any

import pytest

from mlflow_perf.model.metrics import formulas
from mlflow_perf.model.summary import RunningSummary


def summary_after(duration_sec: float, **columns: float) -> RunningSummary:
    """Return the figures of two reports: counters begin at 0, and gauges have one level."""
    gauges = {"gpu_count", "cpu_limit_cores", "gpu_utilization_pct", "cpu_pct_per_cpu_avg"}
    first = {name: value if name in gauges else 0.0 for name, value in columns.items()}
    summary = RunningSummary()
    summary.add({"elapsed_sec": 0.0, **first})
    summary.add({"elapsed_sec": duration_sec, **columns})
    return summary


@pytest.mark.parametrize(
    ("formula", "columns", "value"),
    [
        (formulas.ratio_pct("a", "b"), {"a": 1.0, "b": 4.0}, 25.0),
        (formulas.ratio_pct("a", "b"), {"a": 1.0, "b": 0.0}, None),
        (formulas.per_duration("a"), {"a": 20.0}, 2.0),
        (formulas.time_share_pct("a"), {"a": 50.0}, 100.0),
        (formulas.cpu_average_pct, {"cpu_pct_per_cpu_avg": 30.0}, 30.0),
        (formulas.cpu_hours, {"cpu_limit_cores": 360.0}, 1.0),
        (formulas.used_cpu_hours, {"cpu_limit_cores": 360.0}, None),
        (formulas.gpu_hours, {"gpu_count": 720.0}, 2.0),
        (formulas.unused_gpu_hours, {"gpu_count": 720.0, "gpu_utilization_pct": 25.0}, 1.5),
        (formulas.gpu_energy_wh, {"gpu_count": 2.0, "gpu1_energy_wh": 3.0}, 3.0),
        (
            formulas.node_energy_wh,
            {"cpu_energy_wh": 1.0, "gpu_count": 1.0, "gpu0_energy_wh": 3.0},
            4.0,
        ),
        (formulas.affinity_cpus, {"job_affinity_cpus": 1.0, "cpu_limit_cores": 2.0}, 1.0),
        (formulas.affinity_cpus, {"job_affinity_cpus": 1.0}, 1.0),
        # A short step was pinned: nearly all the time, the job might use both.
        (formulas.affinity_cpus, {"job_affinity_cpus": 1.9, "cpu_limit_cores": 2.0}, None),
        (formulas.node_energy_wh, {}, None),
        (formulas.node_cost, {}, None),
    ],
)
def test_formulas(formula: formulas.Formula, columns: dict[str, Any], value: float | None) -> None:
    """A formula gives its figure for a block of ten seconds, None without its source."""
    assert formula(summary_after(10.0, **columns)) == value
