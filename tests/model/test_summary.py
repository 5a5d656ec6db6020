"""The summary: exact totals and averages, time-weighted shares, peaks over everything."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlflow_perf.model.series import BoundedSeries
from mlflow_perf.model.summary import RunningSummary, summarise, summarise_run
from mlflow_perf.records import Kind


def row(at: float, busy_pct: float = 0.0, **more: float) -> dict[str, float]:
    """Return a report with a time and a utilisation."""
    return {"elapsed_sec": at, "cpu_pct_per_cpu_avg": busy_pct, **more}


def test_shares_weigh_by_time() -> None:
    """A utilisation held for nine seconds counts nine times one held for a second."""
    summary = summarise([row(0), row(9, 90.0), row(10, 10.0)])
    assert summary["cpu_avg_utilization_over80_pct"] == pytest.approx(90.0)
    assert summary["cpu_avg_utilization_over20_pct"] == pytest.approx(90.0)
    assert summary["cpu_avg_utilization_at100_pct"] == 0.0
    assert summary["cpu_avg_utilization_pct"] == pytest.approx(82.0)


def test_a_full_machine_is_at_100() -> None:
    """99.96% rounds to 100.0, as psutil rounds, and so counts as full."""
    assert summarise([row(0), row(1, 99.96)])["cpu_avg_utilization_at100_pct"] == 100.0
    assert summarise([row(0), row(1, 99.94)])["cpu_avg_utilization_at100_pct"] == 0.0


def test_the_average_comes_from_the_counters_not_from_the_samples() -> None:
    """With counters, the average is their ratio, whatever the sampled values say."""
    reports = [
        row(0, 50.0, cpu_busy_sec=0.0, cpu_ticks_sec=0.0, cpu_limit_cores=4.0),
        row(10, 50.0, cpu_busy_sec=10.0, cpu_ticks_sec=40.0, cpu_limit_cores=4.0),
    ]
    summary = summarise(reports)
    assert summary["cpu_avg_utilization_pct"] == 25.0
    assert summary["node_cpu_hours"] == pytest.approx(40 / 3600)
    assert summary["node_used_cpu_hours"] == pytest.approx(10 / 3600)
    assert summary["node_unused_cpu_hours"] == pytest.approx(30 / 3600)


def test_a_missing_source_is_absent() -> None:
    """Without a source there is no key; nothing becomes 0."""
    assert summarise([row(0), row(1)]).keys().isdisjoint({"total_disk_io_read_mb", "node_count"})
    assert summarise([]) == {}


def test_a_list_in_the_seeds_format() -> None:
    """Reports without a report at their start weigh the same; counters may count from boot."""
    reports = [
        {"timestamp": 100.0 + i, "cpu_pct_per_cpu_avg": busy, "disk_io_read_mb": 1000.0 + i}
        for i, busy in enumerate([0.0, 50.0, 100.0, 50.0])
    ]
    summary = summarise(reports, counters_from_first=True)
    assert summary["cpu_avg_utilization_pct"] == pytest.approx(50.0)
    assert summary["cpu_avg_utilization_over40_pct"] == pytest.approx(75.0)
    assert summary["total_disk_io_read_mb"] == 3.0
    assert summary["duration_sec"] == 3.0


def test_reports_an_hour_apart_make_an_hour() -> None:
    """The duration of a list of reports is what its times span; nothing is added to it."""
    reports = [
        {"timestamp": at, "cpu_pct_per_cpu_avg": 50.0, "cpu_limit_cores": 4.0} for at in (0, 3600)
    ]
    summary = summarise(reports)
    assert summary["duration_sec"] == 3600.0
    assert summary["node_cpu_hours"] == pytest.approx(4.0)
    assert summary["node_unused_cpu_hours"] == pytest.approx(2.0)


@pytest.mark.parametrize("missing", [float("nan"), float("inf"), None, "much"])
def test_a_value_that_is_no_number_is_missing(missing: object) -> None:
    """It spoils neither the mean nor the hours of the other reports."""
    reports = [
        {"timestamp": at, "cpu_pct_per_cpu_avg": busy, "cpu_limit_cores": 4.0}
        for at, busy in ((0, 25.0), (1, missing), (2, 75.0))
    ]
    summary = summarise(reports)  # type: ignore[arg-type]  # what a caller may still pass
    assert summary["cpu_avg_utilization_pct"] == pytest.approx(50.0)
    assert summary["max_t_cpu_pct_per_cpu_avg"] == 75.0
    assert summary["node_unused_cpu_hours"] == pytest.approx(summary["node_cpu_hours"] / 2)


def test_one_report_alone() -> None:
    """A single report gives its levels and no duration."""
    summary = summarise([{"cpu_pct_per_cpu_avg": 90.0, "mem_percent": 5.0}])
    assert summary["max_t_mem_percent"] == 5.0
    assert summary["cpu_avg_utilization_over80_pct"] == 100.0
    assert "duration_sec" not in summary


def test_columns_of_a_users_reader_become_metrics() -> None:
    """A gauge that is not in the table has its mean and peak, a counter its total."""
    kinds = {"queue_jobs": Kind.GAUGE, "pages_total": Kind.COUNTER}
    summary = RunningSummary(kind=lambda name: kinds.get(name, Kind.GAUGE))
    summary.add({"elapsed_sec": 0.0, "queue_jobs": 0.0, "pages_total": 0.0})
    summary.add({"elapsed_sec": 2.0, "queue_jobs": 6.0, "pages_total": 8.0})
    metrics = summary.metrics()
    assert metrics["avg_queue_jobs"] == 6.0
    assert metrics["max_t_queue_jobs"] == 6.0
    assert metrics["total_pages_total"] == 8.0


@given(st.lists(st.floats(0, 100), min_size=2, max_size=200), st.integers(4, 30))
def test_a_thinned_list_gives_the_same_peaks_totals_and_means(
    levels: list[float], max_length: int
) -> None:
    """One code path: from the merged rows come the peaks, totals and means of the live stream."""
    series, live = BoundedSeries(max_length), RunningSummary()
    for second, level in enumerate(levels):
        report = {"elapsed_sec": float(second), "mem_percent": level, "disk_io_read_mb": second / 2}
        series.append(report)
        live.add(report)
    again = summarise(series.rows())
    assert again["max_t_mem_percent"] == live.metrics()["max_t_mem_percent"]
    assert again["total_disk_io_read_mb"] == live.metrics()["total_disk_io_read_mb"]
    assert again["duration_sec"] == pytest.approx(live.metrics()["duration_sec"])


def test_cost_is_the_price_times_the_hours() -> None:
    """Half an hour at 4 per hour is 2; what the CPUs did not use of it is unused."""
    rows = [{"elapsed_sec": t, "cpu_pct_per_cpu_avg": 25.0} for t in (0.0, 1800.0)]
    metrics = summarise(rows, facts={"node_price": 4.0})
    assert metrics["node_cost"] == pytest.approx(2.0)
    assert metrics["node_unused_cost"] == pytest.approx(1.5)
    assert "node_cost" not in summarise(rows)
    rows = [{**row, "gpu_utilization_pct": 90.0} for row in rows]
    assert summarise(rows, facts={"node_price": 4.0})["node_unused_cost"] == pytest.approx(0.2)
    assert summarise_run([metrics] * 3)["run_cost"] == pytest.approx(6.0)


def test_memory_that_grows_has_its_slope_per_minute() -> None:
    """1 MB a second is 60 MB a minute, at uneven times too; a level has none."""
    rows = [{"elapsed_sec": s, "job_mem_mb": 50.0 + s} for s in (0.0, 1.0, 2.5, 3.0, 7.0, 8.0)]
    metrics = summarise(rows)
    assert metrics["job_mem_growth_mb_per_min"] == pytest.approx(60.0, rel=0.1)
    level = summarise([{**row, "job_mem_mb": 50.0} for row in rows])
    assert level["job_mem_growth_mb_per_min"] == pytest.approx(0.0, abs=1e-9)
    assert "job_mem_growth_mb_per_min" not in summarise(rows[:1])
    # Half a second of loading 100 MB is no 12,000 MB a minute.
    assert "job_mem_growth_mb_per_min" not in summarise(rows[:4])


def test_memory_of_a_moment_has_no_growth() -> None:
    """4 kB less after 0.6 ms, or after the last tenth of a second, is no 400 MB/min."""
    rows = [(0.0, 170.0), (0.2, 170.0), (0.2006, 169.996)]
    short = summarise([{"elapsed_sec": s, "job_mem_mb": mb} for s, mb in rows])
    assert "job_mem_growth_mb_per_min" not in short
    rows = [(0.0, 170.0), (1.0, 170.0), (1.1, 169.0)]
    tail = summarise([{"elapsed_sec": s, "job_mem_mb": mb} for s, mb in rows])
    assert "job_mem_growth_mb_per_min" not in tail


def test_runnable_threads_follow_from_the_wait_for_a_cpu() -> None:
    """Twelve threads on two CPUs wait for five sixths of the time."""
    report = {"elapsed_sec": 10.0, "job_cpu_sec": 20.0, "job_ran_sec": 19.0}
    metrics = summarise([report | {"job_run_delay_sec": 95.0}])
    assert metrics["job_run_delay_pct"] == pytest.approx(500 / 6)
    assert metrics["job_runnable_threads_avg"] == pytest.approx(12.0)
