"""A workflow as plain data: steps, critical path, waiting, totals."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.analysis.workflow_samples import PARENT, built, step

from mlflow_perf.analysis.workflow import build_workflow
from mlflow_perf.model.document import NodeDocument, PerfDocument
from mlflow_perf.tracking.perf_run import PerfRun

MakeRun = Callable[..., PerfRun]


def test_the_critical_path_follows_what_each_step_waited_for() -> None:
    """Going back from the last end, each link is the dependency that ended last."""
    workflow = built(
        step("prepare", 100, 110, after=""),
        step("fast", 111, 115, after="prepare"),
        step("slow", 112, 150, after="prepare"),
        step("merge", 152, 160, after="fast,slow"),
    )
    assert workflow.critical_path == ("prepare", "slow", "merge")
    assert [s.critical for s in workflow.steps] == [True, False, True, True]
    assert [s.waited_sec for s in workflow.steps] == [0.0, 1.0, 2.0, 2.0]
    assert workflow.duration_sec == 60.0


def test_a_step_that_never_ran_is_no_end_of_the_workflow() -> None:
    """A pipeline notes such steps at its own end, whenever they could have begun."""
    unrun = step("unrun", 159.9, 160, after="bad", status="SKIPPED")
    bad, long = step("bad", 100, 101, after="", status="FAILED"), step("long", 100, 155, after="")
    workflow = built(bad, long, unrun)
    assert workflow.critical_path == ("long",)
    assert [(s.name, s.waited_sec) for s in workflow.steps if s.waited_sec] == []
    assert workflow.totals["running_sec"] == 56.0
    assert workflow.totals["failed_steps"] == 1.0
    none_ran = built(step("first", 160, 160, after="", status="SKIPPED"), unrun)
    assert none_ran.critical_path == ()
    assert none_ran.totals["critical_running_sec"] == 0.0


@pytest.mark.parametrize(("count", "unread"), [("3", "1 of 3 steps"), ("2", ""), ("many", "")])
def test_steps_that_cannot_be_read_are_named(count: str, unread: str) -> None:
    """Whoever may read only some of a workflow's experiments sees that others exist."""
    parent = replace(PARENT, tags={**PARENT.tags, "mlflow_perf.step_count": count})
    workflow = build_workflow(parent, [step("a", 100, 110), step("b", 110, 120)])
    assert workflow is not None
    said = [one for one in workflow.findings if "cannot be read" in one]
    assert len(said) == bool(unread)
    assert all(one.startswith(unread) for one in said)


@pytest.mark.parametrize("step_status", ["FINISHED", "FAILED"])
def test_a_whole_that_failed_though_its_steps_did_not_says_so(step_status: str) -> None:
    """A line of a shell or a recipe that is no step fails the command of a group."""
    tags = {**PARENT.tags, "mlflow_perf.cause": "exit code 5"}
    parent = replace(PARENT, status="FAILED", tags=tags)
    workflow = build_workflow(parent, [replace(step("a", 100, 110), status=step_status)])
    assert workflow is not None
    assert workflow.status == "FAILED"
    is_said = workflow.findings[:1] == (
        "The whole is FAILED (exit code 5), though none of these steps failed.",
    )
    assert is_said == (step_status == "FINISHED")


def test_without_noted_dependencies_the_order_of_time_counts() -> None:
    """A step counts as waiting for the step that ended last before it began."""
    workflow = built(step("a", 100, 120), step("b", 100, 110), step("c", 120.2, 160))
    assert workflow.critical_path == ("a", "c")
    assert workflow.steps[-1].waited_sec == pytest.approx(0.2)


def test_a_step_waits_only_since_it_was_submitted() -> None:
    """Two jobs of a cluster that have nothing to do with each other."""
    late = step("b", 150.0, 160.0)
    late = replace(late, tags={"mlflow_perf.submitted": "145.000"})
    assert [one.waited_sec for one in built(step("a", 100.0, 110.0), late).steps] == [0.0, 5.0]
    odd = replace(late, tags={"mlflow_perf.submitted": "soon"})
    assert built(step("a", 100.0, 110.0), odd).steps[1].waited_sec == 40.0


def test_a_workflow_begins_when_its_first_step_was_submitted() -> None:
    """The wait before the first start is part of the whole, and of its critical path."""
    first = replace(step("a", 100.0, 110.0), tags={"mlflow_perf.submitted": "40.000"})
    beside = replace(step("b", 100.0, 160.0), tags={"mlflow_perf.submitted": "70.000"})
    workflow = built(first, beside)
    assert (workflow.started, workflow.duration_sec) == (40.0, 120.0)
    assert [one.waited_sec for one in workflow.steps] == [60.0, 30.0]
    assert workflow.totals["critical_waited_sec"] == 30.0


def test_what_the_parent_measured_between_steps_is_no_waiting() -> None:
    """A run with reports of its own, and with a child: it worked before the child did.

    A report around all steps says nothing of the time between them.
    """

    def report(start: float, end: float) -> NodeDocument:
        return NodeDocument(started=start, summary={"duration_sec": end - start})

    between = {"between": PerfDocument({0: report(118.0, 125.0)})}
    own = PerfDocument({0: report(101.0, 109.0)}, components=between)
    parent = replace(PARENT, document=own)
    steps = [step("a", 110.0, 115.0), step("b", 130.0, 160.0)]
    workflow = built(*steps, parent=parent)
    assert [one.waited_sec for one in workflow.steps] == [2.0, 8.0]
    assert workflow.totals["critical_waited_sec"] == 10.0
    around = replace(PARENT, document=PerfDocument({0: report(100.0, 160.0)}))
    for parent in (PARENT, around):
        assert [one.waited_sec for one in built(*steps, parent=parent).steps] == [10.0, 15.0]


def test_what_mlflow_perf_took_between_steps_is_no_waiting() -> None:
    """It sends the report of one step and starts before the next one."""
    steps = [step("a", 101.0, 110.0), step("b", 120.0, 130.0), step("c", 131.0, 155.0)]
    plain = built(*steps)
    assert [one.waited_sec for one in plain.steps] == [1.0, 10.0, 1.0]
    assert [one.reporting_sec for one in plain.steps] == [0.0] * 3
    # The first begins with the parent; the last one's report ends when the workflow does.
    notes = {"0": "a:700:7000", "1": "b:1000:9000 c:500:99000"}
    tags = {f"mlflow_perf.reporting_ms.{i}": text for i, text in notes.items()}
    workflow = built(*steps, parent=replace(PARENT, tags=tags))
    assert [one.waited_sec for one in workflow.steps] == pytest.approx([0.3, 2.0, 0.0])
    assert [one.reporting_sec for one in workflow.steps] == pytest.approx([0.7, 8.0, 1.0])
    assert workflow.totals["waited_sec"] == pytest.approx(2.3)
    assert workflow.totals["reporting_sec"] == pytest.approx(9.7 + 5.0)
    assert workflow.totals["critical_reporting_sec"] == pytest.approx(9.7 + 5.0)
    assert any("mlflow-perf itself took 14.7 s of the critical" in s for s in workflow.findings)
    assert any("Waiting took" in said for said in plain.findings)
    assert not any("Waiting took" in said for said in workflow.findings)


@pytest.mark.parametrize("names", [("big", "small"), ("small", "big")])
def test_of_steps_that_end_together_the_longest_is_on_the_critical_path(
    names: tuple[str, str],
) -> None:
    """Batch systems say when a step ended in whole seconds."""
    big, small = names
    workflow = built(step(big, 100, 160), step(small, 155, 160), step("merge", 161, 170))
    assert workflow.critical_path == (big, "merge")
    workflow = built(step(big, 100, 160), step(small, 155, 160))
    assert workflow.critical_path == (big,)


def test_steps_that_run_beside_each_other_do_not_wait_for_each_other() -> None:
    """Overlapping steps are no chain."""
    workflow = built(step("a", 100, 150), step("b", 101, 160))
    assert workflow.critical_path == ("b",)


@given(st.lists(st.tuples(st.integers(0, 12), st.integers(0, 8)), min_size=1, max_size=12))
def test_each_step_waited_for_the_last_one_that_was_over(times: list[tuple[int, int]]) -> None:
    """The quick search by the ends finds the step that looking at all the steps finds."""
    workflow = built(
        *(step(f"s{i}", 100 + b / 4, 100 + (b + d) / 4) for i, (b, d) in enumerate(times))
    )
    for one in workflow.steps:
        over = [
            other
            for other in workflow.steps
            if other.started < one.started
            and other.ended <= one.started + min(0.5, other.duration_sec / 2, one.duration_sec / 2)
        ]
        last = max((other.ended for other in over), default=workflow.started)
        assert one.waited_sec == pytest.approx(max(0.0, one.started - last))


def test_a_step_that_still_runs_is_cut_now() -> None:
    """A running step lasts until now, and says that it is running."""
    workflow = built(step("a", 100, None, status="RUNNING"), parent=PerfRun("p", started=100.0))
    assert workflow.steps[0].duration_sec == 100.0
    assert workflow.steps[0].status == "RUNNING"


def test_a_step_that_outlives_its_workflow_is_cut_at_its_end() -> None:
    """It may have been killed, and then its run never ends; the figures do not grow meanwhile."""
    workflow = built(step("a", 100, None, status="RUNNING"), step("b", 110, 150))
    assert (workflow.duration_sec, workflow.steps[0].duration_sec) == (60.0, 60.0)
    said = " ".join(workflow.findings)
    assert "Without a report yet: a. If it was killed, `mlflow-perf recover`" in said
    assert "Without performance data: b;" in said


def test_names_that_come_twice_are_numbered() -> None:
    """Two runs of one component are two steps."""
    workflow = built(step("train", 100, 110), step("train", 120, 130))
    assert [s.name for s in workflow.steps] == ["train", "train (2)"]


def test_totals_are_over_all_steps(make_run: MakeRun) -> None:
    """Hours add up over steps and nodes; utilisation is weighted by them.

    What nobody used is that of the steps; what the steps held and did not use has its own key.
    """
    node = {"duration_sec": 10.0, "node_cpu_hours": 1.0, "node_used_cpu_hours": 0.25,
            "node_unused_cpu_hours": 0.75}  # fmt: skip
    workflow = built(
        make_run(node, node, component="a", started=100.0, ended=110.0),
        make_run(node, component="b", started=110.0, ended=160.0),
    )
    # The second step held its node for 50 s, of which its block was 10 s.
    assert workflow.totals["cpu_hours"] == pytest.approx(7.0)
    assert workflow.totals["unused_cpu_hours"] == pytest.approx(2.25)
    assert workflow.totals["job_unused_cpu_hours"] == pytest.approx(6.25)
    assert workflow.totals["cpu_avg_utilization_pct"] == pytest.approx(25.0)
    assert workflow.totals["running_sec"] == 60.0
    assert workflow.totals["measured_sec"] == 20.0
    assert workflow.totals["outside_sec"] == 40.0
    assert "89% of the 7 CPU h held were unused" in " ".join(workflow.findings)


def test_a_clock_that_is_behind_makes_no_step_longer() -> None:
    """The runner has noted when a pipeline's step began and ended, on its own clock."""
    block = NodeDocument(component="train", started=12.0, duration_sec=3.0,
                         summary={"duration_sec": 3.0})  # fmt: skip
    late = PerfRun(
        "b", run_id="b", component="train", status="FINISHED", started=110.0, ended=118.0,
        document=PerfDocument({0: block}),
        tags={"mlflow_perf.step": "train", "mlflow_perf.depends_on": "pre"},
    )  # fmt: skip
    workflow = built(step("pre", 100, 110, after=""), late)
    assert workflow.started == 100.0
    assert [(s.name, s.waited_sec, s.outside_sec) for s in workflow.steps] == [
        ("pre", 0.0, 10.0), ("train", 0.0, 5.0),
    ]  # fmt: skip


def test_a_later_block_of_a_step_is_a_part_of_it() -> None:
    """Its time is the step's, and counts once; it did not wait while the step worked before it."""
    blocks = [
        PerfDocument(
            {0: NodeDocument(component=name, started=begin, duration_sec=took,
                             summary={"duration_sec": took})}
        )
        for name, begin, took in (("load", 112.0, 3.0), ("fit", 120.0, 4.0))
    ]  # fmt: skip
    blocks[0].components["fit"] = blocks[1]
    script = PerfRun(
        "b", run_id="b", component="load", status="FINISHED", started=110.0, ended=128.0,
        document=blocks[0], tags={"mlflow_perf.step": "train", "mlflow_perf.depends_on": "pre"},
    )  # fmt: skip
    workflow = built(step("pre", 100, 110, after=""), script)
    assert [(s.name, s.waited_sec) for s in workflow.steps] == [
        ("pre", 0.0), ("train", 0.0), ("fit", 0.0),
    ]  # fmt: skip
    assert (workflow.totals["running_sec"], workflow.totals["outside_sec"]) == (28.0, 11.0)
    told = " ".join(workflow.findings)
    assert "11 s of the steps' 28 s passed outside their measured blocks" in told
    assert "11 s of that passed outside its measured blocks." in told


@pytest.mark.parametrize(
    ("above", "used_sec"), [("p", 5.0), ("a", 4.0), ("elsewhere", 12.0), ("", 12.0)]
)
def test_steps_of_one_process_used_what_their_parent_did(above: str, used_sec: float) -> None:
    """Trials in threads have the CPU time of all; so have the runs that another step measured."""
    node = {"duration_sec": 10.0, "node_cpu_hours": 20 / 3600, "cpu_limit_cores": 2.0,
            "job_cpu_hours": 4.0 / 3600}  # fmt: skip
    tags = {"mlflow_perf.hostname": "h", "mlflow_perf.component": "c"}
    of_parent = {**node, "job_cpu_hours": 5 / 3600}
    parent = replace(PARENT, started=100.0, metrics=of_parent, tags=tags)
    tags["mlflow_perf.measured_by"] = above
    trials = [replace(step(name, 100.0, 110.0), metrics=node, tags=tags) for name in "abc"]
    assert built(*trials, parent=parent).totals["job_cpu_hours"] == pytest.approx(used_sec / 3600)


def test_what_a_step_measured_counts_in_that_step_alone(make_run: MakeRun) -> None:
    """A block below a wrapper is in the wrapper's figures: idle and held time are not divided."""
    node = {"duration_sec": 10.0, "node_cpu_hours": 20 / 3600, "cpu_limit_cores": 2.0,
            "job_cpu_hours": 4 / 3600, "node_used_cpu_hours": 18 / 3600,
            "node_unused_cpu_hours": 2 / 3600, "cpu_avg_utilization_pct": 90.0}  # fmt: skip
    facts = {"hostname": "h"}
    wrapper = make_run(node, component="w", started=100.0, ended=110.0, facts=facts)
    block = make_run(node, component="b", started=100.0, ended=110.0, facts=facts)
    wrapper = replace(wrapper, run_id="w1")
    block = replace(block, run_id="b1", tags={**block.tags, "mlflow_perf.measured_by": "w1"})
    totals = built(wrapper, block).totals
    assert 3600 * totals["unused_cpu_hours"] == pytest.approx(2.0)
    assert 3600 * totals["job_cpu_hours"] == pytest.approx(4.0)
    assert totals["cpu_avg_utilization_pct"] == pytest.approx(90.0)


def test_a_group_has_no_figures_but_those_of_its_steps(make_run: MakeRun) -> None:
    """Its report is not of a node that used nothing: read back, the totals are the same."""
    node = {"duration_sec": 10.0, "node_cpu_hours": 2.0, "job_cpu_hours": 1.5}
    one = make_run(node, component="a", started=100.0, ended=110.0,
                   facts={"hostname": "h"})  # fmt: skip
    tags = {"mlflow_perf.group": "g", "mlflow_perf.hostname": "h"}
    logged = {"duration_sec": 10.0, "run_cpu_hours": 2.0}
    parent = replace(PARENT, started=99.0, ended=111.0, metrics=logged, tags=tags)
    assert parent.is_group
    assert built(one, parent=parent).totals["job_cpu_hours"] == 1.5


def test_steps_side_by_side_hold_a_host_once(make_run: MakeRun) -> None:
    """Two steps on the two CPUs of one host held 2 CPUs, and each used its own CPU time.

    The node's figures count the neighbour's work as well, so they are not added up. Others used 0.2
    CPU seconds.
    """
    node = {"duration_sec": 10.0, "node_cpu_hours": 20 / 3600, "cpu_limit_cores": 2.0,
            "node_used_cpu_hours": 15 / 3600, "node_unused_cpu_hours": 5 / 3600,
            "job_cpu_hours": 7.4 / 3600, "job_cpu_avg_cores": 0.74}  # fmt: skip
    workflow = built(
        make_run(node, component="a", started=100.0, ended=110.0),
        make_run(node, component="b", started=100.0, ended=110.0),
    )
    assert workflow.totals["cpu_hours"] == pytest.approx(20 / 3600)
    assert workflow.totals["unused_cpu_hours"] == pytest.approx(5.0 / 3600)
    assert workflow.totals["job_unused_cpu_hours"] == pytest.approx(5.2 / 3600)
    assert workflow.totals["node_count"] == 1.0
    assert workflow.totals["job_cpu_avg_cores"] == pytest.approx(14.8 / workflow.duration_sec)


def test_a_parent_without_children_is_no_workflow() -> None:
    """There is nothing to draw."""
    assert build_workflow(PARENT, []) is None


def test_the_data_has_the_agreed_shape(make_run: MakeRun) -> None:
    """What the HTML draws: steps with their nodes, the path, totals and findings."""
    data = built(make_run({"duration_sec": 1.0}, started=100.0, ended=101.0)).as_dict()
    assert set(data) == {
        "name", "started", "duration_sec", "steps", "critical_path", "totals", "findings",
        "status",
    }  # fmt: skip
    assert {"name", "run_id", "status", "started", "duration_sec", "waited_sec", "nodes",
            "critical", "depends_on"} <= set(data["steps"][0])  # fmt: skip
    assert set(data["steps"][0]["nodes"][0]) == {
        "index", "started", "duration_sec", "summary", "hostname",
    }  # fmt: skip
    json.dumps(data, allow_nan=False)


@given(
    st.lists(
        st.tuples(st.floats(0, 100), st.floats(0, 50), st.sets(st.integers(0, 7), max_size=3)),
        min_size=1,
        max_size=8,
    ),
    st.booleans(),
)
def test_any_steps_make_a_path_that_fits(
    times: list[tuple[float, float, set[int]]], noted: bool
) -> None:
    """Whatever the times and dependencies, even cycles: the path has each step at most once."""
    steps = [
        step(str(i), start, start + length, after=",".join(map(str, after)) if noted else None)
        for i, (start, length, after) in enumerate(times)
    ]
    workflow = built(*steps, parent=PerfRun("p", name="p"))
    names = [s.name for s in workflow.steps]
    assert len(set(workflow.critical_path)) == len(workflow.critical_path)
    assert set(workflow.critical_path) <= set(names)
    assert all(s.waited_sec >= 0 and s.duration_sec >= 0 for s in workflow.steps)
    last = max(workflow.steps, key=lambda s: s.ended)
    assert workflow.steps[names.index(workflow.critical_path[-1])].ended == last.ended
    if not noted:
        starts = [workflow.steps[names.index(name)].started for name in workflow.critical_path]
        assert starts == sorted(starts)
