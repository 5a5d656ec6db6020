"""Figures of a node: a missing figure is zero, and never a fault."""

from __future__ import annotations

import pytest

from mlflow_perf.analysis.usage import Usage, ramp, read_positive


@pytest.mark.parametrize(
    ("value", "share"), [(0.0, 0.0), (1.0, 0.0), (2.0, 0.5), (3.0, 1.0), (99.0, 1.0)]
)
def test_a_ramp_has_no_step(value: float, share: float) -> None:
    """It is 0 up to the low end, 1 from the high end on, and a line between them."""
    assert ramp(value, 1.0, 3.0) == share


@pytest.mark.parametrize("value", [None, "four", float("nan"), float("inf"), -1.0, 0.0])
def test_anything_but_a_positive_number_is_zero(value: object) -> None:
    """A damaged document holds anything."""
    assert read_positive(value) == 0.0


def test_the_jobs_own_figures_come_first() -> None:
    """The node's figures replace them only where they are unknown."""
    usage = Usage({"cpu_avg_utilization_pct": 100.0, "job_cpu_avg_cores": 0.5}, {"cpu_count": 2})
    assert (usage.used_cores, usage.busy_pct, usage.node_busy_pct) == (0.5, 25.0, 100.0)
    assert Usage({"cpu_avg_utilization_pct": 50.0}, {"cpu_count": 2}).used_cores == 1.0
    assert Usage({"max_t_mem_percent": 40.0}).mem_pct == 40.0
    own = Usage({"max_t_mem_percent": 40.0, "job_max_mem_mb": 10.0, "mem_limit_mb": 100.0})
    assert (own.mem_pct, own.knows_own_memory) == (10.0, True)
