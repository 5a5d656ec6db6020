"""Each cause of slow steps is named by its own figures, with its rank and part."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mlflow_perf.analysis.findings import findings_of
from mlflow_perf.analysis.step_causes import StepCause, find_step_causes
from mlflow_perf.model.document import NodeDocument, PerfDocument
from mlflow_perf.recorders.steps import StepMetrics
from mlflow_perf.recorders.steps.course import CourseRow
from mlflow_perf.recorders.steps.stats import LoopRecord, StepTimes

RECORDED = Path(__file__).parent / "slow_loops.json.gz"
USUAL = {"input": 2.0, "forward": 10.0, "backward": 15.0, "optimizer": 4.0}


def make_record(
    parts: dict[str, float] | None = None,
    *,
    rest: float = 1.0,
    count: int = 100,
    often: dict[str, int] | None = None,
    first_ms: float | None = None,
    sums: dict[str, float] | None = None,
    growth: float = 0.0,
) -> LoopRecord:
    """Return the steps of one rank, whose parts take these milliseconds in each step."""
    parts = USUAL | (parts or {})
    times: dict[str, list[float]] = {name: [] for name in ("step", "compute", *parts)}
    record = LoopRecord(began=1000.0, sums=sums or {})
    now = 1000.0
    for number in range(count):
        compute = rest
        for name, usual in parts.items():
            value = usual * (1 + growth * number) if name == "forward" else usual
            every = (often or {}).get(name, 1)
            if number % every == 0:
                times[name].append(value)
                compute += 0.0 if name == "input" else value
        if number == 0 and first_ms is not None:
            compute = first_ms - parts["input"]
        times["compute"].append(compute)
        times["step"].append(compute + parts["input"])
        now += times["step"][-1] / 1e3
        row = {"input": parts["input"], "forward": times["forward"][-1]}
        record.course.append(CourseRow(now, 1, times["step"][-1], times["step"][-1], row))
    record.first_ms = times["step"][0]
    for name, values in times.items():
        found = record.step if name == "step" else record.parts.setdefault(name, StepTimes())
        found.add_all([round(value * 1e6) for value in values])
    return record


def find(*ranks: LoopRecord, name: str = "step") -> list[StepCause]:
    return find_step_causes({name: dict(enumerate(ranks))})


def first(*ranks: LoopRecord) -> tuple[str, int | None, str | None]:
    found = find(*ranks)[0]
    return found.cause, found.rank, found.part


def test_a_healthy_loop_has_no_cause() -> None:
    """Usual shares of a step, on one rank or several, are no cause; nor is a loop too short."""
    assert find(make_record()) == []
    assert find(*[make_record() for _ in range(4)]) == []
    assert find(make_record({"input": 500.0}, count=4)) == []
    assert find_step_causes({}) == []
    assert find(LoopRecord()) == []


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        (make_record({"input": 60.0}), ("input", None, "input")),
        (make_record({"forward": 90.0}), ("part", None, "forward")),
        (make_record({"backward": 90.0}), ("part", None, "backward")),
        (make_record({"optimizer": 30.0}), ("part", None, "optimizer")),
        (make_record({"save_checkpoint": 300.0}, often={"save_checkpoint": 10}),
         ("checkpoint", None, "save_checkpoint")),
        (make_record({"validation": 300.0}, often={"validation": 10}),
         ("evaluation", None, "validation")),
        (make_record({"log_metric": 10.0}), ("logging", None, "log_metric")),
        (make_record(rest=50.0), ("rest", None, "rest")),
        (make_record(first_ms=2000.0), ("warm_up", None, None)),
        (make_record(growth=0.05), ("growing", None, "forward")),
        (make_record(sums={"gc_ms": 900.0, "gc_count": 100.0}), ("garbage", None, None)),
        (make_record(sums={"kernel_ms": 900.0, "minor_faults": 1e6}), ("page_faults", None, None)),
        (make_record(sums={"major_faults": 5e3}), ("page_faults", None, None)),
        (make_record(sums={"run_delay_ms": 1500.0}), ("contended", None, None)),
        (make_record(dict.fromkeys(USUAL, 0.1), rest=0.02, count=1000),
         ("short_steps", None, None)),
    ],
)  # fmt: skip
def test_each_cause_is_the_first_one(
    record: LoopRecord, expected: tuple[str, int | None, str | None]
) -> None:
    """One injected cause is the one with the greatest share."""
    assert first(record) == expected


def test_growing_steps_are_named_on_a_busy_machine() -> None:
    """A few steps for which others took the CPUs, early on, do not hide that all steps grow."""
    record = make_record(growth=0.05)
    for at in (5, 12, 20, 27):
        row = record.course.rows[at]
        record.course.rows[at] = replace(row, step_ms=10 * row.step_ms, max_ms=10 * row.max_ms)
    assert first(record) == ("growing", None, "forward")


def test_a_machine_that_gets_busier_makes_no_growing_steps() -> None:
    """More and more steps wait for a CPU, and those between them are as short as ever."""
    record = make_record(count=90)
    for at in range(90):
        if at % 30 < 12 + at // 5:
            row = record.course.rows[at]
            record.course.rows[at] = replace(row, step_ms=(1 + at / 30) * row.step_ms)
    assert [cause.cause for cause in find(record)] == []


def test_a_rank_that_others_wait_for_is_named_with_its_part() -> None:
    """Those who wait have long backward passes; the late rank is long where it is slow."""
    waits, late = make_record({"backward": 45.0}), make_record({"forward": 40.0})
    assert first(waits, late, waits) == ("straggler", 1, "forward")
    assert first(waits, late) == ("straggler", 1, "forward")
    late = make_record({"input": 32.0})
    assert first(waits, waits, waits, late) == ("straggler", 3, "input")
    assert [cause.cause for cause in find(waits, waits, late) if cause.cause == "input"] == []
    alone = make_record({"backward": 60.0})
    assert first(make_record(), alone, make_record()) == ("straggler", 1, "backward")


def test_a_part_of_one_rank_alone() -> None:
    """Where one rank writes the checkpoints, the others wait for it in that part."""
    writes = make_record({"checkpoint": 300.0}, often={"checkpoint": 10})
    waits = make_record({"backward": 45.0})
    found = find(writes, waits, waits)
    assert (found[0].cause, found[0].rank, found[0].part) == ("straggler", 0, "checkpoint")
    del waits.parts["compute"], waits.parts["input"]
    assert find(waits, writes)


def test_the_share_is_that_of_the_loop() -> None:
    """A wait of 60 of 90 ms is two thirds, and is said so, with the loop's name."""
    cause = find(make_record({"input": 60.0}), name="epoch")[0]
    assert cause.share == pytest.approx(60 / 90, abs=0.01)
    assert cause.evidence == "The loop 'epoch' waited 67% of its time for data"


def test_a_loop_within_the_steps_is_no_cause_for_the_outer_one() -> None:
    """The inner one has causes of its own, which explain its time; an evaluation is told."""
    epochs, batches = make_record({"steps": 900.0}, count=6), make_record({"input": 60.0})
    found = find_step_causes({"epoch": {0: epochs}, "step": {0: batches}})
    assert [(cause.cause, cause.loop) for cause in found] == [("input", "step")]
    epochs = make_record({"validation": 60.0}, count=6)
    found = find_step_causes({"epoch": {0: epochs}, "validation": {0: batches}})
    assert ("evaluation", "epoch") in [(cause.cause, cause.loop) for cause in found]


def test_inner_parts_do_not_count_twice() -> None:
    """A part within another one is neither a cause of its own nor taken from the rest."""
    record = make_record({"forward.attention": 9.0})
    record.parts["compute"] = make_record().parts["compute"]
    assert sum(record.divide().values()) == pytest.approx(32.0)
    assert "forward.attention" not in record.divide()


def make_document(*ranks: LoopRecord, duration_sec: float = 10.0) -> NodeDocument:
    steps = StepMetrics()
    for rank, record in enumerate(ranks):
        steps.add("step", record, rank)
    return NodeDocument(
        duration_sec=duration_sec,
        summary={"duration_sec": duration_sec, "cpu_avg_utilization_pct": 20.0},
        steps=steps.as_dict(),
    )


def test_the_wait_for_data_is_the_verdict() -> None:
    """The finding `input` has the share of the whole job, and the tag its word."""
    found = findings_of(make_document(make_record({"input": 60.0})))[0]
    assert (found.kind, found.bottleneck) == ("input", "input")
    assert found.share == pytest.approx(0.6, abs=0.02)
    assert "more loader workers" in found.sentence
    assert found.as_dict()["part"] == "input"


def test_the_cause_of_a_wait_comes_before_the_wait() -> None:
    """A job that only sleeps is `waiting`; where its steps say for what, that is the verdict."""
    document = make_document()
    document.summary |= {"job_cpu_avg_cores": 0.05, "cpu_limit_cores": 2.0}
    assert findings_of(document)[0].kind == "waiting"
    late = make_record({"forward": 60.0}, count=150)
    document.steps = make_document(make_record({"backward": 65.0}, count=150), late).steps
    kinds = [finding.kind for finding in findings_of(document)]
    assert kinds[0] == "straggler"
    assert "waiting" in kinds


def test_the_word_of_slow_steps_is_how_the_time_went_and_the_sentence_names_it() -> None:
    """A busy job whose memory grew: its slow part is `cpu`, and never `memory` or `balanced`."""
    document = make_document(make_record({"forward": 60.0}, count=150))
    document.summary |= {"job_cpu_avg_cores": 1.0, "cpu_limit_cores": 2.0, "max_t_mem_percent": 99}
    (found,) = [one for one in findings_of(document) if one.kind == "steps"]
    assert found.bottleneck == "cpu"
    assert found.evidence.endswith("in 'forward', mostly computing")


@pytest.mark.parametrize(
    ("cpu_ms", "said"),
    [(None, ", mostly computing"), (14000.0, ", mostly computing"), (1000.0, "in 'forward'")],
)
def test_a_loop_whose_thread_slept_did_not_compute(cpu_ms: float | None, said: str) -> None:
    """The job's CPU time may be that of other threads, which have nothing to do with the loop."""
    record = make_record({"forward": 60.0}, count=150)
    record.sums |= {} if cpu_ms is None else {"cpu_ms": cpu_ms}
    document = make_document(record)
    document.summary |= {"job_cpu_avg_cores": 1.0, "cpu_limit_cores": 2.0}
    (found,) = [one for one in findings_of(document) if one.kind == "steps"]
    assert found.evidence.endswith(said)


def test_a_slow_node_comes_before_that_nothing_held_the_job_back() -> None:
    """`balanced` counts less by the time that the slow node explains."""
    nodes = {}
    for index, took in enumerate((20.0, 20.0, 30.0)):
        nodes[index] = NodeDocument(
            {"index": index, "cpu_count": 2},
            duration_sec=took,
            summary={"duration_sec": took, "job_cpu_avg_cores": 1.6, "cpu_limit_cores": 2.0,
                     "cpu_avg_utilization_pct": 80.0},
        )  # fmt: skip
    kinds = [finding.kind for finding in findings_of(PerfDocument(nodes))]
    assert kinds.index("straggler") < kinds.index("balanced")


def test_a_straggler_on_another_node_is_found() -> None:
    """Ranks are compared over all nodes of the run."""
    nodes = {}
    for index in range(3):
        parts = {"forward": 40.0} if index == 2 else {"backward": 45.0}
        steps = StepMetrics()
        steps.add("step", make_record(parts), index)
        document = make_document()
        document.steps = steps.as_dict()
        nodes[index] = document
    found = findings_of(PerfDocument(nodes))
    straggler = next(finding for finding in found if finding.kind == "straggler")
    assert (straggler.rank, straggler.part, straggler.bottleneck) == (2, "forward", "waiting")


def test_damaged_steps_leave_the_other_findings() -> None:
    """What cannot be read is left out, and the verdict stays."""
    document = make_document(make_record())
    document.steps = {"step": {"ranks": {"0": {"step": 3}}}}
    assert findings_of(document)


def _recorded() -> dict[str, Any]:
    return dict(json.loads(gzip.decompress(RECORDED.read_bytes()))) if RECORDED.exists() else {}


@pytest.mark.parametrize("name", list(_recorded()))
def test_the_causes_of_real_loops_are_named(name: str) -> None:
    """Loops of seconds that `benchmarks/steps.py` made slow and recorded: each cause is first."""
    recorded = _recorded()[name]
    found = find_step_causes(StepMetrics.from_dict(recorded["steps"]).records())
    word, rank, part = recorded["expected"]
    ranked = [cause for cause in found if cause.cause != "contended" or word == "contended"]
    assert (ranked[0].cause, ranked[0].rank, ranked[0].part) == (word, rank, part)
