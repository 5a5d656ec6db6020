"""The split of a node among the job, others and nobody, with exact answers and for real."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping

import pytest

from mlflow_perf.model.summary import summarise
from mlflow_perf.readers import default_readers
from mlflow_perf.sampling.node_split import NodeSplit
from mlflow_perf.sampling.sampler import PerformanceMetricsCollector


def split(*reports: Mapping[str, float]) -> dict[str, float]:
    """Return the last of several reports, with what is beside the job."""
    node, report = NodeSplit(), {}
    for values in reports:
        report = dict(values)
        node.add_to(report)
    return report


def test_resources_beside_the_job_are_others_or_idle() -> None:
    """Of 4 CPUs 3 were busy, 1 of them for the job: 2 for others, 1 idle."""
    before = {"cpu_busy_sec": 100.0, "cpu_ticks_sec": 400.0, "cpu_limit_cores": 4.0}
    now = {**before, "cpu_busy_sec": 106.0, "cpu_ticks_sec": 408.0, "job_cpu_cores": 1.0}
    report = split({**before, "job_cpu_cores": 1.0}, now)
    assert (report["others_cpu_cores"], report["idle_cpu_cores"]) == (2.0, 1.0)


def test_the_node_is_the_whole_one_where_the_job_owns_a_part() -> None:
    """A job on 2 of 8 CPUs: others are those of all eight."""
    before = {"host_cpu_busy_sec": 0.0, "host_cpu_ticks_sec": 0.0, "host_cpu_cores": 8.0,
              "cpu_busy_sec": 0.0, "cpu_ticks_sec": 0.0, "cpu_limit_cores": 2.0}  # fmt: skip
    now = {**before, "host_cpu_busy_sec": 5.0, "host_cpu_ticks_sec": 8.0, "cpu_busy_sec": 1.5,
           "cpu_ticks_sec": 2.0, "job_cpu_cores": 1.5}  # fmt: skip
    report = split(before, now)
    assert (report["others_cpu_cores"], report["idle_cpu_cores"]) == (3.5, 3.0)


def test_memory_is_split_likewise() -> None:
    """Of 1,000 MB 60% are in use, 100 by the job; a job of mapped files makes nothing negative."""
    report = split({"host_mem_mb": 1000.0, "mem_percent": 60.0, "job_mem_mb": 100.0})
    assert (report["others_mem_mb"], report["idle_mem_mb"]) == (500.0, 400.0)
    report = split({"host_mem_mb": 1000.0, "mem_percent": 60.0, "job_mem_mb": 700.0})
    assert (report["others_mem_mb"], report["idle_mem_mb"]) == (0.0, 300.0)


def test_without_the_job_nothing_is_said_of_others() -> None:
    """Where the processes cannot be read, no figure pretends to be that of others."""
    values = {"cpu_busy_sec": 1.0, "cpu_ticks_sec": 2.0, "cpu_limit_cores": 2.0}
    assert split(values, values | {"cpu_ticks_sec": 4.0}).keys() == values.keys()


def test_the_averages_are_of_the_whole_block() -> None:
    """20 s on 4 CPUs, 50 of 80 CPU-seconds busy, 30 by the job: 1.0 others, 1.5 idle."""
    start = {"elapsed_sec": 0.0, "cpu_limit_cores": 4.0, "cpu_busy_sec": 0.0, "cpu_ticks_sec": 0.0,
             "job_cpu_sec": 0.0}  # fmt: skip
    end = {"elapsed_sec": 20.0, "cpu_limit_cores": 4.0, "cpu_busy_sec": 50.0, "cpu_ticks_sec": 80.0,
           "job_cpu_sec": 30.0}  # fmt: skip
    metrics = summarise([start, end])
    assert metrics["others_cpu_avg_cores"] == pytest.approx(1.0)
    assert metrics["idle_cpu_avg_cores"] == pytest.approx(1.5)


@pytest.mark.e2e
def test_a_burner_beside_a_sleeping_job_is_others() -> None:
    """While the job sleeps, the CPU time of a process outside of it counts as others'."""
    burner = subprocess.Popen([sys.executable, "-S", "-c", "while True: pass"])
    sleeper = subprocess.Popen(["sleep", "600"])
    try:
        collector = PerformanceMetricsCollector(
            interval=0.5, readers=default_readers(root_pid=sleeper.pid)
        )
        collector.start()
        thread = collector.report_thread
        assert thread is not None
        thread.join(2.2)
        collector.finalize()
    finally:
        for child in (burner, sleeper):
            child.kill()
            child.wait()
    metrics = collector.metrics()
    assert metrics["job_max_cpu_cores"] < 0.05
    assert metrics["others_cpu_avg_cores"] > 0.3
    for row in collector.perf_reports:
        parts = row["job_cpu_cores"] + row["others_cpu_cores"] + row["idle_cpu_cores"]
        assert parts == pytest.approx(row.get("host_cpu_cores", row["cpu_limit_cores"]))
