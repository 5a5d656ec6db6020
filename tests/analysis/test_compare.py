"""Comparison: any number of runs or workflows, step by step and node by node."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlflow_perf.analysis import compare as module
from mlflow_perf.analysis.compare import calculate_change_pct, compare
from mlflow_perf.errors import RunNotFoundError, SettingError
from mlflow_perf.model.document import NodeDocument, PerfDocument
from mlflow_perf.tracking.perf_run import PerfRun

MakeRun = Callable[..., PerfRun]

NODE = {"duration_sec": 10.0, "cpu_avg_utilization_pct": 50.0, "node_cpu_hours": 1.0}


def rows(comparison: module.Comparison) -> dict[tuple[str, int | None, str], module.Row]:
    return {(row.component, row.node, row.metric): row for row in comparison.rows}


def test_values_stand_in_the_order_of_the_runs(make_run: MakeRun) -> None:
    """A row holds one value per run; the change is that of the last against the first."""
    runs = [make_run({**NODE, "duration_sec": d}, label=str(d)) for d in (10.0, 30.0, 15.0)]
    row = rows(compare(runs))["train", 0, "duration_sec"]
    assert row.values == (10.0, 30.0, 15.0)
    assert row.change_pct == 50.0
    assert row.verdict == "worse"
    assert row.unit == "s"


def test_a_direction_decides_what_is_better(make_run: MakeRun) -> None:
    """More use of a GPU is better, more time is worse; without a direction there is no verdict."""
    old = {**NODE, "gpu_avg_utilization_pct": 50.0, "x": 1.0}
    new = {"duration_sec": 20.0, "node_cpu_hours": 1.02, "gpu_avg_utilization_pct": 90.0, "x": 2.0}
    found = rows(compare([make_run(old), make_run(new)]))
    assert found["train", 0, "duration_sec"].verdict == "worse"
    assert found["train", 0, "gpu_avg_utilization_pct"].verdict == "better"
    assert found["train", 0, "node_cpu_hours"].verdict == "same"
    assert found["train", 0, "x"].verdict == ""


def test_what_a_source_cannot_resolve_is_the_same(make_run: MakeRun) -> None:
    """Half a megabyte more is not "+100%, worse"."""
    old, new = {"job_io_read_mb": 0.5}, {"job_io_read_mb": 1.0}
    found = rows(compare([make_run(old), make_run(new)]))
    assert found["train", 0, "job_io_read_mb"].verdict == "same"


def test_nodes_are_matched_by_index_and_runs_of_several_have_figures_of_the_whole(
    make_run: MakeRun,
) -> None:
    """A missing node has no value; the figures of the run as a whole have no node."""
    found = rows(compare([make_run(NODE), make_run(NODE, NODE)]))
    assert found["train", 1, "duration_sec"].values == (None, 10.0)
    assert found["train", 1, "duration_sec"].change_pct is None
    assert found["train", None, "run_cpu_hours"].values == (1.0, 2.0)


def test_different_hardware_is_said_aloud(make_run: MakeRun) -> None:
    """A note names the step and what differed; equal hardware needs none."""
    small = make_run({**NODE, "cpu_limit_cores": 4.0}, facts={"cpu_count": 4})
    large = make_run({**NODE, "cpu_limit_cores": 16.0}, facts={"cpu_count": 16})
    (note,) = compare([small, large]).notes
    assert note == ("Different hardware for train: cpu_count 4 / 16; cpu_limit_cores 4 / 16.")
    assert compare([small, small]).notes == ()


def test_runs_of_different_components_are_matched_and_it_is_said(make_run: MakeRun) -> None:
    """Two named runs are compared even if their components differ."""
    comparison = compare([make_run(NODE, component="v1"), make_run(NODE, component="v2")])
    assert {row.component for row in comparison.rows} == {"v1"}
    assert "different components: v1, v2" in comparison.notes[0]


def test_unfinished_runs_are_mentioned(make_run: MakeRun) -> None:
    """The figures of a failed run are not those of the whole work."""
    comparison = compare([make_run(NODE), make_run(NODE, label="broken", status="FAILED")])
    assert "broken (FAILED)" in comparison.notes[0]


def test_workflows_are_matched_step_by_step(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The children of parent runs are compared by step, and a missing step is named."""
    steps = {
        "old": [make_run(NODE, component="prepare"), make_run(NODE, component="train")],
        "new": [make_run({**NODE, "duration_sec": 5.0}, component="train")],
    }
    monkeypatch.setattr(
        "mlflow_perf.analysis.step_runs.find_children", lambda run, **_: steps[run.label]
    )
    parents = [PerfRun("old", run_id="old"), PerfRun("new", run_id="new")]
    comparison = compare(parents)
    found = rows(comparison)
    assert found["train", 0, "duration_sec"].values == (10.0, 5.0)
    assert found["prepare", 0, "duration_sec"].values == (10.0, None)
    assert "The step prepare is not in new." in comparison.notes
    assert comparison.labels == ("old", "new")


def test_a_run_without_figures_is_named(make_run: MakeRun, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run without data cannot be compared; the message says if it still runs."""
    monkeypatch.setattr("mlflow_perf.analysis.step_runs.find_children", lambda run, **_: [])
    with pytest.raises(RunNotFoundError, match="empty holds no performance data"):
        compare([make_run(NODE), PerfRun("empty", run_id="e")])
    with pytest.raises(RunNotFoundError, match="now is RUNNING: its report is logged at the end"):
        compare([PerfRun("now", run_id="e", status="RUNNING")])
    with pytest.raises(SettingError, match="Name the runs"):
        compare([])


def test_files_are_compared_without_a_store(tmp_path: Path) -> None:
    """Paths work like run ids."""
    paths = []
    for i in range(2):
        node = NodeDocument({"index": 0}, component="c", summary={"duration_sec": 1.0 + i})
        paths.append(PerfDocument({0: node}).save(tmp_path / f"{i}.json"))
    assert compare(paths).rows[0].values == (1.0, 2.0)


def test_markdown_shows_names_as_they_are(make_run: MakeRun) -> None:
    """No name can add a column, a tag or a link to the table."""
    name = "a|b <img src=x> [x](y) `c`\n| d"
    text = compare(
        [make_run({name: 1.0}, component=name), make_run({name: 9.0}, label=name, component=name)]
    ).to_markdown()
    line = next(line for line in text.splitlines() if "+800%" in line)
    bars = [i for i, c in enumerate(line) if c == "|" and line[i - 1] != "\\"]
    assert len(bars) == 7
    # In the table's code span it stands as it is, where it is no tag.
    assert text.count("\\<img") == text.count("<img") - 1


def test_only_what_differs_is_shown(make_run: MakeRun) -> None:
    """Markdown leaves out unchanged rows unless all are wanted."""
    comparison = compare([make_run(NODE), make_run({**NODE, "duration_sec": 20.0})])
    assert "node_cpu_hours" not in comparison.to_markdown()
    assert "node_cpu_hours" in comparison.to_markdown(everything=True)
    assert "Nothing differs." in compare([make_run(NODE), make_run(NODE)]).to_markdown()


def test_of_many_nodes_the_whole_is_shown(make_run: MakeRun) -> None:
    """A step on four nodes is shown by its run-level figures; every row is in the data."""
    slow = {**NODE, "duration_sec": 20.0}
    comparison = compare([make_run(NODE, NODE, NODE, NODE), make_run(slow, slow, slow, slow)])
    assert {row.node for row in comparison.headlines()} == {None}
    assert {row.node for row in comparison.changed()} == {None, 0, 1, 2, 3}


def test_the_frame_has_a_column_per_run(make_run: MakeRun) -> None:
    """A notebook gets the values by step, node and metric."""
    frame = compare([make_run(NODE, label="a"), make_run(NODE, label="b")]).to_frame()
    assert list(frame.columns) == ["a", "b"]
    assert frame.loc[("train", 0, "duration_sec"), "a"] == 10.0


def test_better_and_worse_rows_are_sorted_by_size(make_run: MakeRun) -> None:
    """The largest change comes first."""
    new = {"duration_sec": 11.0, "cpu_avg_utilization_pct": 50.0, "node_cpu_hours": 3.0}
    comparison = compare([make_run(NODE), make_run(new)])
    assert [row.metric for row in comparison.worse] == ["node_cpu_hours", "duration_sec"]
    assert comparison.better == []


@given(
    st.one_of(st.none(), st.floats(allow_nan=False)),
    st.one_of(st.none(), st.floats(allow_nan=False)),
)
def test_a_change_is_finite_or_none(base: float | None, new: float | None) -> None:
    """Whatever the values, the change is finite or None, and its sign is right."""
    change = calculate_change_pct(base, new)
    if change is None:
        return
    assert base is not None
    assert new is not None
    assert math.isfinite(change)
    assert (change > 0) <= (new > base)
    assert (change < 0) <= (new < base)


def test_figures_of_others_are_not_graded() -> None:
    """Figures of the whole node are shown, after the job's own, without a grade."""
    of_node = {"max_t_mem_percent": 20.0, "total_net_io_ext_recv_mb": 1.0, "iowait_pct": 1.0,
               "cpu_avg_utilization_pct": 30.0, "node_unused_cpu_hours": 1.0}  # fmt: skip
    own = {"duration_sec": 10.0, "job_cpu_hours": 1.0, "job_max_mem_mb": 100.0}
    runs = [
        PerfRun(str(i), document=PerfDocument({0: NodeDocument(
            summary={key: value * factor for key, value in {**of_node, **own}.items()})}))
        for i, factor in enumerate((1.0, 3.0))
    ]  # fmt: skip
    rows = compare(runs).rows
    assert {row.metric for row in rows if row.verdict == "worse"} == own.keys()
    assert [row.metric for row in rows][: len(own)] == list(own)
