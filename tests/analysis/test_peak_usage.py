"""The peak usage of a node, and what it had."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from mlflow_perf.analysis.peak_usage import read_peak_usage
from mlflow_perf.tracking.perf_run import PerfRun

MakeRun = Callable[..., PerfRun]


def test_the_jobs_own_figures_come_first(make_run: MakeRun) -> None:
    """The job's peaks count, and its limits are what it had."""
    summary = {"job_max_cpu_cores": 3.5, "job_max_mem_mb": 900.0, "cpu_limit_cores": 8.0,
               "mem_limit_mb": 2000.0, "max_t_mem_percent": 80.0}  # fmt: skip
    (peak,) = read_peak_usage(make_run(summary, facts={"mem_total_mb": 64_000}))
    assert (peak.cores, peak.job_cores, peak.owned_cores) == (3.5, True, 8.0)
    assert (peak.memory_mb, peak.job_memory_mb, peak.owned_memory_mb) == (900.0, 900.0, 2000.0)


def test_a_step_that_reports_by_itself_needs_its_wrapper_too(make_run: MakeRun) -> None:
    """In a pipeline each rank has a wrapper; a wrapper's own report holds it already."""
    own = {"job_max_mem_mb": 900.0, "perf_mem_mb": 100.0}
    step = {"tags": {"mlflow_perf.attempts": "1"}}
    for summary, options, in_pipeline, memory_mb in (
        (own, {}, False, 1000.0),
        (own, {}, True, 1032.0),
        (own, step, False, 1032.0),
        (own, {**step, "facts": {"world_size": 2}}, False, 1064.0),
        ({**own, "perf_mem_beside_mb": 33.0}, step, True, 933.0),
    ):
        (peak,) = read_peak_usage(make_run(summary, **options), in_pipeline=in_pipeline)
        assert peak.memory_mb == memory_mb


@pytest.mark.parametrize(
    ("summary", "memory_mb"),
    [
        ({"max_t_cgroup_mem_percent": 50.0, "mem_limit_mb": 2000.0}, 1000.0),
        ({"max_t_mem_percent": 25.0}, 2000.0),
        ({}, None),
    ],
)
def test_memory_is_the_cgroups_or_the_nodes_if_the_jobs_is_unknown(
    make_run: MakeRun, summary: dict[str, float], memory_mb: float | None
) -> None:
    """The cgroup's peak comes before the node's; without either, the peak is unknown."""
    (peak,) = read_peak_usage(make_run(summary, facts={"mem_total_mb": 8000}))
    assert (peak.memory_mb, peak.job_memory_mb) == (memory_mb, 0.0)


@pytest.mark.parametrize(
    ("summary", "gpus"),
    [
        ({"gpu0_avg_utilization_pct": 70.0, "gpu1_avg_utilization_pct": 0.0}, (1, 2)),
        ({"gpu_avg_utilization_pct": 30.0, "node_gpu_hours": 2.0, "duration_sec": 1800.0}, (4, 4)),
        ({"gpu_avg_utilization_pct": 0.0}, (0, 1)),
        ({}, (0, 0)),
    ],
)
def test_gpus_that_worked_are_counted(
    make_run: MakeRun, summary: dict[str, float], gpus: tuple[int, int]
) -> None:
    """Single GPUs are counted by their own metrics, else by the GPU-hours of the node."""
    (peak,) = read_peak_usage(make_run(summary))
    assert (peak.gpus, peak.owned_gpus) == gpus


def test_the_jobs_memory_on_the_fullest_gpu_is_a_peak(make_run: MakeRun) -> None:
    """It stands beside the other peaks; older documents do not have it."""
    (peak,) = read_peak_usage(make_run({"max_t_gpu_mem_mb": 20000.0, "job_max_mem_mb": 500.0}))
    assert list(peak.used) == [0.0, 500.0, 0, 20000.0]
    (older,) = read_peak_usage(make_run({}))
    assert (sum(older.used), sum(older.owned)) == (0.0, 0.0)


@pytest.mark.parametrize(
    ("facts", "tasks"),
    [({"world_size": 8}, 4), ({"world_size": 1}, 1), ({"world_size": float("inf")}, 1), ({}, 1)],
)
def test_ranks_are_spread_over_the_nodes(
    make_run: MakeRun, facts: dict[str, Any], tasks: int
) -> None:
    """A node has its share of the ranks, at least one, whatever a document holds."""
    assert [peak.tasks for peak in read_peak_usage(make_run({}, {}, facts=facts))] == [tasks] * 2


@pytest.mark.parametrize(
    ("summary", "tight"),
    [
        ({"io_stall_pct": 10.0}, True),
        ({"io_stall_pct": 9.0}, False),
        ({"oom_kills": 1.0}, True),
        ({"total_net_io_ext_recv_mb": 100.0, "duration_sec": 10.0}, True),
    ],
)
def test_a_node_that_waited_is_tight(
    make_run: MakeRun, summary: dict[str, float], tight: bool
) -> None:
    """Stalls, kills for lack of memory and a busy network make a node tight."""
    (peak,) = read_peak_usage(make_run(summary))
    assert peak.is_tight == tight


def test_a_run_without_figures_of_its_nodes_has_no_peaks(make_run: MakeRun) -> None:
    """There is nothing to read in a run of which only the run-level metrics are known."""
    assert read_peak_usage(make_run()) == []


@pytest.mark.parametrize(
    ("used", "expected"),
    [
        ({"perf_mem_mb": 125.0}, 435.0),  # in the job's process, or a document of 0.1.0
        ({"perf_mem_mb": 230.0, "perf_mem_beside_mb": 32.0}, 342.0),
        ({"job_max_mem_mb": 10.0, "perf_mem_mb": 230.0, "perf_mem_beside_mb": 32.0}, 230.0),
    ],
)
def test_memory_that_was_never_held_at_once_is_not_added(
    make_run: MakeRun, used: dict[str, float], expected: float
) -> None:
    """MLflow is loaded for sending after the command has ended; both must fit, one at a time."""
    (peak,) = read_peak_usage(make_run({"job_max_mem_mb": 310.0, **used}))
    assert peak.memory_mb == expected
    assert peak.job_memory_mb == {"job_max_mem_mb": 310.0, **used}["job_max_mem_mb"]
