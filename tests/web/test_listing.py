"""The table of runs as data: headings, cells and groups."""

from __future__ import annotations

import time
from typing import Any

from mlflow_perf.tracking.perf_run import PerfRun
from mlflow_perf.web.choice import Choice
from mlflow_perf.web.fields import read_field
from mlflow_perf.web.listing import build_listing
from mlflow_perf.web.table import Found


def test_a_column_without_figures_is_left_out() -> None:
    """Only columns with a value are shown; a node's figure replaces a missing figure of the run."""
    run = PerfRun("r", run_id="1" * 32, metrics={"duration_sec": 90.0, "run_cpu_hours": 2.0})
    listing = build_listing(Found([run]), Choice(sort="run_cpu_hours"), {})
    shown = [(head["label"], head["unit"]) for head in listing.heads]
    assert shown[-2:] == [("Duration", ""), ("CPU time held", "CPU h")]
    assert [cell.text for cell in listing.rows[0]["cells"]] == ["1 min 30 s", "2.00"]
    assert listing.heads[-1]["sorted"] == "ascending"
    assert "sort=-run_cpu_hours" in listing.heads[-1]["address"]


def _run(number: int, **more: Any) -> PerfRun:
    return PerfRun(f"r{number}", run_id=f"{number:032x}", **{"name": f"r{number}", **more})


def test_a_column_has_one_unit_and_bars_to_its_largest_value() -> None:
    """CPU times of a column share a unit that the heading names; a bar is a share of the largest.

    Texts have no bar, and long ones are cut.
    """
    runs = [
        _run(1, metrics={"run_cpu_hours": 0.01}, params={"leaves": "31", "note": "x" * 500}),
        _run(2, metrics={"run_cpu_hours": 0.04, "auc": 0.91}, params={"leaves": "62"}),
    ]
    columns = [read_field(name) for name in ("metrics.auc", "params.leaves", "params.note")]
    found = Found(runs, columns=[field for field in columns if field])
    listing = build_listing(found, Choice(), {})
    assert [head["unit"] for head in listing.heads[5:]] == ["CPU s", "", "", ""]
    held, auc, leaves, note = ([row["cells"][i] for row in listing.rows] for i in range(4))
    assert [(c.text, c.share) for c in held] == [("36", 25), ("144", 100)]
    assert [(c.text, c.share) for c in auc] == [("–", None), ("0.9100", None)]
    assert [(c.text, c.share, c.is_number) for c in leaves] == [("31", 50, True), ("62", 100, True)]
    assert (len(note[0].text), len(note[0].title), note[0].is_number) == (60, 300, False)


def test_groups_have_sums_and_means() -> None:
    """Grouped rows have the sum of hours, the mean of other figures, and the count of failures."""
    runs = [
        _run(1, status="FAILED", params={"b": "x"}, metrics={"run_cpu_hours": 1.0, "auc": 0.5}),
        _run(2, status="FINISHED", params={"b": "y"}, metrics={"run_cpu_hours": 4.0}),
        _run(3, status="FINISHED", params={"b": "x"}, metrics={"run_cpu_hours": 2.0, "auc": 0.7}),
    ]
    auc = read_field("auc")
    assert auc is not None
    groups = build_listing(Found(runs, columns=[auc]), Choice(group="params.b"), {}).groups
    said = [(g.name, g.shown, [(c.text, c.title) for c in g.cells]) for g in groups]
    assert said == [
        ("x", "2 runs, 1 failed", [("3.00", "sum"), ("0.6000", "mean")]),
        ("y", "1 run", [("4.00", "sum"), ("", "")]),
    ]


def test_a_running_job_shows_how_long_it_has_run() -> None:
    """A run without figures of its own shows its age, and what it uses now: that is no mean."""
    live = {"system/job_cpu_cores": 1.5, "system/cpu_utilization_percentage": 90.0}
    run = _run(1, status="RUNNING", started=time.time() - 90, metrics=live)
    listing = build_listing(Found([run]), Choice(), {})
    assert [head["label"] for head in listing.heads[5:]] == ["Duration", "Job's CPUs"]
    duration, cpus = (cell.text for cell in listing.rows[0]["cells"])
    assert duration.startswith("1 min 3")
    assert cpus == "1.50 now"
    other = _run(2, status="FINISHED", metrics={"run_job_cpu_avg_cores": 3.0})
    (group,) = build_listing(Found([run, other]), Choice(group="component"), {}).groups
    assert [cell.text for cell in group.cells][1:] == ["3.00"]


def test_a_workflow_without_a_verdict_quotes_its_longest_step() -> None:
    """Which step took longest, its verdict and its advice; a verdict of its own goes first."""
    steps = [
        _run(2, name="prep", started=10.0, ended=20.0, tags={"mlflow_perf.bottleneck": "cpu"}),
        _run(3, name="train", started=20.0, ended=90.0, tags={
            "mlflow_perf.bottleneck": "disk", "mlflow_perf.advice": "Read less."}),
    ]  # fmt: skip
    own = _run(4, tags={"mlflow_perf.bottleneck": "idle", "mlflow_perf.advice": "Ask for less."})
    found = Found([_run(1), own], steps={f"{n:032x}": steps for n in (1, 4)})
    rows = build_listing(found, Choice(), {}).rows
    said = [(row["bottleneck"], row["advice"]) for row in rows]
    assert said == [("", "train (longest step): disk. Read less."), ("idle", "Ask for less.")]


def test_counts_are_whole_numbers() -> None:
    """A column of whole numbers has no decimals: 3 nodes, not 3.000."""
    runs = [
        _run(i, metrics={"run_node_count": n, "node_count": n}) for i, n in ((1, 1.0), (2, 3.0))
    ]
    listing = build_listing(Found(runs), Choice(), {})
    assert [row["cells"][-1].text for row in listing.rows] == ["1", "3"]
