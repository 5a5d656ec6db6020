"""The steps of a loop in words: what they are made of, and which part changed."""

from __future__ import annotations

from mlflow_perf.analysis.compare import compare
from mlflow_perf.analysis.step_texts import describe_loop, describe_step_changes
from mlflow_perf.model.document import NodeDocument, PerfDocument
from mlflow_perf.recorders.steps import StepMetrics
from mlflow_perf.recorders.steps.stats import LoopRecord, StepTimes
from mlflow_perf.tracking.perf_run import PerfRun


def make_record(**parts: float) -> LoopRecord:
    """Return 50 steps, whose parts take these milliseconds, and 2 ms more."""
    record = LoopRecord(began=1000.0)
    whole = {**parts, "compute": sum(parts.values()) - parts["input"] + 2.0}
    for name, value in whole.items():
        record.parts[name] = StepTimes()
        record.parts[name].add_all([round(value * 1e6)] * 50)
    record.step.add_all([round((whole["compute"] + parts["input"]) * 1e6)] * 50)
    return record


def make_run(label: str, **parts: float) -> PerfRun:
    steps = StepMetrics()
    steps.add("step", make_record(**parts), 0)
    summary = {"duration_sec": 60.0, **steps.summary_metrics()}
    node = NodeDocument(component="train", summary=summary, steps=steps.as_dict())
    return PerfRun.from_document(label, PerfDocument({0: node}))


def test_a_loop_in_one_sentence() -> None:
    """Steps, percentiles and what a mean step is made of, the largest part first."""
    text = describe_loop("step", {0: make_record(input=2.0, forward=6.0)})
    assert text == (
        "step: 50 steps, median 10 ms, 95% within 10 ms: forward 60%, input 20%, rest 20%"
    )
    ranks = dict.fromkeys(range(4), make_record(input=2.0, forward=6.0))
    assert describe_loop("step", ranks).startswith("step: 50 steps on each of 4 ranks")
    ranks[3] = make_record(input=2.0, forward=6.0)
    ranks[3].step.add_all([10_000_000] * 50)
    assert describe_loop("step", ranks).startswith("step: 50 to 100 steps on each of 4 ranks")


def test_the_part_that_changed_is_named_first() -> None:
    """Each part that changed by a twentieth of the step is named, the greatest change first."""
    runs = [make_run("a", input=2.0, forward=6.0), make_run("b", input=1.0, forward=13.0)]
    assert list(describe_step_changes(runs)) == [
        "A step of the loop step took 10 ms → 16 ms (+60.0%): forward +7 ms, input −1 ms."
    ]
    assert list(describe_step_changes([runs[0], runs[0]])) == []
    assert list(describe_step_changes([runs[0], None])) == []


def test_a_comparison_says_so_and_has_a_row_for_each_part() -> None:
    """Every output contains the note, and each part is a metric of its own."""
    found = compare([make_run("a", input=2.0, forward=6.0), make_run("b", input=2.0, forward=12.0)])
    assert found.notes[0].startswith("A step of the loop step took 10 ms → 16 ms")
    rows = {row.metric: row for row in found.rows}
    assert rows["steps/step/part/forward_ms"].verdict == "worse"
    assert rows["steps/step/part/input_ms"].verdict == "same"
    assert rows["steps/step/input_pct"].verdict == "better"
    assert rows["steps/step/p50_ms"].change_pct is not None
