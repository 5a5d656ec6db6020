"""Each span of time is split without thresholds."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.analysis.span_samples import SPAN

from mlflow_perf.analysis.time_shares import (
    average_demand,
    average_shares,
    divide_activity,
    read_spans,
    split_time,
    summarise_time,
)
from mlflow_perf.analysis.usage import Usage
from mlflow_perf.model.document import NodeDocument

SHARE = st.floats(0, 1)


@pytest.mark.parametrize(
    ("used", "serial", "saturated", "waiting"),
    [(0.6, 0.6, 0.0, 0.4), (1.0, 1.0, 0.0, 0.0), (1.5, 0.5, 0.3, 0.0), (2.0, 0.0, 1.0, 0.0)],
)
def test_busy_cpus_are_shares_of_the_time(
    used: float, serial: float, saturated: float, waiting: float
) -> None:
    """0.6 CPUs are 60% of the time on one; 1.5 are half on one and half on two."""
    shares = split_time(replace(SPAN, used=used))
    assert shares["serial"] == pytest.approx(serial)
    assert shares["saturated"] == pytest.approx(saturated)
    assert shares["waiting"] == pytest.approx(waiting)


@given(
    used=st.floats(0, 4), delay=SHARE, cores=st.floats(0.1, 4), io=SHARE, throttled=SHARE,
    stolen=SHARE, disk=st.floats(0, 500), net=st.floats(0, 500), gpu=SHARE,
    gpu_others=SHARE,
)  # fmt: skip
def test_the_shares_add_up_to_the_time(
    used: float, delay: float, cores: float, io: float, throttled: float, stolen: float,
    disk: float, net: float, gpu: float, gpu_others: float,
) -> None:  # fmt: skip
    """Whatever the figures, no share is negative and together they are the whole."""
    span = replace(
        SPAN, used=used, run_delay=delay, cores=cores, io_stall=io, throttled=throttled,
        stolen=stolen, disk_mb_s=disk, net_mb_s=net, gpu=gpu, has_gpu=True, node_used=used,
        mean_gpu=gpu, gpu_others=gpu_others,
    )  # fmt: skip
    shares = split_time(span)
    assert min(shares.values()) >= -1e-9
    assert sum(shares.values()) == pytest.approx(1.0)


def test_what_a_starved_job_would_have_used_follows_from_its_waiting() -> None:
    """Half of its runnable time on the run queue: twice the CPUs, and half of the time lost."""
    starved = replace(SPAN, used=0.5, run_delay=0.5)
    assert split_time(starved)["contended"] == pytest.approx(0.5)
    assert average_demand([starved, replace(SPAN, used=0.0)]) == pytest.approx(1.0)


@pytest.mark.parametrize("used", [0.0, 1.0])
def test_beside_others_on_its_gpu_a_job_waits_for_the_gpu(used: float) -> None:
    """It sleeps or spins on one CPU; where the GPU is free or not the job's, it does not wait."""
    span = replace(SPAN, used=used, gpu=0.1, mean_gpu=0.1, gpu_others=0.9, has_gpu=True)
    assert split_time(span)["contended_gpu"] == pytest.approx(0.81)
    assert split_time(replace(span, gpu_others=0.3))["contended_gpu"] == 0.0
    assert split_time(replace(span, gpu=0.0, mean_gpu=0.0))["contended_gpu"] == 0.0
    # In a moment without work of the job's on the GPU, it may wait for it all the same.
    assert split_time(replace(span, gpu=0.0))["contended_gpu"] == pytest.approx(0.9)


def test_gpus_that_others_keep_busy_are_not_held_back_by_cpus() -> None:
    """Half of the CPUs busy may hold idle GPUs back, not those that others use."""
    span = replace(SPAN, cores=10.0, used=5.0, gpu=0.1, mean_gpu=0.1, has_gpu=True)
    assert split_time(span)["saturated"] > 0.2
    assert split_time(replace(span, gpu_others=0.8))["saturated"] == 0.0


def test_stalls_of_the_nodes_disks_are_the_jobs_as_far_as_it_moves_data() -> None:
    """A sleeper beside a writer waits; a job that writes waits for the disk."""
    span = replace(SPAN, used=0.0, io_stall=0.9)
    assert split_time(span)["waiting"] == pytest.approx(1.0)
    assert split_time(replace(span, disk_mb_s=5.0))["disk"] == pytest.approx(0.9)


@pytest.mark.parametrize(("calls_per_sec", "kind"), [(2_800, "serial"), (6_000, "disk")])
def test_some_small_writes_beside_the_computing_are_no_verdict(
    calls_per_sec: int, kind: str
) -> None:
    """MLflow's autologging writes that much to SQLite; thousands of small files are another thing.

    Each request takes some 10 µs of a CPU, those on files with their opening and closing 100.
    """
    span = replace(SPAN, used=0.98, calls_per_sec=float(calls_per_sec), disk_mb_s=3.1)
    shares = split_time(span)
    assert max(shares, key=lambda one: shares[one]) == kind


@pytest.mark.parametrize(
    ("system", "calls_mb_s", "kind"),
    [(0.6, 2.0, "disk"), (0.03, 2.0, "serial"), (0.9, 700.0, "serial")],
)
def test_small_requests_are_the_verdict_where_the_kernel_worked_for_them(
    system: float, calls_mb_s: float, kind: str
) -> None:
    """Not where a program computes on what it reads in small parts, or moves much by each call.

    `sqlite3` that loads 14 MB computes for 97% of its CPU time; `cat` moves 128 KB at a time.
    """
    span = replace(
        SPAN, used=0.98, calls_per_sec=6_000.0, calls_mb_s=calls_mb_s, disk_mb_s=3.1, system=system
    )
    shares = split_time(span)
    assert max(shares, key=lambda one: shares[one]) == kind


def test_the_kernels_work_is_read_from_reports_and_from_the_summary() -> None:
    """Documents of earlier versions do not tell it."""
    facts = {"job_cpu_avg_cores": 1.0, "cpu_limit_cores": 2.0, "duration_sec": 2.0}
    told = {"job_system_pct": 25.0, "job_calls_mb": 8.0}
    reports: dict[str, list[float | None]] = {
        "elapsed_sec": [0.0, 2.0],
        "job_cpu_sec": [0.0, 2.0],
    }
    columns: dict[str, list[float | None]] = {
        "job_system_sec": [0.0, 0.5],
        "job_calls_mb": [0.0, 8.0],
    }
    for summary, rows, expected in (
        (facts, reports, (None, None)),
        (facts, reports | columns, (0.25, 4.0)),
        (facts | told, {}, (0.25, 4.0)),
    ):
        (span,) = read_spans(NodeDocument(summary=summary, reports=rows))
        assert (span.system, span.calls_mb_s) == expected


def test_reports_become_at_most_a_hundred_spans() -> None:
    """The cost does not grow with the job's length; the whole time is covered."""
    count = 2501
    node = NodeDocument(
        summary={"job_cpu_avg_cores": 1.0, "cpu_limit_cores": 2.0, "duration_sec": 2500.0},
        reports={
            "elapsed_sec": [float(i) for i in range(count)],
            "job_cpu_sec": [float(i) for i in range(count)],
        },
    )
    spans = read_spans(node)
    assert len(spans) <= 101
    assert sum(span.seconds for span in spans) == pytest.approx(2500.0)
    assert {round(span.used, 6) for span in spans} == {1.0}


def test_how_long_ended_processes_waited_is_not_that_of_the_others() -> None:
    """Of workers that end within an interval, only the CPU time is counted."""
    node = NodeDocument(
        summary={
            "job_cpu_avg_cores": 1.0,
            "cpu_limit_cores": 2.0,
            "duration_sec": 2.0,
            "job_run_delay_pct": 40.0,
        },
        reports={
            "elapsed_sec": [0.0, 1.0, 2.0],
            "job_cpu_sec": [0.0, 1.0, 2.0],
            "job_ran_sec": [0.0, 0.9, 0.9],
            "job_run_delay_sec": [0.0, 0.1, 0.102],
        },
    )
    assert [span.run_delay for span in read_spans(node)] == pytest.approx([0.1, 0.4])


def test_a_job_waits_for_what_it_has_written_not_for_what_it_will_write() -> None:
    """It sleeps beside others that call fsync, writes, and then calls fsync itself."""
    node = NodeDocument(
        summary={
            "job_cpu_avg_cores": 0.1, "cpu_limit_cores": 2.0, "duration_sec": 4.0,
            "job_io_read_mb": 0.0, "job_io_write_mb": 50.0, "io_stall_pct": 90.0,
        },
        reports={
            "elapsed_sec": [0.0, 1.0, 2.0, 3.0, 4.0],
            "job_cpu_sec": [0.0, 0.0, 0.0, 0.2, 0.2],
            "job_io_read_mb": [0.0, 0.0, 0.0, 0.0, 0.0],
            "job_io_write_mb": [0.0, 0.0, 0.0, 50.0, 50.0],
            "io_stall_sec": [0.0, 0.9, 1.8, 2.7, 3.6],
        },
    )  # fmt: skip
    disk = [split_time(span)["disk"] for span in read_spans(node)]
    assert disk[:2] == [0.0, 0.0]
    assert min(disk[2:]) > 0.5


@pytest.mark.parametrize(
    ("facts", "starved"),
    [
        ({}, 0.4),
        ({"job_threads_max": 1.0}, 0.1),
        ({"job_threads_max": 2.0}, 0.4),
        ({"job_threads_max": 2.0, "job_ran_beside_pct": 1.0, "job_ran_apart_pct": 0.0}, 0.1),
    ],
)
def test_a_host_takes_no_more_from_a_thread_than_it_lacks(
    facts: dict[str, float], starved: float
) -> None:
    """One that ran for 90% of the time lost at most the rest, whatever the whole machine lost."""
    summary = {
        "job_cpu_avg_cores": 0.9, "cpu_limit_cores": 4.0, "duration_sec": 10.0,
        "cpu_avg_utilization_pct": 60.0, "cpu_steal_pct": 24.0, "job_run_delay_pct": 0.0,
    }  # fmt: skip
    span = summarise_time(Usage({**summary, **facts}, {}))
    assert divide_activity(span)[1] == pytest.approx(starved, abs=0.01)


def _slept(looks: float, blocked: float, *, used: float = 0.0) -> NodeDocument:
    """Return eight seconds in which the node's disks stalled, and the job moved data."""
    times: list[float | None] = [float(i) for i in range(9)]
    moved = [2.0 * (time or 0.0) for time in times]
    return NodeDocument(
        summary={
            "job_cpu_avg_cores": used, "cpu_limit_cores": 2.0, "duration_sec": 8.0,
            "job_io_write_mb": 16.0, "job_looks": looks, "io_stall_pct": 90.0,
            "job_blocked_pct": 100.0 * blocked / max(looks, 1.0),
        },
        reports={
            "elapsed_sec": times,
            "job_cpu_sec": [used * (time or 0.0) for time in times],
            "io_stall_sec": [0.9 * (time or 0.0) for time in times],
            "job_io_read_mb": [0.0] * 9,
            "job_io_write_mb": [*moved],
        },
    )  # fmt: skip


@pytest.mark.parametrize(
    ("looks", "blocked", "most"), [(0, 0, 0.9), (60, 0, 0.05), (60, 54, 0.9), (4, 0, 0.75)]
)
def test_a_job_waits_for_disks_no_longer_than_its_threads_were_seen_to(
    looks: float, blocked: float, most: float
) -> None:
    """One that sleeps between its writes, beside others that call fsync, is in no queue of a disk.

    The curves and the summary alone say the same.
    """
    document = _slept(looks, blocked)
    spans = read_spans(document)
    shares = average_shares(spans, [split_time(span) for span in spans])
    assert shares["disk"] == pytest.approx(most)
    assert shares["disk"] + shares["waiting"] == pytest.approx(1.0)
    alone = summarise_time(Usage(document.summary, document.node))
    assert split_time(alone)["disk"] == pytest.approx(most)


def test_what_a_job_did_while_it_kept_a_cpu_busy_was_not_looked_at() -> None:
    """Its shares stay as they are: there were no looks, and there is no time to limit."""
    spans = read_spans(_slept(10, 0, used=1.0))
    assert all(split_time(span)["disk"] == pytest.approx(0.0) for span in spans)
