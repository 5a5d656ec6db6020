"""What made a run slower, by the seconds that each cause cost."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest

from mlflow_perf.analysis.change_causes import list_causes
from mlflow_perf.tracking.perf_run import PerfRun

MakeRun = Callable[..., PerfRun]


def thread(
    seconds: float, cpu_sec: float, waited_sec: float = 0.0, **more: float
) -> dict[str, float]:
    """Return the figures of a job of one thread, which slept when it neither ran nor waited."""
    ready = cpu_sec + waited_sec
    return {
        "duration_sec": seconds,
        "cpu_limit_cores": 2.0,
        "job_cpu_avg_cores": cpu_sec / seconds,
        "job_max_cpu_cores": 1.0,
        "job_run_delay_pct": 100.0 * waited_sec / ready if ready else 0.0,
        **more,
    }


def causes(make_run: MakeRun, old: Mapping[str, float], new: Mapping[str, float]) -> str:
    """Return the causes of a change from one run to another, as one text."""
    return ", ".join(list_causes([make_run(old)], [make_run(new)]))


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        # As measured: a little more computing, and others on the node.
        ((25.0, 5.73, 19.27), (56.7, 7.27, 49.43), "waiting for CPUs 19.3 → 49.4 s"),
        ((25.0, 5.7, 19.3), (57.0, 5.7, 51.3), "waiting for CPUs 19.3 → 51.3 s"),
        ((20.0, 4.0, 16.0), (30.0, 4.0, 26.0), "waiting for CPUs 16 → 26 s"),
        ((25.0, 3.0, 22.0), (50.0, 3.0, 47.0), "waiting for CPUs 22 → 47 s"),
        ((50.0, 3.0, 47.0), (25.0, 3.0, 22.0), "waiting for CPUs 47 → 22 s"),
        ((10.0, 9.5, 0.5), (11.2, 9.5, 1.7), "waiting for CPUs 0.5 → 1.7 s"),
        ((10.0, 9.9, 0.1), (11.2, 11.09, 0.11), "CPU time 9.9 → 11.1 CPU s"),
        ((10.0, 0.0), (40.0, 30.0), "CPU time 0 → 30 CPU s"),
        ((10.0, 9.0), (20.0, 9.0), "waiting for neither CPUs nor disks 1 → 11 s"),
        (
            (20.0, 5.0, 5.0),
            (60.0, 25.0, 25.0),
            "waiting for CPUs 5 → 25 s, CPU time 5 → 25 CPU s",
        ),
        # As long as before: what changed by a tenth of the time.
        (
            (20.0, 10.0, 10.0),
            (20.0, 12.5, 7.5),
            "waiting for CPUs 10 → 7.5 s, CPU time 10 → 12.5 CPU s",
        ),
        ((20.0, 19.0, 1.0), (20.0, 18.0, 2.0), ""),
    ],
)
def test_what_cost_most_seconds_is_named(
    make_run: MakeRun, old: tuple[float, ...], new: tuple[float, ...], said: str
) -> None:
    """Points of a share are no measure: waits of 88 instead of 78% were the whole change."""
    told = causes(make_run, thread(*old), thread(*new))
    assert told.startswith(said)
    assert said or not told


def test_others_are_named_where_a_job_waited_longer_beside_them(make_run: MakeRun) -> None:
    """The load of others explains no shorter wait, and nothing where the job did not wait."""
    quiet, busy = thread(20.0, 19.0, 1.0), thread(40.0, 19.0, 21.0, others_cpu_avg_cores=1.5)
    assert causes(make_run, quiet, busy) == "waiting for CPUs 1 → 21 s, others on the node"
    assert "others" not in causes(make_run, busy, {**quiet, "others_cpu_avg_cores": 1.5})
    slow = thread(40.0, 39.0, 1.0, others_cpu_avg_cores=1.5)
    assert causes(make_run, quiet, slow) == "CPU time 19 → 39 CPU s"


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        # The same work on fewer CPUs; twice the work on as many.
        ((10.0, 4.0), (40.0, 1.0), "CPUs used 4 → 1"),
        ((10.0, 4.0), (20.0, 4.0), "CPU time 40 → 80 CPU s"),
        ((10.0, 4.0), (80.0, 1.0), "CPUs used 4 → 1, CPU time 40 → 80 CPU s"),
    ],
)
def test_computing_takes_longer_for_more_work_or_on_fewer_cpus(
    make_run: MakeRun, old: tuple[float, float], new: tuple[float, float], said: str
) -> None:
    """The seconds of computing are divided among both."""
    sides = [
        {"duration_sec": seconds, "cpu_limit_cores": 4.0, "job_cpu_avg_cores": cores,
         "job_max_cpu_cores": cores, "job_run_delay_pct": 0.0}
        for seconds, cores in (old, new)
    ]  # fmt: skip
    assert causes(make_run, *sides) == said


def test_threads_that_wait_for_each_other_cost_nothing(make_run: MakeRun) -> None:
    """Eight threads on two full CPUs wait for 75% of their time, and the job waits for none."""
    two = {"duration_sec": 20.0, "cpu_limit_cores": 2.0, "job_cpu_avg_cores": 2.0,
           "job_max_cpu_cores": 2.0, "job_run_delay_pct": 0.0}  # fmt: skip
    eight = {**two, "duration_sec": 30.0, "job_run_delay_pct": 75.0}
    assert causes(make_run, two, eight) == "CPU time 40 → 60 CPU s"


@pytest.mark.parametrize(
    ("figures", "said"),
    [
        ({"cpu_throttled_pct": 50.0, "job_run_delay_pct": 0.0}, "held back by the CPU quota 0 →"),
        ({"io_stall_pct": 60.0, "job_io_read_mb": 90.0}, "waiting for disks 0 → "),
        (
            {"steps/r/count": 100.0, "steps/r/mean_ms": 380.0, "steps/r/input_pct": 50.0},
            "waiting for input 1 → 19 s",
        ),
        ({"gpu_avg_utilization_pct": 90.0}, "time on the GPU 2 → 36 s"),
        (
            {"gpu_avg_utilization_pct": 30.0, "gpu_others_avg_utilization_pct": 70.0},
            "waiting for GPUs that others used 0 → ",
        ),
    ],
)
def test_each_kind_of_wait_has_its_seconds(
    make_run: MakeRun, figures: dict[str, float], said: str
) -> None:
    """Disks, the quota, the input of a training loop and GPUs are told in seconds, too."""
    old = {"cpu_throttled_pct": 0.0, "io_stall_pct": 0.0, "job_io_read_mb": 90.0,
           "steps/r/count": 100.0, "steps/r/mean_ms": 190.0, "steps/r/input_pct": 5.26}  # fmt: skip
    if "gpu_avg_utilization_pct" in figures:
        old |= {"gpu_avg_utilization_pct": 10.0, "gpu_others_avg_utilization_pct": 0.0}
    told = causes(make_run, thread(20.0, 10.0, **old), thread(40.0, 10.0, **{**old, **figures}))
    assert said in told


def test_of_repeats_the_median_counts_and_of_nodes_the_mean(make_run: MakeRun) -> None:
    """One repeat that was disturbed changes nothing."""
    base = [make_run(thread(20.0, 10.0, 10.0 * i)) for i in (1, 1, 0)]
    new = [make_run(thread(40.0, 10.0, w), thread(40.0, 10.0, 30.0)) for w in (26.0, 30.0, 0.0)]
    assert list(list_causes(base, new)) == ["waiting for CPUs 10 → 28 s"]


def test_runs_without_figures_have_no_causes(make_run: MakeRun) -> None:
    """A run without a node, and one of which the duration alone is known."""
    assert causes(make_run, {"duration_sec": 10.0}, {"duration_sec": 20.0}) == ""
    assert list(list_causes([make_run()], [make_run(thread(40.0, 10.0, 30.0))])) == []


def test_figures_of_several_nodes_are_those_of_one(make_run: MakeRun) -> None:
    """Their sum, which grew, stands in the table: the sentence says that it names a mean."""
    old, new = make_run(thread(17.0, 8.7)), make_run(*[thread(28.0, 5.2)] * 2)
    assert "CPU time per node 8.7 → 5.2 CPU s" in ", ".join(list_causes([old], [new]))
