"""The records of a workflow's steps."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlflow_perf.analysis.workflow_steps import Step, StepNode, sum_held_cpu_hours

NODES = (StepNode(0, 10.0, 5.0, {"rows": 2.0}), StepNode(1, 12.0, 8.0, {"rows": 3.0}))


def test_a_metric_is_summed_over_the_nodes() -> None:
    """A node without the metric adds nothing."""
    step = Step("train", 8.0, 20.0, nodes=(*NODES, StepNode(2, 9.0, 1.0)))
    assert step.total("rows") == 5.0
    assert step.total("bytes") == 0.0
    assert step.ended == 28.0


@pytest.mark.parametrize(
    ("nodes", "duration_sec", "measured_sec"),
    [(NODES, 20.0, 10.0), (NODES, 4.0, 4.0), ((), 9.0, 0.0)],
)
def test_the_measured_time_is_that_of_all_blocks(
    nodes: tuple[StepNode, ...], duration_sec: float, measured_sec: float
) -> None:
    """It lasts from the first block's start to the last one's end, at most as long as the step."""
    assert Step("train", 8.0, duration_sec, nodes=nodes).measured_sec == measured_sec


@pytest.mark.parametrize(
    ("status", "broken"), [("FAILED", True), ("KILLED", True), ("RUNNING", False), (None, False)]
)
def test_failed_and_killed_steps_are_broken(status: str | None, broken: bool) -> None:
    """A step that still runs, or whose status is unknown, is not broken."""
    assert Step("train", 0.0, 1.0, status=status).is_broken == broken


@given(
    st.lists(st.tuples(st.integers(0, 20), st.integers(1, 20), st.integers(1, 8)), max_size=6),
    st.sampled_from([0, 6, 99]),
)
def test_the_cpus_of_a_host_count_once(steps: list[tuple[int, int, int]], host_cores: int) -> None:
    """At every second the limits of the steps that run then add up to the host's CPUs at most."""
    made = [
        Step(str(i), float(start), float(length), nodes=(
            StepNode(0, float(start), 1.0, {"cpu_limit_cores": float(cores)}, "host",
                     float(host_cores)),))
        for i, (start, length, cores) in enumerate(steps)
    ]  # fmt: skip
    running = [[c for start, length, c in steps if start <= t < start + length] for t in range(40)]
    seconds = sum(min(max([host_cores, *limits]), sum(limits)) for limits in running)
    assert sum_held_cpu_hours(made) == pytest.approx(seconds / 3600)
