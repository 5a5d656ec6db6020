"""How many CPUs a job can use."""

from __future__ import annotations

import pytest

from mlflow_perf.analysis.usage import Usage
from mlflow_perf.analysis.wanted_cpus import count_wanted_cpus, explain_serial, is_serial

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
        # Without a peak: too short for one, in which a wait or two are many; and an import.
        ({"duration_sec": 0.179, "job_cpu_avg_cores": 0.89, "job_run_delay_pct": 22.0}, 1),
        ({"duration_sec": 0.179, "job_cpu_avg_cores": 0.89, "job_run_delay_pct": 70.0}, 3),
        ({"job_cpu_avg_cores": 0.89, "job_run_delay_pct": 22.0}, 2),
    ],
)
def test_the_peak_and_the_missing_cpus_are_added(figures: dict[str, float], cpus: int) -> None:
    """The peak, and more where the job waited for CPUs; one for serial work."""
    assert count_wanted_cpus(Usage({**BASE, **figures})) == cpus


# Two children that got half of a CPU, beside two burners on two CPUs.
CHILDREN = {
    "cpu_limit_cores": 2.0,
    "job_cpu_avg_cores": 0.54,
    "job_max_cpu_cores": 0.8,
    "job_run_delay_pct": 75.3,
    "job_threads_max": 4.0,
    "job_voluntary_switches": 60_000.0,
}


@pytest.mark.parametrize(
    ("processes", "beside_pct", "apart_pct", "cpus"),
    [
        (2.7, 4.0, None, 2), (3.0, 75.0, None, 2), (1.0, 4.0, None, 2), (1.0, 75.0, None, 1),
        (2.0, 75.0, 1.0, 1), (2.0, 75.0, 48.0, 2),
    ],
)  # fmt: skip
def test_only_threads_of_one_process_take_turns(
    processes: float, beside_pct: float, apart_pct: float | None, cpus: int
) -> None:
    """Each process has a lock of its own; an idle shell, with 1% of the computing, has no part."""
    told = {"job_processes_avg": processes, "job_ran_beside_pct": beside_pct}
    if apart_pct is not None:
        told["job_ran_apart_pct"] = apart_pct
    assert count_wanted_cpus(Usage({**BASE, **CHILDREN, **told})) == cpus


@pytest.mark.parametrize(
    ("cpus", "delay_pct", "serial"), [(1, None, 0), (1, 2.0, 1), (1, 60.0, 0), (2, None, 1)]
)
def test_a_job_that_had_one_cpu_is_serial_only_if_no_thread_waited(
    cpus: int, delay_pct: float | None, serial: int
) -> None:
    """An imported task that kept its only CPU busy may have had use for another one."""
    figures = {"cpu_limit_cores": float(cpus), "job_cpu_avg_cores": 0.95, "job_max_cpu_cores": 1.0}
    if delay_pct is not None:
        figures["job_run_delay_pct"] = delay_pct
    assert is_serial(Usage({**BASE, **figures})) is bool(serial)


def test_threads_that_took_turns_beside_others_may_not_be_serial() -> None:
    """Python's lock cannot be told from a node whose other CPUs are taken: the advice says so."""
    turns = {
        "duration_sec": 10.0, "cpu_limit_cores": 2.0, "job_cpu_avg_cores": 0.9,
        "job_max_cpu_cores": 1.0, "job_run_delay_pct": 52.0, "job_ran_beside_pct": 50.0,
        "job_threads_max": 3.0, "job_voluntary_switches": 3000.0, "cpu_avg_utilization_pct": 100.0,
    }  # fmt: skip
    assert "others kept the other CPUs busy" in explain_serial([Usage(turns, {})])
    quiet = {**turns, "cpu_avg_utilization_pct": 50.0}
    assert explain_serial([Usage(quiet, {})]) == "its work is serial, one CPU is what it can use."
