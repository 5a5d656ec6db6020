"""The sentence that says what changed between two runs, and why."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from mlflow_perf.analysis.change_sentence import describe_change, list_different
from mlflow_perf.analysis.compare import compare
from mlflow_perf.analysis.gate import check
from mlflow_perf.analysis.gate_reports import to_markdown
from mlflow_perf.analysis.step_runs import StepRuns
from mlflow_perf.core.format import format_pair
from mlflow_perf.tracking.perf_run import PerfRun

MakeRun = Callable[..., PerfRun]

ALONE = {
    "duration_sec": 22.0,
    "job_run_delay_pct": 2.0,
    "job_cpu_avg_cores": 0.98,
    "cpu_limit_cores": 2.0,
}
CROWDED = {
    **ALONE,
    "duration_sec": 396.0,
    "job_run_delay_pct": 96.0,
    "job_cpu_avg_cores": 0.04,
    "others_cpu_avg_cores": 1.6,
}


def side(run: PerfRun, **steps: PerfRun) -> StepRuns:
    """Return one side of a comparison: a run, or a workflow of these steps."""
    return StepRuns(run.label, run, steps or {"train": run})


def pair(make_run: MakeRun, old: Mapping[str, float], new: Mapping[str, float]) -> str:
    """Return the sentence for two runs of one node."""
    return describe_change([side(make_run(old))], [side(make_run(new))])


def test_length_cause_and_parameters_are_one_sentence(make_run: MakeRun) -> None:
    """The ratio and the step, others on the node, and each parameter that differs."""
    base = make_run(ALONE, label="a", params={"threads": "1", "leaves": "63", "seed": "7"})
    new = make_run(CROWDED, label="b", params={"threads": "2", "leaves": "255", "seed": "7"})
    said = (
        "18.0 × slower: `train` 22 → 396 s; waiting for CPUs 0.44 → 380 s, others on the node; "
        "threads 1 → 2, leaves 63 → 255"
    )
    assert compare([base, new]).sentence == said
    assert f"**{said}**" in compare([base, new]).to_markdown()
    assert said in to_markdown(check(base, new, "duration_sec=+10%"))


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        (22.0, 396.0, "18.0 × slower"),
        (396.0, 22.0, "18.0 × faster"),
        (100.0, 112.0, "12% slower"),
        (100.0, 88.0, "12% faster"),
        (100.0, 101.0, "About as long (100 → 101 s)"),
    ],
)
def test_the_length_is_said_as_people_do(
    make_run: MakeRun, before: float, after: float, said: str
) -> None:
    """From half as much again in times, below that in per cent, and below 5% not at all."""
    assert pair(make_run, {"duration_sec": before}, {"duration_sec": after}).startswith(said)


def test_of_a_workflow_the_steps_that_account_for_the_change_are_named(make_run: MakeRun) -> None:
    """The steps in the direction of the change, the largest first; the parent's own duration."""

    def flow(label: str, took: float, **seconds: float) -> StepRuns:
        parent = PerfRun(label, run_id=label, started=0.0, ended=took, params={"rows": label})
        steps = {name: make_run({"duration_sec": s}, component=name) for name, s in seconds.items()}
        return side(parent, **steps)

    said = describe_change([flow("a", 40, prep=10, train=22, score=5)],
                           [flow("b", 420, prep=200, train=396, score=1)])  # fmt: skip
    assert said.startswith("10.5 × slower: `train` 22 → 396 s, `prep` 10 → 200 s; ")
    assert said.endswith("; rows a → b")


def test_a_wait_between_the_steps_is_no_change_of_a_step(make_run: MakeRun) -> None:
    """The step that changed most took 0.4 s of 15 s more; its causes explain nothing."""
    base, new = (
        side(
            PerfRun("flow", run_id="f", status="FINISHED", started=0.0, ended=seconds),
            first=make_run({"duration_sec": 5.0}, component="first"),
            train=make_run({"duration_sec": took, "job_run_delay_pct": pct}, component="train"),
        )
        for seconds, took, pct in ((16.0, 2.6, 24.0), (32.0, 3.0, 35.0))
    )
    said = describe_change([base], [new])
    assert said == "2.0 × slower, mostly outside of the measured steps"


def test_a_step_that_only_one_workflow_has_is_named_as_the_change(make_run: MakeRun) -> None:
    """Its causes are not compared: there is nothing to compare them with."""

    def flow(took: float, **seconds: float) -> StepRuns:
        parent = PerfRun("f", run_id="f", status="FINISHED", started=0.0, ended=took)
        steps = {name: make_run({"duration_sec": s}, component=name) for name, s in seconds.items()}
        return side(parent, **steps)

    few, many = flow(300, sort=100, align=200), flow(400, sort=100, align=201, new=100)
    assert describe_change([few], [many]) == "33% slower: `new` added (1 min 40 s)"
    assert describe_change([many], [few]) == "25% faster: `new` removed (1 min 40 s)"


def test_a_workflow_that_failed_before_its_steps_is_not_faster(make_run: MakeRun) -> None:
    """It did less; what both did is compared."""
    first = make_run({"duration_sec": 10.0}, component="first")
    slower = make_run({"duration_sec": 12.0}, component="first")
    rest = make_run({"duration_sec": 90.0}, component="rest")
    parent = PerfRun("flow", run_id="f", status="FINISHED", started=0.0, ended=100.0)
    failed = PerfRun("bad", run_id="b", status="FAILED", started=0.0, ended=12.0)
    whole, part = side(parent, first=first, rest=rest), side(failed, first=slower)
    for said in describe_change([whole], [part]), describe_change([part], [whole]):
        assert said.startswith("bad is FAILED, without `rest`: `first` 1")
        assert "faster" not in said
    all_steps = side(failed, first=slower, rest=rest)
    assert "8.3 × faster" in describe_change([whole], [all_steps])


def test_parameters_that_one_run_lacks_do_not_fill_the_sentence(make_run: MakeRun) -> None:
    """Those with two values come first; of the others only the number."""
    lone = {f"p{i}": "x" * 50 for i in range(9)}
    base = make_run({"duration_sec": 10.0}, params={"leaves": "31"})
    new = make_run({"duration_sec": 20.0}, params={**lone, "leaves": "63"})
    said = describe_change([side(base)], [side(new)])
    assert said.endswith("; leaves 31 → 63, 9 parameters in only one run")


def test_small_changes_and_others_load_are_no_causes(make_run: MakeRun) -> None:
    """A change of a few points is noise; the load of other processes is no figure of the job."""
    new = {**ALONE, "job_run_delay_pct": 6.0, "others_cpu_avg_cores": 1.9}
    assert pair(make_run, ALONE, new) == "About as long (22 → 22 s)"


@pytest.mark.parametrize(
    ("figure", "before", "after", "said"),
    [
        ("job_max_mem_mb", 512.0, 3072.0, "memory 0.5 → 3 GB"),
        ("job_io_write_mb", 10.0, 900.0, "written to disks 10 → 900 MB"),
    ],
)
def test_an_amount_that_changed_much_is_named_after_the_seconds(
    make_run: MakeRun, figure: str, before: float, after: float, said: str
) -> None:
    """Two values share their unit where they have the same one."""
    told = pair(make_run, {**ALONE, figure: before}, {**CROWDED, figure: after})
    assert told.endswith(f"others on the node, {said}")


def test_a_path_in_another_folder_is_the_same_input() -> None:
    """Each run of a workflow has its own folder; a file of another name is another input."""
    old, new = {"data": "/a/1/out", "file": "/a/x.csv"}, {"data": "/a/2/out", "file": "/a/y.csv"}
    assert list_different(old, new) == {"file": ("/a/x.csv", "/a/y.csv")}
    assert list_different({}, {"n": "1"}) == {"n": ("–", "1")}


def test_the_baseline_may_be_any_run(make_run: MakeRun) -> None:
    """Each column is compared with it: a change, a verdict and a sentence of its own."""
    runs = [make_run({"duration_sec": s}, label=str(s)) for s in (10.0, 20.0, 40.0)]
    compared = compare(runs, baseline=1)
    (row,) = [row for row in compared.rows if row.metric == "duration_sec"]
    assert row.changes == (-50.0, 0.0, 100.0)
    assert row.verdicts == ("better", "same", "worse")
    assert (row.change_pct, row.verdict) == (100.0, "worse")
    assert [text.partition(":")[0] for text in compared.sentences] == [
        "2.0 × faster", "", "2.0 × slower",
    ]  # fmt: skip


def test_long_texts_are_cut_and_marks_replaced(make_run: MakeRun) -> None:
    """A name of any length, or one with a backtick, leaves the sentence whole."""
    base, new = make_run(ALONE, params={"q`" * 50: "a" * 500}), make_run(CROWDED)
    said: Any = describe_change([side(base)], [side(new)])
    assert len(said) < 200
    assert said.count("`") == 2


def test_two_values_share_the_unit_of_the_larger_one() -> None:
    """`340 ms → 2 min` needs both units; 10 and 20 minutes, CPU times and sizes share one."""
    assert format_pair(0.212, 342 / 3600, "CPU h") == "0.212 → 0.095 CPU h"
    assert format_pair(0.01, 0.05, "CPU h") == "36 → 180 CPU s"
    assert format_pair(800.0, 1536.0, "MB") == "0.781 → 1.5 GB"
    assert format_pair(0.34, 720.0, "s") == "340 ms → 12 min"
    assert format_pair(600.0, 1200.0, "s") == "10 → 20 min"
    assert format_pair(605.0, 1205.0, "s") == "10 min 05 s → 20 min 05 s"


def test_a_job_killed_before_it_was_measured_is_neither_slower_nor_faster(
    make_run: MakeRun,
) -> None:
    """The times of its run in MLflow are a lower bound, which may be a hundredth of the truth."""
    cut = replace(make_run({}), started=0.0, ended=0.01, tags={"mlflow_perf.cut_off": "True"})
    assert describe_change([side(make_run(ALONE))], [side(cut)]) == ""
