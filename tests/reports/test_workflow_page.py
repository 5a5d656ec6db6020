"""The page of a workflow, as data."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.reports import html_samples as samples

from mlflow_perf.reports.workflow_page import build_workflow_page


def test_the_gantt_places_bars_in_time() -> None:
    """A bar is drawn where its step ran, after its waiting time, even if figures are missing."""
    flow = build_workflow_page(samples.WORKFLOW)
    train = next(bar for bar in flow.bars if bar.label == "train")
    assert train.left == pytest.approx(100 * 220 / 900, abs=0.01)
    assert train.width == pytest.approx(100 * 480 / 900, abs=0.01)
    assert train.waited == pytest.approx(100 * 30 / 900, abs=0.01)
    assert train.block_left == pytest.approx(100 * 240 / 900, abs=0.01)
    assert train.block_width == pytest.approx(100 * 450 / 900, abs=0.01)
    assert "start-up 20 s, measured 7 min 30 s, end 10 s" in train.text
    assert len(train.nodes) == 4
    assert flow.status == "FAILED"
    assert build_workflow_page({}).bars == []
    assert build_workflow_page({"steps": [{"name": "x"}, "odd"]}).bars[0].width == 0.0


@pytest.mark.parametrize(
    ("own", "shown"),
    [("FAILED", "FAILED"), ("KILLED", "KILLED"), ("RUNNING", "FINISHED"), (None, "FINISHED")],
)
def test_a_workflow_can_fail_outside_its_steps(own: str | None, shown: str) -> None:
    """Its own end counts too; a runner draws the report before the whole has ended."""
    steps = [{"name": "a", "started": 1.0, "duration_sec": 1.0, "status": "FINISHED"}]
    assert build_workflow_page({"steps": steps, "status": own}).status == shown


def test_a_workflow_that_ended_well_is_no_failure_of_a_step() -> None:
    """A step may have been tried again, or its end ignored: the status is that of MLflow's run."""
    steps = [{"name": "a", "started": 1.0, "duration_sec": 1.0, "status": "FAILED"}]
    flow = build_workflow_page({"steps": steps, "status": "FINISHED"})
    assert (flow.status, flow.rows[0]["status"]) == ("FINISHED", "FAILED")
    assert build_workflow_page({"steps": steps, "status": "RUNNING"}).status == "FAILED"


def test_what_mlflow_perf_took_itself_is_drawn_before_the_waiting() -> None:
    """A workflow without the figure has neither a bar nor a tile for it."""
    first = {"name": "a", "started": 100.0, "duration_sec": 10.0}
    later = {"name": "b", "started": 120.0, "duration_sec": 80.0, "waited_sec": 4.0}
    plain = build_workflow_page({"steps": [first, later]})
    flow = build_workflow_page({"steps": [first, {**later, "reporting_sec": 6.0}]})
    assert (flow.bars[1].waited, flow.bars[1].reporting) == (4.0, 6.0)
    assert flow.bars[1].text.startswith("waited 4 s, mlflow-perf itself 6 s, ran")
    assert [tile.value for tile in flow.tiles if tile.label == "mlflow-perf itself"] == ["6 s"]
    assert "mlflow-perf itself" not in [tile.label for tile in plain.tiles]
    assert plain.bars[1].reporting == 0.0


@given(st.lists(st.tuples(st.floats(0, 1e9), st.floats(0, 1e6), st.floats(0, 1e6)), max_size=6))
def test_bars_stay_on_the_axis(steps: list[tuple[float, float, float]]) -> None:
    """No bar begins before the axis or ends after it."""
    data = [
        {"name": str(i), "started": s, "duration_sec": d, "waited_sec": w}
        for i, (s, d, w) in enumerate(steps)
    ]
    flow = build_workflow_page({"steps": data})
    for bar in flow.bars:
        assert bar.left - bar.waited >= 0
        assert bar.left + bar.width <= 100.01
    assert all(0 <= place <= 100 for place, _ in flow.ticks)


def test_each_step_has_verdict_parameters_and_used_of_held() -> None:
    """As Nextflow's report: what each step used of what it held, as text and as a bar."""
    step = {
        "name": "train",
        "started": 0.0,
        "duration_sec": 30.0,
        "bottleneck": "cpu",
        "advice": "The job kept one CPU busy.",
        "params": {"threads": "2", "data": "/work/run-1/out"},
        "critical": True,
        "nodes": [
            {
                "started": 5.0,
                "duration_sec": 20.0,
                "summary": {
                    "duration_sec": 20.0,
                    "cpu_limit_cores": 4.0,
                    "job_cpu_avg_cores": 1.0,
                    "job_max_mem_mb": 512.0,
                    "mem_limit_mb": 2048.0,
                },
            }
        ],
    }
    flow = build_workflow_page({"steps": [step], "critical_path": ["train"]})
    (row,) = flow.rows
    assert (row["verdict"], row["advice"]) == ("cpu", "The job kept one CPU busy.")
    assert row["params"] == [("threads", "2"), ("data", "out")]
    texts = {cell["text"]: cell["share"] for cell in row["cells"]}
    assert texts["1 of 4"] == 25.0
    assert texts["512 MB of 2 GB"] == 25.0
    assert flow.critical_path == [("train", "30 s", "100%")]
    assert flow.bars[0].share == "100%"
