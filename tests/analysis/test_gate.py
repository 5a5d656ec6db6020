"""The gate: which runs pass a limit, with noise taken into account."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from xml.etree import ElementTree as ET

import pytest

from mlflow_perf.analysis.compare import compare
from mlflow_perf.analysis.gate import check
from mlflow_perf.analysis.gate_reports import to_junit, to_markdown
from mlflow_perf.analysis.step_runs import collect_steps
from mlflow_perf.errors import RunNotFoundError, SettingError
from mlflow_perf.tracking.perf_run import PerfRun

MakeRun = Callable[..., PerfRun]


Hours = Callable[..., list[PerfRun]]


def test_one_run_against_one_is_decided_by_the_limit(hours: Hours) -> None:
    """Without repeats the values decide, and the reason says that the noise is unknown."""
    limit = ["node_cpu_hours=+10%"]
    assert check(hours(1.0), hours(1.09), limit).passed
    result = check(hours(1.0), hours(1.2), limit)
    assert not result.passed
    assert "noise cannot be told" in result.checks[0].how


def test_a_real_regression_fails_whatever_the_noise(hours: Hours) -> None:
    """Five runs that are all 50% above five others are beyond a limit of 10%."""
    base, new = hours(1.0, 1.04, 0.97, 1.02, 0.99), hours(1.5, 1.46, 1.55, 1.52, 1.49)
    (found,) = check(base, new, ["node_cpu_hours=+10%"]).checks
    assert not found.passed
    assert found.p == pytest.approx(1 / 252)
    assert "Mann–Whitney" in found.how


def test_noise_passes(hours: Hours) -> None:
    """Medians that exceed the limit only because single runs vary do not fail the gate."""
    base, new = hours(1.0, 1.8, 0.7, 1.5, 0.9), hours(1.2, 0.8, 1.6, 1.1, 1.9)
    result = check(base, new, ["node_cpu_hours=+10%"])
    assert result.checks[0].outcome == "noise"
    assert result.passed


def test_a_small_regression_beyond_no_limit_passes(hours: Hours) -> None:
    """A change of 5%, however certain, keeps within a limit of 10%."""
    base, new = hours(1.0, 1.001, 0.999, 1.0), hours(1.05, 1.051, 1.049, 1.05)
    assert check(base, new, ["node_cpu_hours=+10%"]).passed


def test_falling_is_tested_too(hours: Hours) -> None:
    """`-10%` bounds from below, with the same test mirrored."""
    base, new = hours(1.0, 1.04, 0.97), hours(0.5, 0.52, 0.48)
    (found,) = check(base, new, ["node_cpu_hours=-10%"]).checks
    assert found.outcome == "failed"
    assert found.p == pytest.approx(1 / 20)


def test_one_new_run_has_to_leave_the_noise_of_history(hours: Hours) -> None:
    """Against a history, one run fails only beyond the limit and beyond the base's own noise."""
    noisy, calm = hours(1.0, 1.3, 0.8, 1.2, 0.9), hours(1.0, 1.01, 0.99, 1.0, 1.02)
    limit = ["node_cpu_hours=+10%"]
    assert check(noisy, hours(1.3), limit).checks[0].outcome == "noise"
    assert check(calm, hours(1.3), limit).checks[0].outcome == "failed"
    assert check(noisy, hours(5.0), limit).checks[0].outcome == "failed"


def test_a_value_of_its_own_needs_no_base(hours: Hours) -> None:
    """`KEY=90` is judged without a base."""
    assert check([], hours(1.0), ["max_t_mem_percent=90"]).passed
    assert not check([], hours(1.0), ["max_t_mem_percent=39"]).passed


def test_the_worst_node_counts(make_run: MakeRun) -> None:
    """For a node's metric the worst node is judged, for a run's metric the run itself."""
    new = make_run({"duration_sec": 1.0, "node_cpu_hours": 1.0},
                   {"duration_sec": 9.0, "node_cpu_hours": 1.0})  # fmt: skip
    result = check([], [new], ["duration_sec<=8", "duration_sec>=2", "run_cpu_hours=2"])
    assert [c.passed for c in result.checks] == [False, False, True]


def test_a_users_own_metric_can_be_judged(make_run: MakeRun) -> None:
    """A metric that the job itself logged can be judged too."""
    new = make_run({"duration_sec": 1.0}, metrics={"accuracy": 0.8})
    assert not check([], [new], ["accuracy>=0.9"]).passed


def test_a_key_that_nobody_has_is_an_error(hours: Hours) -> None:
    """A typing error is named, with the nearest key; it never passes."""
    with pytest.raises(SettingError, match="did you mean 'node_cpu_hours'"):
        check(hours(1.0), hours(1.0), ["node_cpu_hour=+10%"])
    with pytest.raises(SettingError, match=r"No run has the step 'tarin'.*'train'"):
        check(hours(1.0), hours(1.0), ["tarin:node_cpu_hours=+10%"])


def test_a_key_may_hold_a_colon(make_run: MakeRun) -> None:
    """An operation's name with a colon is a key, not a step."""
    run = make_run({"ops/a:b/count": 3.0})
    assert check([run], [run], ["ops/a:b/count<=3"]).passed


def test_a_metric_that_is_gone_fails_and_one_that_is_new_is_not_judged(make_run: MakeRun) -> None:
    """A metric that only the base has fails; one that only the new run has does not pass either."""
    old, new = make_run({"a": 1.0}), make_run({"b": 1.0})
    assert check([old], [new], ["a=+10%"]).checks[0].outcome == "failed"
    result = check([old], [new], ["b=+10%"])
    assert result.checks[0].outcome == "no base"
    assert (result.passed, result.exit_code) == (False, 2)
    assert result.unjudged == ("b=+10% cannot be judged. No run of the base has this metric.",)


@pytest.mark.parametrize("runs", [1, 2])
def test_auto_with_fewer_than_three_runs_of_the_base_is_not_judged(hours: Hours, runs: int) -> None:
    """It said "✅ no base" and passed. Another limit that fails comes first."""
    base, new = hours(*[1.0] * runs), hours(9.0)
    result = check(base, new, ["node_cpu_hours=auto"])
    assert (result.passed, result.exit_code) == (False, 2)
    assert f"needs 3 runs with this metric, not {runs}." in result.unjudged[0]
    text = to_markdown(result)
    assert "Performance gate cannot judge (1 limit)" in text
    assert "➖ not judged" in text
    assert "✅" not in text
    assert 'skipped="1"' in to_junit(result)
    assert check(base, new, ["node_cpu_hours=auto", "node_cpu_hours=5"]).exit_code == 1
    assert check(hours(1.0, 1.0, 1.0), hours(1.0), ["node_cpu_hours=auto"]).exit_code == 0


def test_a_new_step_beside_others_is_named_and_passes(make_run: MakeRun) -> None:
    """Each change that adds a step would fail; a limit for a step that has gone is not judged."""
    whole = PerfRun("flow", name="flow")
    steps = [make_run({"a": 1.0}, component=name) for name in ("train", "added")]
    old, new = collect_steps(whole, steps[:1]), collect_steps(whole, steps)
    result = check([old], [new], ["a=+10%"])
    assert [one.outcome for one in result.checks] == ["passed", "no base"]
    assert result.exit_code == 0
    gone = check([new], [old], ["added:a=+10%"])
    assert (gone.passed, gone.exit_code) == (False, 2)
    assert "**Not judged:** added:a=+10% cannot be judged." in to_markdown(gone)


def test_a_new_run_that_failed_fails_the_gate(hours: Hours) -> None:
    """A failed run ended early, so its short time is no success."""
    result = check(hours(1.0), hours(0.1, status="FAILED"), ["node_cpu_hours=+10%"])
    assert not result.passed
    assert "FAILED" in result.failures[0]
    assert "**Failed:**" in to_markdown(result)
    assert ET.fromstring(to_junit(result)).get("failures") == "1"


def test_a_new_workflow_that_failed_outside_its_steps_fails_the_gate(make_run: MakeRun) -> None:
    """A line of its script that is no step failed: its steps' figures are fine, its own end not."""
    steps = [make_run({"a": 1.0}, component=name) for name in ("train", "score")]
    old = collect_steps(PerfRun("flow", name="flow"), steps)
    new = replace(old, run=PerfRun("flow", name="flow", status="KILLED"))
    assert check([old], [old], ["a=+10%"]).passed
    result = check([old], [new], ["a=+10%"])
    assert (result.passed, result.exit_code) == (False, 1)
    assert result.failures == ("flow is KILLED: its figures are not those of the whole work.",)


def test_a_whole_workflow_is_judged_by_its_duration(make_run: MakeRun) -> None:
    """A wait between its steps is in none of them."""
    steps = [make_run({"duration_sec": 2.0}, component=name) for name in ("train", "score")]
    whole = [PerfRun("flow", status="FINISHED", started=0.0, ended=end) for end in (5.0, 20.0)]
    old, new = (collect_steps(run, steps) for run in whole)
    assert check([old], [old], ["duration_sec=+20%"]).passed
    for limit in "duration_sec=+20%", "run_duration_sec=+20%", "workflow:duration_sec<=10":
        failed = [one.step for one in check([old], [new], [limit]).checks if not one.passed]
        assert failed == ["workflow"], limit
    # What is a bound for each step is none for all of them.
    assert check([old], [new], ["duration_sec<=10"]).passed


def test_different_hardware_is_said(make_run: MakeRun) -> None:
    """A base on other hardware is judged, and the note says that it was other hardware."""
    old = make_run({"node_cpu_hours": 1.0}, facts={"cpu_count": 4})
    new = make_run({"node_cpu_hours": 1.0}, facts={"cpu_count": 8})
    assert "cpu_count 4 / 8" in check([old], [new], ["node_cpu_hours=+1%"]).notes[0]


def test_false_alarms_are_as_rare_as_alpha_says(hours: Hours) -> None:
    """Of gates on pure noise, without any room, at most about alpha fail."""
    chance = random.Random(7)
    failed = 0
    for _ in range(300):
        base = hours(*(chance.gauss(10, 2) for _ in range(5)))
        new = hours(*(chance.gauss(10, 2) for _ in range(5)))
        failed += not check(base, new, ["node_cpu_hours=+0%"]).passed
    assert failed / 300 <= 0.08


def test_one_run_and_one_limit_need_no_list(hours: Hours) -> None:
    """A single run, path or limit counts as a list of one, not as a list of letters."""
    (base,), (new,) = hours(1.0), hours(1.05)
    assert check(base, new, "node_cpu_hours=+10%").passed
    assert not check([base], new, "node_cpu_hours=+1%").passed
    with pytest.raises(RunNotFoundError, match=r"no/such\.json"):
        check("no/such.json", new, "node_cpu_hours=+10%")
    with pytest.raises(RunNotFoundError, match=r"no/such\.json"):
        compare("no/such.json")
