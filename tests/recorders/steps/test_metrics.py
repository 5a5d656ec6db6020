"""`StepMetrics`: steps add up over processes and ranks, survive a kill, and become metrics."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlflow_perf.errors import DocumentError
from mlflow_perf.recorders.collect import collect_steps
from mlflow_perf.recorders.steps import StepMetrics
from mlflow_perf.recorders.steps.course import CourseRow
from mlflow_perf.recorders.steps.stats import LoopRecord, StepTimes


def make_piece(times_ms: list[float], began: float = 100.0) -> LoopRecord:
    piece = LoopRecord(began=began, first_ms=times_ms[0] if times_ms else 0.0)
    piece.step.add_all([round(value * 1e6) for value in times_ms])
    piece.parts["input"] = StepTimes()
    piece.parts["input"].add_all([round(value * 5e5) for value in times_ms])
    total = sum(times_ms)
    piece.course.append(
        CourseRow(began + 1, len(times_ms), total, max(times_ms), {"input": total / 2})
    )
    piece.sums = {"gc_ms": 1.0}
    return piece


times = st.lists(st.floats(0.001, 1e5), min_size=1, max_size=20)


@given(st.lists(st.tuples(times, st.integers(0, 3)), min_size=1, max_size=5))
def test_a_document_holds_all_that_merging_needs(pieces: list[tuple[list[float], int]]) -> None:
    """What was written is read unchanged, and pieces add up in any order."""
    one, other = StepMetrics(), StepMetrics()
    for number, (found, rank) in enumerate(pieces):
        one.add("step", make_piece(found, 100.0 + number), rank)
    for number, (found, rank) in reversed(list(enumerate(pieces))):
        other.add("step", make_piece(found, 100.0 + number), rank)
    text = json.dumps(one.as_dict(), allow_nan=False)
    again = StepMetrics.from_dict(json.loads(text))
    assert again.as_dict() == json.loads(text)
    mine, theirs = one.summary_metrics(), other.summary_metrics()
    assert mine == pytest.approx(theirs)
    assert mine["steps/step/input_pct"] == pytest.approx(50.0, abs=0.1)


def test_ranks_stay_apart_and_metrics_are_of_all() -> None:
    """The document has each rank; a metric is of all ranks of the node."""
    recorder = StepMetrics()
    recorder.add("step", make_piece([10.0] * 4), 0)
    recorder.add("step", make_piece([30.0] * 4), 1)
    ranks = recorder.as_dict()["step"]["ranks"]
    assert {rank: record["step"]["p50_ms"] for rank, record in ranks.items()} == {
        "0": pytest.approx(10.0), "1": pytest.approx(30.0),
    }  # fmt: skip
    metrics = recorder.summary_metrics()
    assert metrics["steps/step/count"] == 4
    assert metrics["steps/step/mean_ms"] == pytest.approx(20.0)


@pytest.mark.parametrize(
    "data",
    [
        {"step": 3},
        {"step": {"ranks": {"x": {}}}},
        {"step": {"ranks": {"0": {"step": {"count": 1}, "parts": {}}}}},
        {"step": {"ranks": {"0": {"step": {"count": 0}, "parts": {"input": None}}}}},
    ],
)
def test_other_data_is_refused(data: dict[str, object]) -> None:
    """Damaged data raises one error that says so."""
    with pytest.raises(DocumentError, match=r"steps of (a loop|loops) cannot be read"):
        StepMetrics.from_dict(data)


_KILLED = """
import os, signal, sys
from mlflow_perf.recorders.steps import loop, part, steps
loop._FLUSH_NS = 0  # each row, instead of once a second
for item in steps(range(1000), name="train"):
    with part("forward"):
        sum(range(20_000))
    if item == 900:
        os.kill(os.getpid(), signal.SIGKILL)
"""


def test_the_steps_of_a_killed_process_are_gathered(tmp_path: Path) -> None:
    """A rank that is killed leaves its steps in the spool folder, under its rank, once."""
    code = [sys.executable, "-c", _KILLED]
    environ = {"MLFLOW_PERF_SPOOL": str(tmp_path), "RANK": "2", "WORLD_SIZE": "4"}
    ended = subprocess.run(code, env={**environ, "LOCAL_RANK": "2"}, check=False)
    assert ended.returncode == -9
    recorder = StepMetrics()
    for _ in range(2):  # a second time adds nothing
        collect_steps(tmp_path, recorder)
        found = recorder.records()["train"][2]
        assert 0 < found.step.count <= 901
        assert found.parts["forward"].count == found.step.count


def test_a_damaged_file_is_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A file that cannot be read costs one warning, and not the others' steps."""
    writer = StepMetrics()
    writer.spool_to(tmp_path)
    writer.add("step", make_piece([1.0]), 0)
    writer.spool_to(None)
    (tmp_path / "steps-1-x.spool").write_bytes(b"not ours")
    recorder = StepMetrics()
    collect_steps(tmp_path, recorder)
    assert recorder.records()["step"][0].step.count == 1
    assert len(caplog.records) == 1


def test_few_rows_where_many_ranks_share_a_document() -> None:
    """The courses of all ranks of a node stay within a bound, and each keeps all its steps."""
    recorder = StepMetrics()
    for rank in range(64):
        for second in range(200):
            recorder.add("step", make_piece([5.0], 100.0 + second), rank)
    ranks = recorder.as_dict()["step"]["ranks"]
    assert max(len(record["course"]["count"]) for record in ranks.values()) <= 24
    assert {sum(record["course"]["count"]) for record in ranks.values()} == {200}
