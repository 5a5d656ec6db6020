"""The page of a comparison, as data."""

from __future__ import annotations

from typing import Any

from tests.reports import html_samples as samples

from mlflow_perf.reports.comparison_page import build_comparison_page


def row(metric: str, *values: float | None, **more: Any) -> dict[str, Any]:
    """Return one row of a comparison as plain data."""
    return {"component": "train", "node": 0, "metric": metric, "values": values, **more}


def test_a_comparison_counts_what_changed() -> None:
    """The tally, the texts and the signs come from the rows; a missing value has no change."""
    page = build_comparison_page(samples.COMPARISON)
    assert (page.better, page.worse) == (1, 1)
    whole, node = page.steps["train"]
    (duration,) = whole.parts["Time"]
    assert (duration.name, duration.key) == ("duration", "run_duration_sec")
    assert [cell.text for cell in duration.cells] == ["10 min", "8 min"]
    assert [cell.change for cell in duration.cells] == ["", "-20.0%"]
    assert node.node == "0"
    read = next(one for one in node.of_node if one.key == "total_disk_io_read_mb")
    assert [(cell.text, cell.change) for cell in read.cells] == [("0 MB", ""), ("–", "")]


def test_every_run_is_compared_with_the_baseline() -> None:
    """Each column has a change and a verdict of its own, the baseline none."""
    same = {"changes": [0.0, 100.0, -50.0], "verdicts": ["same", "worse", "better"]}
    data = {"runs": ["a", "b", "c"], "rows": [row("duration_sec", 10.0, 20.0, 5.0, **same)]}
    ((group,),) = build_comparison_page(data).steps.values()
    cells = group.parts["Time"][0].cells
    assert [cell.change for cell in cells] == ["", "+100%", "-50.0%"]
    assert [cell.verdict for cell in cells] == ["", "worse", "better"]


def test_unchanged_rows_and_those_of_others_are_folded() -> None:
    """Only what the job did and what differs is open, duration first."""
    same = {"changes": [0.0, 1.0], "verdicts": ["same", "same"]}
    more = {"changes": [0.0, 50.0], "verdicts": ["same", "worse"]}
    rows = [
        row("job_cpu_hours", 1.0, 1.5, **more),
        row("duration_sec", 10.0, 15.0, **more),
        row("job_max_mem_mb", 100.0, 101.0, **same),
        row("others_cpu_avg_cores", 0.1, 1.9, changes=[0.0, 1800.0], verdicts=["", ""]),
    ]
    ((group,),) = build_comparison_page({"runs": ["a", "b"], "rows": rows}).steps.values()
    assert list(group.parts) == ["Time", "CPU of the job"]
    assert [one.key for one in group.same] == ["job_max_mem_mb"]
    assert [one.name for one in group.of_node] == ["CPUs used by others"]


def test_what_the_comparison_counts_as_changed_is_open() -> None:
    """A figure that was 0 has no change in per cent; 2% are none."""
    rows = [
        row("oom_kills", 0.0, 1.0, changes=[None, None], verdicts=["", "worse"], is_changed=True),
        row("job_threads_max", 50.0, 51.0, changes=[0.0, 2.0], verdicts=["", ""], is_changed=False),
    ]
    ((group,),) = build_comparison_page({"runs": ["a", "b"], "rows": rows}).steps.values()
    ((one,),) = group.parts.values()
    assert one.key == "oom_kills"
    assert [one.key for one in group.same] == ["job_threads_max"]


def test_an_operation_that_ran_once_has_one_row() -> None:
    """Its mean, median and longest time are all its total."""
    figures = ("count", "total_ms", "avg_ms", "p50_ms", "p95_ms", "max_ms")
    once = [row(f"ops/load/{f}", 1.0, 1.0 if f == "count" else 9.0) for f in figures]
    often = [row(f"ops/fit/{f}", 7.0, 8.0) for f in figures]
    ((group,),) = build_comparison_page(
        {"runs": ["a", "b"], "rows": [*once, *often]}
    ).steps.values()
    keys = [one.key for rows in (*group.parts.values(), group.same) for one in rows]
    assert [key for key in keys if "load" in key] == ["ops/load/total_ms"]
    assert [key.rpartition("/")[2] for key in keys if "fit" in key] == [
        "count", "total_ms", "avg_ms", "p95_ms", "max_ms",
    ]  # fmt: skip


def test_facts_stand_by_step_with_bars_for_times() -> None:
    """Phases have their seconds, a bar of the longest, and what held them back."""
    data = {
        "runs": ["a", "b"],
        "verdicts": [{"step": "train", "name": "", "values": ["serial", "contended"]}],
        "phases": [
            {"step": "", "name": "load", "values": [1.0, None], "details": ["disk", ""]},
            {"step": "", "name": "fit", "values": [2.0, 4.0], "details": ["serial", "contended"]},
        ],
    }
    facts = build_comparison_page(data).facts
    assert [one.name for one in facts["Held back by"][""]] == ["train"]
    load, fit = facts["Phases"][""]
    assert [(c.text, c.share_pct) for c in load.cells] == [("1 s", 25.0), ("–", None)]
    assert [(c.text, c.detail) for c in fit.cells] == [("2 s", "serial"), ("4 s", "contended")]


def test_very_many_rows_are_cut_and_counted() -> None:
    """A comparison of many runs stays below 2 MB."""
    rows = [row(f"own_{i}", *range(50)) for i in range(1000)]
    page = build_comparison_page({"runs": [str(i) for i in range(50)], "rows": rows})
    assert page.left_out == 600
