"""The steps of a loop on the page: each rank's mean step, its parts, and its course."""

from __future__ import annotations

import re

import pytest

from mlflow_perf.model.document import NodeDocument, PerfDocument
from mlflow_perf.recorders.steps import StepMetrics
from mlflow_perf.recorders.steps.course import CourseRow
from mlflow_perf.recorders.steps.stats import LoopRecord, StepTimes
from mlflow_perf.reports import html
from mlflow_perf.reports.step_rows import build_loop_views


def make_record(forward_ms: float = 6.0, count: int = 50, name: str = "forward") -> LoopRecord:
    """Return steps of 2 ms of input, a part, and 2 ms beside it; the last one is twice as long."""
    record = LoopRecord(began=1000.0)
    factors = [1] * (count - 1) + [2]
    values = {"input": 2.0, "compute": forward_ms + 2.0, name: forward_ms}
    for part, value in values.items():
        record.parts[part] = StepTimes()
        record.parts[part].add_all([round(value * factor * 1e6) for factor in factors])
    whole = forward_ms + 4.0
    record.step.add_all([round(whole * factor * 1e6) for factor in factors])
    for number, factor in enumerate(factors):
        parts = {"input": 2.0 * factor, name: forward_ms}
        record.course.append(CourseRow(1001.0 + number, 1, whole * factor, whole * factor, parts))
    return record


def test_bars_add_up_to_the_step_and_compare_ranks() -> None:
    """The slowest rank fills the line, and the others are as long as their steps are."""
    view = build_loop_views({"step": {0: make_record(), 1: make_record(16.0)}})[0]
    widths = [sum(segment.width_pct for segment in bar.segments) for bar in view.bars]
    assert widths == pytest.approx([50.0, 100.0], abs=0.1)
    assert [segment.part for segment in view.legend] == ["input", "forward", "rest"]
    assert dict(view.rows)["step"][0] == "100"


def test_many_ranks_loops_and_parts_are_bounded() -> None:
    """The page shows the slowest ranks and the longest loops, and counts the others."""
    ranks = {rank: make_record(5.0 + rank) for rank in range(40)}
    view = build_loop_views({"step": ranks})[0]
    assert (len(view.bars), view.left_out) == (16, 24)
    assert view.bars[-1].label == "rank 39"
    assert len(build_loop_views({f"loop {i}": {0: make_record()} for i in range(20)})) == 6
    assert build_loop_views({"empty": {0: LoopRecord()}}) == []


def test_the_course_stays_in_its_box() -> None:
    """Each part is a shape over the whole length, and a long step does not flatten the others."""
    record = make_record(count=200)
    record.course.append(CourseRow(1300.0, 1, 9000.0, 9000.0, {"input": 2.0, "forward": 8000.0}))
    course = build_loop_views({"step": {0: record}})[0].course
    assert course is not None
    assert course.top == "30 ms"
    for i in range(40):
        row = CourseRow(1310.0 + 9 * i, 1, 9000.0, 9000.0, {"input": 2.0, "forward": 8000.0})
        record.course.append(row)
    grown = build_loop_views({"step": {0: record}})[0].course
    assert grown is not None
    assert grown.top == "9 s"
    for _, points in course.shapes:
        xs, ys = zip(*(map(float, point.split(",")) for point in points.split()), strict=True)
        assert (min(xs), max(xs)) == (0.0, 1000.0)
        assert 0.0 <= min(ys) <= max(ys) <= 100.0
    one = make_record(count=1)
    assert build_loop_views({"step": {0: one}})[0].course is None


def make_page(*ranks: LoopRecord, name: str = "step") -> str:
    steps = StepMetrics()
    for rank, record in enumerate(ranks):
        steps.add(name, record, rank)
    document = NodeDocument(
        summary={"duration_sec": 60.0}, duration_sec=60.0, steps=steps.as_dict()
    )
    return html.render(PerfDocument({0: document}))


def test_the_page_has_the_steps() -> None:
    """The split, the percentiles and the course are on the page, and names are escaped."""
    page = make_page(make_record(), make_record(16.0))
    assert "Part of a step" in page
    assert len(re.findall(r"<polygon", page)) == 3
    hostile = make_page(make_record(name="<img onerror=x>"), name="</script><b>")
    assert "<img onerror" not in hostile
    assert "</script><b>" not in hostile


def test_the_page_stays_small() -> None:
    """Ranks, loops and rows beyond the bounds cost no room on the page."""
    steps = StepMetrics()
    records = [make_record(5.0 + rank, 240) for rank in range(20)]
    for loop in range(7):
        for rank, record in enumerate(records):
            steps.add(f"loop {loop}", record, rank)
    document = NodeDocument(summary={"duration_sec": 60.0}, steps=steps.as_dict())
    small = len(make_page())
    assert len(html.render(PerfDocument({0: document}))) - small < 110_000


def test_damaged_steps_leave_the_page() -> None:
    """A document of a later version has its report without the loops."""
    document = NodeDocument(summary={"duration_sec": 60.0}, steps={"step": {"ranks": 3}})
    assert "Part of a step" not in html.render(PerfDocument({0: document}))
