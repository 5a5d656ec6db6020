"""How many CPUs a job can use."""

from __future__ import annotations

import pytest

from mlflow_perf.analysis.time_shares import read_spans
from mlflow_perf.analysis.usage import Usage
from mlflow_perf.analysis.wanted_cpus import count_wanted_cpus
from mlflow_perf.model.document import NodeDocument

BASE = {"duration_sec": 60.0, "cpu_limit_cores": 4.0, "cpu_avg_utilization_pct": 100.0}


@pytest.mark.parametrize(
    ("figures", "cpus"),
    [
        ({"job_cpu_avg_cores": 1.0, "job_max_cpu_cores": 1.1, "job_run_delay_pct": 3.0}, 1),
        # Serial and starved: it got half of a CPU and needs one.
        ({"job_cpu_avg_cores": 0.5, "job_max_cpu_cores": 1.0, "job_run_delay_pct": 50.0}, 1),
        # Twelve runnable threads that got one CPU: all that there are.
        ({"job_cpu_avg_cores": 1.0, "job_max_cpu_cores": 1.1, "job_run_delay_pct": 91.7}, 4),
        ({"job_cpu_avg_cores": 0.7, "job_max_cpu_cores": 2.0, "job_run_delay_pct": 0.0}, 2),
        ({"job_cpu_avg_cores": 4.0, "job_max_cpu_cores": 4.0, "cpu_throttled_pct": 50.0}, 6),
        ({"job_cpu_avg_cores": 0.0, "job_max_cpu_cores": 0.1}, 1),
    ],
)
def test_the_peak_and_the_missing_cpus_are_added(figures: dict[str, float], cpus: int) -> None:
    """The peak, and more where the job waited for CPUs; one for serial work."""
    summary = {**BASE, **figures}
    usage, spans = Usage(summary), read_spans(NodeDocument(summary=summary))
    assert count_wanted_cpus(usage, spans) == cpus
