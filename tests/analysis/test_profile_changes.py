"""The functions that account for a change of duration, wherever two runs are compared."""

from __future__ import annotations

from typing import Any
from xml.etree import ElementTree as ET

import pytest

from mlflow_perf.analysis.compare import compare
from mlflow_perf.analysis.gate import check
from mlflow_perf.analysis.gate_reports import to_junit, to_markdown
from mlflow_perf.analysis.profile_changes import compare_profiles, compare_repeats
from mlflow_perf.model.document import NodeDocument, PerfDocument
from mlflow_perf.tracking.perf_run import PerfRun


def make_node(duration_sec: float, **seconds: float) -> NodeDocument:
    """Return a node whose main thread spent these seconds in these functions."""
    own: list[dict[str, Any]] = [
        {"function": name, "file": "train.py", "main_s": took, "wall_s": took, "cpu_s": took}
        for name, took in seconds.items()
    ]
    return NodeDocument(
        node={"index": 0},
        component="train",
        status="FINISHED",
        duration_sec=duration_sec,
        summary={"duration_sec": duration_sec, "cpu_avg_utilization_pct": 50.0},
        extra={"profile": {"rate_hz": 100, "samples": 9, "functions": [], "own": own}},
    )


BEFORE = make_node(22.0, parse_dates=2.0, fit=20.0)
AFTER = make_node(63.0, parse_dates=40.0, fit=21.0, save=2.0)


def _run(node: NodeDocument, label: str) -> PerfRun:
    return PerfRun.from_document(label, PerfDocument({0: node}))


def test_the_functions_that_account_for_the_change_are_named() -> None:
    """`parse_dates` +38 s of +41 s, and what changed little is not named."""
    change = compare_profiles([BEFORE], [AFTER])
    assert change is not None
    assert change.sentence == "`parse_dates` +38 s of +41 s"
    assert [one.function for one in change.functions] == ["parse_dates", "save", "fit"]
    back = compare_profiles([AFTER], [BEFORE])
    assert back is not None
    assert back.sentence == "`parse_dates` −38 s of −41 s"


def make_threaded(duration_sec: float, main_s: float, **sums: float) -> NodeDocument:
    """Return a node whose main thread waits for others, which spent these seconds in sum."""
    node = make_node(duration_sec, wait=main_s, **sums)
    for row in node.extra["profile"]["own"][1:]:
        row["main_s"] = 0.0
    return node


def test_work_of_other_threads_is_given_as_cpu_time() -> None:
    """Four workers took 160 s together while the run took 40 s more: both are true, and said."""
    change = compare_profiles(
        [make_threaded(10.0, 9.0, work=36.0)], [make_threaded(50.0, 49.0, work=196.0)]
    )
    assert change is not None
    summed = "`work` +2 min 40 s of CPU time beside the main thread"
    assert change.sentence == f"`wait` +40 s of +40 s; {summed}"
    assert [one.in_main for one in change.functions] == [False, True]
    change = compare_profiles(
        [make_threaded(10.0, 9.0, work=36.0)], [make_threaded(50.0, 9.0, work=196.0)]
    )
    assert change is not None
    assert change.sentence == f"{summed}; the run +40 s"


def test_work_that_moved_to_other_threads_left_the_main_thread() -> None:
    """The main thread's seconds are not compared with a sum over several threads."""
    change = compare_profiles([make_node(20.0, work=19.0)], [make_threaded(5.0, 4.9, work=19.0)])
    assert change is not None
    assert change.sentence == "`work` −19 s of −15 s, but `wait` +4.9 s"


def with_samples(node: NodeDocument, main: float) -> NodeDocument:
    node.extra["profile"]["equal_samples"] = {"wall": main, "cpu": main, "main": main}
    return node


def test_a_change_within_the_error_of_the_samples_is_no_cause() -> None:
    """Of 100 samples in either run a share is known to ± 10 points: 3 s of 30 may be chance."""
    before = {"parse": 15.0, "fit": 15.0}
    after = {"parse": 18.0, "fit": 15.0}
    few = [with_samples(make_node(sum(f.values()), **f), 100.0) for f in (before, after)]
    change = compare_profiles(few[:1], few[1:])
    assert change is not None
    assert change.sentence == ""
    assert 3.0 < change.functions[0].error_s < 5.0
    many = [with_samples(make_node(sum(f.values()), **f), 1e5) for f in (before, after)]
    change = compare_profiles(many[:1], many[1:])
    assert change is not None
    assert change.sentence == "`parse` +3 s of +3 s"
    some = [with_samples(make_node(sum(f.values()), **f), 2000.0) for f in (before, after)]
    change = compare_profiles(some[:1], some[1:])
    assert change is not None
    assert change.sentence == "`parse` +3 ± 0.97 s of +3 s"


def test_a_function_that_only_one_run_saw_has_an_error_too() -> None:
    """Ten samples without it do not prove that it did not run."""
    pair = (
        with_samples(make_node(10.0, fit=10.0), 10.0),
        with_samples(make_node(12.0, fit=11.0, save=1.0), 10.0),
    )
    change = compare_profiles(pair[:1], pair[1:])
    assert change is not None
    save = next(one for one in change.functions if one.function == "save")
    assert save.error_s > 2.0
    assert "save" not in change.sentence


def make_shared(samples: float = 1e6, **callers: float) -> NodeDocument:
    """Return a node that spent all its time in `burn`, for these callers."""
    took = sum(callers.values())
    node = with_samples(make_node(took, burn=took), samples)
    node.extra["profile"]["own"][0]["callers"] = make_node(0.0, **callers).extra["profile"]["own"]
    return node


def test_of_a_shared_function_the_caller_that_grew_is_named() -> None:
    """`burn` took longer because `parse_dates` called it more often; `load` did not."""
    before, after = make_shared(parse_dates=3.0, load=5.0), make_shared(parse_dates=9.0, load=5.0)
    change = compare_profiles([before], [after])
    assert change is not None
    assert change.sentence == "`burn` (called by `parse_dates`) +6 s of +6 s"
    assert change.as_dict()["functions"][0]["caller"] == "parse_dates"
    compared = compare([_run(before, "a"), _run(after, "b")])
    assert compared.sentence.endswith(change.sentence)
    failed = check([_run(before, "a"), _run(before, "c")], _run(after, "b"), "duration_sec=+10%")
    assert failed.functions == {"train": change.sentence}
    back = compare_profiles([after], [before])
    assert back is not None
    assert back.sentence == "`burn` (called by `parse_dates`) −6 s of −6 s"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (make_shared(parse=3.0, load=3.0), make_shared(parse=6.0, load=6.0)),
        (make_shared(parse=3.0), make_shared(parse=9.0)),
        (make_node(6.0, burn=6.0), make_shared(parse=9.0, load=3.0)),
        (make_shared(300.0, parse=3.0, load=3.0), make_shared(300.0, parse=6.4, load=5.6)),
    ],
    ids=["both alike", "one caller", "older document", "few samples"],
)
def test_no_caller_is_named_that_may_not_be_the_cause(
    before: NodeDocument, after: NodeDocument
) -> None:
    """One caller is no news, an older document has none, and few samples prove nothing."""
    change = compare_profiles([before], [after])
    assert change is not None
    assert change.sentence.startswith("`burn` +6")
    assert change.functions[0].caller is None


def test_a_caller_that_only_one_run_has_is_named() -> None:
    """A new caller of a function that only one called before."""
    change = compare_profiles([make_shared(load=5.0)], [make_shared(parse=9.0, load=5.0)])
    assert change is not None
    assert change.functions[0].caller == "parse"


def test_more_than_the_whole_change_is_explained_by_what_got_faster() -> None:
    """+46 s of +41 s is true only because another function took less."""
    change = compare_profiles(
        [make_node(20.0, work=10.0, wait=10.0)], [make_node(61.0, work=56.0, wait=5.0)]
    )
    assert change is not None
    assert change.sentence == "`work` +46 s of +41 s, but `wait` −5 s"


def test_seconds_of_ranks_that_an_older_document_adds_up_are_those_of_one() -> None:
    """A run of 186 s more cannot have spent 391 s more in a function of its main thread."""
    change = compare_profiles([make_node(10.0, train=30.0)], [make_node(196.0, train=588.0)])
    assert change is not None
    assert change.sentence == "`train` +3 min 06 s of +3 min 06 s"


def test_without_a_profile_or_a_change_nothing_is_said() -> None:
    """A run without samples has no functions, and an equal one no change."""
    assert compare_profiles([BEFORE], [NodeDocument(duration_sec=1.0)]) is None
    same = compare_profiles([BEFORE], [BEFORE])
    assert same is not None
    assert same.sentence == ""


def test_the_longest_node_counts() -> None:
    """The run waits for it."""
    change = compare_profiles([make_node(5.0, fit=5.0), BEFORE], [make_node(1.0), AFTER])
    assert change is not None
    assert (change.before_s, change.after_s) == (22.0, 63.0)


def test_a_comparison_begins_with_the_sentence() -> None:
    """The terminal, Markdown, HTML and `/perf/compare` all have it."""
    compared = compare([_run(BEFORE, "a"), _run(AFTER, "b")])
    assert compared.sentence == "2.9 × slower: `train` 22 → 63 s; `parse_dates` +38 s of +41 s"
    assert f"**{compared.sentence}**" in compared.to_markdown()
    assert compared.notes == ()


def test_a_gate_that_fails_says_which_function() -> None:
    """Markdown and JUnit have the sentence, between the median runs; a gate that passes not."""
    bases = [_run(BEFORE, "a"), _run(make_node(23.0, fit=23.0), "c")]
    failed = check(bases, _run(AFTER, "b"), "duration_sec=+10%")
    assert failed.functions == {"train": "`parse_dates` +39 s of +40.5 s"}
    assert "+39 s of +40.5 s" in to_markdown(failed)
    failure = ET.fromstring(to_junit(failed)).find(".//failure")
    assert failure is not None
    assert "+39 s of +40.5 s" in str(failure.get("message"))
    passed = check(_run(BEFORE, "a"), _run(BEFORE, "b"), "duration_sec=+10%")
    assert passed.functions == {}


@pytest.mark.parametrize("base", [(10.0, 14.0), (10.0, 11.0, 13.0, 14.0), (11.0, 12.0, 13.0)])
def test_a_gate_has_the_same_median_everywhere(base: tuple[float, ...]) -> None:
    """Sentence, table, functions, JSON and JUnit: of an even number, the mean of two runs."""
    bases = [_run(make_node(took, parse=took - 1.0, fit=1.0), f"{took}") for took in base]
    failed = check(bases, _run(make_node(36.0, parse=35.0, fit=1.0), "b"), "duration_sec=+10%")
    assert failed.sentence == "3.0 × slower: `train` 12 → 36 s; `parse` +24 s of +24 s"
    assert failed.functions == {"train": "`parse` +24 s of +24 s"}
    assert "| 12 s | 36 s |" in to_markdown(failed)
    assert "12 s → 36 s" in to_junit(failed)
    data = failed.as_dict()
    assert data["sentence"] == failed.sentence
    assert (data["checks"][0]["base_median"], data["checks"][0]["new_median"]) == (12.0, 36.0)


def test_a_mean_of_repeats_is_more_exact_than_each() -> None:
    """Two runs of 100 samples are as exact as one of 200."""
    one, other = (with_samples(make_node(20.0, parse=10.0, fit=10.0), 100.0) for _ in range(2))
    new = [with_samples(make_node(40.0, parse=30.0, fit=10.0), 1e9)]
    single, double = compare_profiles([one], new), compare_repeats([[one], [other]], [new])
    assert single is not None
    assert double is not None
    assert double.functions[0].change_s == single.functions[0].change_s == 20.0
    ratio = single.functions[0].error_s / double.functions[0].error_s
    assert ratio == pytest.approx(2**0.5, rel=0.02)
    assert compare_repeats([[one], [NodeDocument(duration_sec=1.0)]], [new]) is None
