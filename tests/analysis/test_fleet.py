"""The recommendations for the components that left most unused."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from mlflow_perf.analysis.fleet import FleetRow, advise_component
from mlflow_perf.tracking.fleet_sums import FIGURES
from mlflow_perf.tracking.perf_run import PerfRun

ROW = FleetRow("train", 1, 0, {**dict.fromkeys(FIGURES), "cpu_hours": 8.0, "unused_cpu_hours": 7.0})
NODE = {
    "duration_sec": 60.0,
    "cpu_limit_cores": 8.0,
    "mem_limit_mb": 65536.0,
    "job_cpu_avg_cores": 1.0,
    "job_max_cpu_cores": 1.0,
    "job_max_mem_mb": 1000.0,
}


@pytest.mark.parametrize(
    ("known", "said"),
    [
        ({"perf_mem_mb": 90.0}, "Ask for 1 CPU and 1,600 MB instead of 8 CPUs."),
        ({}, "Ask for at least 1 CPU and 1,472 MB instead of 8 CPUs."),
    ],
)
def test_the_request_is_that_of_the_right_size(
    make_run: Callable[..., PerfRun], known: dict[str, float], said: str
) -> None:
    """The same numbers as `advise` prints; a lower bound is said to be one."""
    assert said in advise_component(ROW, [make_run({**NODE, **known})])
