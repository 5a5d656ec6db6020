"""What stands out in a workflow."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from tests.analysis.workflow_samples import PARENT, built, step

from mlflow_perf.analysis.workflow_findings import find_stragglers
from mlflow_perf.analysis.workflow_steps import StepNode
from mlflow_perf.tracking.perf_run import PerfRun

MakeRun = Callable[..., PerfRun]


def test_the_first_change_to_make_is_named(make_run: MakeRun) -> None:
    """The longest step of the critical path comes first, with its verdict."""
    slow = make_run(
        {"duration_sec": 50.0},
        component="slow",
        started=110.0,
        ended=160.0,
        tags={"mlflow_perf.advice": "It waited for disks.", "mlflow_perf.bottleneck": "disk"},
    )
    workflow = built(step("a", 100, 110), slow)
    assert workflow.findings[0] == (
        "Change first: slow, on the critical path with 50 s, 83% of the workflow. "
        "It waited for disks."
    )
    assert "Without performance data: a" in workflow.findings[-1]


def test_a_task_that_was_tried_again_did_finish() -> None:
    """An imported workflow has a run for each attempt; what ended well did not fail."""
    first, last = step("B", 100, 110, status="FAILED"), step("B", 112, 160)
    whole = built(first, last, parent=replace(PARENT, status="FINISHED"))
    assert whole.findings[0] == "Did not finish, and was tried again: B."
    failed = built(first, last, parent=replace(PARENT, status="FAILED"))
    assert "Did not finish: B (FAILED)." in failed.findings


def test_waiting_is_a_finding() -> None:
    """Long waiting on the critical path is named, with the step before which it occurred."""
    workflow = built(step("a", 100, 120), step("b", 140, 160))
    assert any("Waiting took 20 s" in text and "before b" in text for text in workflow.findings)


def test_what_follows_the_last_step_is_a_finding(make_run: MakeRun) -> None:
    """Unless the parent is measured itself, nothing else tells where that time went."""
    steps = step("a", 100, 110), step("b", 110, 130)
    (said,) = [text for text in built(*steps).findings if "after the last step" in text]
    assert said.startswith("30 s (50% of the workflow) passed after the last step had ended")
    measured = make_run({"duration_sec": 60.0}, started=100.0, ended=160.0)
    assert "after the last" not in " ".join(built(*steps, parent=measured).findings)
    assert "after the last" not in " ".join(built(*steps, step("c", 130, 159)).findings)


def test_a_gap_is_no_certain_waiting_where_a_note_of_the_group_is_lost(make_run: MakeRun) -> None:
    """mlflow-perf itself takes time beside each step that it measures."""
    runs = [
        make_run({"duration_sec": 20.0}, component=name, started=begun, ended=begun + 20.0)
        for name, begun in (("a", 100.0), ("b", 140.0))
    ]
    lost = replace(PARENT, tags={"mlflow_perf.group": "demo"})
    (said,) = [text for text in built(*runs, parent=lost).findings if "Waiting" in text]
    assert said.startswith("Waiting took up to 20 s of the critical path")
    assert said.endswith("how much of the time before b mlflow-perf itself took.")
    whole = replace(
        lost, tags={**lost.tags, "mlflow_perf.reporting_ms.0": f"{_note(runs[0])} {_note(runs[1])}"}
    )
    (said,) = [text for text in built(*runs, parent=whole).findings if "Waiting" in text]
    assert said.startswith("Waiting took 20 s of")


def _note(run: PerfRun) -> str:
    return f"{str(run.run_id)[:12]}:1:1"


def test_time_outside_the_measured_blocks_is_a_finding(make_run: MakeRun) -> None:
    """A step of 60 s whose block took 10 s spent the rest starting and ending."""
    short = make_run({"duration_sec": 10.0}, component="short", started=100.0, ended=160.0)
    workflow = built(short)
    assert workflow.findings[0].startswith("50 s of the steps' 1 min passed outside")


def test_attempts_before_the_last_one_are_named(make_run: MakeRun) -> None:
    """A pipeline's step has the figures of its last attempt, and the time of all."""
    once = make_run({"duration_sec": 10.0}, component="once", started=100.0, ended=160.0)
    twice = replace(once, tags={**once.tags, "mlflow_perf.attempts": "2"})
    tried, outside, *_ = built(twice).findings
    assert tried.startswith("Tried more than once: once (2 attempts); the figures are")
    assert "(starting, importing, ending, earlier attempts)" in outside


def test_failed_steps_come_first() -> None:
    """Failed steps are the first finding."""
    workflow = built(step("a", 100, 120), step("b", 120, 160, status="FAILED"))
    assert workflow.findings[0] == "Did not finish: b (FAILED)."
    assert workflow.totals["failed_steps"] == 1.0


def test_stragglers_and_imbalance_are_named(make_run: MakeRun) -> None:
    """A node that takes longer than the others, or does more than its share, is named."""
    nodes = [{"duration_sec": 10.0, "node_used_cpu_hours": 1.0} for _ in range(3)]
    late = {"duration_sec": 30.0, "node_used_cpu_hours": 4.0}
    workflow = built(make_run(*nodes, late, component="mpi", started=100.0, ended=160.0))
    text = " ".join(workflow.findings)
    assert "mpi: node 3 (30 s) took longer than the others (10 s)" in text
    assert "node 3 did 129% more work than the mean of the 4 nodes" in text


def test_what_others_did_on_a_node_is_no_work_of_the_step(make_run: MakeRun) -> None:
    """Two ranks that slept, one of them beside somebody's job, share nothing unevenly."""
    nodes = [
        {"duration_sec": 60.0, "node_used_cpu_hours": hours, "job_cpu_hours": own}
        for hours, own in ((0.001, 1e-5), (0.03, 2e-5))
    ]
    run = make_run(*nodes, component="mpi", started=100.0, ended=160.0)
    assert "more work" not in " ".join(built(run).findings)
    busy = [{**node, "job_cpu_hours": own} for node, own in zip(nodes, (0.03, 0.01), strict=True)]
    run = make_run(*busy, component="mpi", started=100.0, ended=160.0)
    assert "node 0 did 50% more work than the mean" in " ".join(built(run).findings)


def test_a_step_that_never_ran_is_neither_slow_nor_unmeasured() -> None:
    """It says that it never ran, and no more."""
    unrun = step("late", 160, 160, after="b", status="SKIPPED")
    workflow = built(step("a", 100, 130), step("b", 100, 101, status="FAILED"), unrun)
    assert workflow.findings[:2] == ("Did not finish: b (FAILED).", "Never ran: late.")
    assert "late" not in " ".join(workflow.findings[2:])


def test_of_two_nodes_the_slower_is_the_straggler() -> None:
    """The median of two is the faster one, so the slower one can be a straggler."""
    nodes = [StepNode(0, 0.0, 10.0), StepNode(1, 0.0, 20.0)]
    assert [node.index for node in find_stragglers(nodes)] == [1]
    assert find_stragglers(nodes[:1]) == []


def test_a_straggler_is_held_against_the_others(make_run: MakeRun) -> None:
    """The straggler's own time is not part of the time of the others."""
    nodes = [{"duration_sec": 10.0}, {"duration_sec": 20.0}]
    workflow = built(make_run(*nodes, component="mpi", started=100.0, ended=120.0))
    assert "mpi: node 1 (20 s) took longer than the others (10 s)." in workflow.findings
