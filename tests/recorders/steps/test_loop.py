"""`steps` and `part`: what a pass of a loop takes, and what it leaves as it is."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from mlflow_perf.recorders import current
from mlflow_perf.recorders.operations import OperationMetrics
from mlflow_perf.recorders.steps import StepMetrics, loop, part, parts, passes, steps
from mlflow_perf.recorders.steps.stats import LoopRecord, name_as_part


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The time in nanoseconds, as one number in a list; a look takes no time."""
    now = [1_000_000_000]
    for module in (loop, passes, parts):
        monkeypatch.setattr(module, "perf_counter_ns", lambda: now[0])
    return now


def record(session: StepMetrics, name: str = "step", rank: int = 0) -> LoopRecord:
    return session.records()[name][rank]


def pass_ms(clock: list[int], time_ms: float) -> None:
    clock[0] += round(time_ms * 1e6)


def slow_items(clock: list[int], count: int, time_ms: float) -> Iterator[int]:
    for item in range(count):
        pass_ms(clock, time_ms)
        yield item


def test_a_step_is_divided_into_input_and_compute_and_parts(
    session: StepMetrics, clock: list[int]
) -> None:
    """The wait for the item is `input`, the rest `compute`, and its parts are times per step."""
    for item in steps(slow_items(clock, 4, 30.0)):
        with part("forward"):
            pass_ms(clock, 10.0)
        for _ in range(2):  # a part's times within a step add up
            with part("backward"):
                pass_ms(clock, 5.0)
        if item % 2:
            with part("evaluation"):
                pass_ms(clock, 40.0)
        pass_ms(clock, 1.0)
    found = record(session)
    assert found.step.count == 4
    assert found.step.total_ms == pytest.approx(4 * 51 + 2 * 40)
    assert {name: times.total_ms for name, times in found.parts.items()} == pytest.approx(
        {
            "input": 120.0,
            "compute": 4 * 21.0 + 80.0,
            "forward": 40.0,
            "backward": 40.0,
            "evaluation": 80.0,
        }
    )
    assert {name: times.count for name, times in found.parts.items()} == {
        "input": 4, "compute": 4, "forward": 4, "backward": 4, "evaluation": 2,
    }  # fmt: skip
    assert found.step.max_ms == pytest.approx(91.0)
    assert found.first_ms == pytest.approx(51.0)
    assert found.parts["input"].percentiles([50])[0] == pytest.approx(30.0, rel=0.01)


def test_a_part_within_a_part_is_named_after_both(session: StepMetrics, clock: list[int]) -> None:
    """Nested parts do not count twice: the inner one has a name below the outer one's."""
    for _ in steps(range(2)):
        with part("forward"), part("attention"), part("attention"):
            pass_ms(clock, 3.0)
        with part("attention"):
            pass_ms(clock, 1.0)
    names = set(record(session).parts) - {"input", "compute"}
    assert names == {
        "forward", "forward.attention", "forward.attention.attention", "attention",
    }  # fmt: skip
    assert record(session).parts["attention"].total_ms == pytest.approx(2.0)


@pytest.mark.parametrize("how", ["break", "exception", "close", "return"])
def test_a_loop_that_is_cut_off_keeps_its_last_step(
    session: StepMetrics, clock: list[int], how: str
) -> None:
    """A step that `break`, an exception or a closed generator cuts off counts as far as it came."""

    def run() -> None:
        passes = steps(range(10))
        iterator = iter(passes)
        for item in iterator if how == "close" else passes:
            pass_ms(clock, 2.0)
            if item == 3:
                if how == "exception":
                    raise KeyError("the job's own")
                if how == "close":
                    iterator.close()  # type: ignore[attr-defined]
                if how == "return":
                    return
                break

    if how == "exception":
        with pytest.raises(KeyError, match="the job's own"):
            run()
    else:
        run()
    assert record(session).step.count == 4
    assert record(session).step.total_ms == pytest.approx(8.0)
    assert loop._innermost.get() is None


def test_nested_loops_and_several_names(session: StepMetrics, clock: list[int]) -> None:
    """A part belongs to the innermost loop; loops of one name add up."""
    for _ in steps(range(3), name="epoch"):
        for _ in steps(range(4), name="batch"):
            with part("forward"):
                pass_ms(clock, 1.0)
        with part("evaluation"):
            pass_ms(clock, 10.0)
    assert record(session, "batch").step.count == 12
    assert record(session, "batch").parts["forward"].count == 12
    assert record(session, "epoch").step.total_ms == pytest.approx(42.0)
    assert set(record(session, "epoch").parts) == {"input", "compute", "batch", "evaluation"}


def test_a_loop_within_a_step_is_a_part_of_it(session: StepMetrics, clock: list[int]) -> None:
    """Its time is not in the rest; within a part it has both names; in the loader it is input."""

    def load() -> Iterator[int]:
        for epoch in range(2):
            for _ in steps(range(1), name="files"):
                pass_ms(clock, 3.0)
            yield epoch

    for _ in steps(load(), name="epoch"):
        for _ in steps(slow_items(clock, 4, 5.0)):
            pass_ms(clock, 20.0)
        with part("validate"):
            for _ in steps(range(2), name="rows"):
                pass_ms(clock, 4.0)
    found = record(session, "epoch")
    assert found.parts["steps"].total_ms == pytest.approx(2 * 4 * 25.0)
    assert found.parts["validate.rows"].total_ms == pytest.approx(2 * 8.0)
    assert found.parts["input"].total_ms == pytest.approx(2 * 3.0)
    assert not {"files", "epoch", "step"} & found.parts.keys()


def test_a_loop_within_one_of_the_same_name_is_another_one(
    session: StepMetrics, clock: list[int]
) -> None:
    """Epochs of batches, neither with a name: no time counts twice, and no step is of both."""
    for _ in steps(range(3)):
        for _ in steps(slow_items(clock, 10, 5.0)):
            with part("forward"):
                pass_ms(clock, 20.0)
        for _ in steps(range(1)):
            for _ in steps(range(1)):
                pass_ms(clock, 1.0)
    outer, inner = record(session), record(session, "step.step")
    assert outer.divide() == pytest.approx({"input": 0.0, "steps": 251.0, "rest": 0.0})
    assert (outer.step.count, inner.step.count) == (3, 3 * (10 + 1 + 1))
    assert inner.parts["forward"].total_ms == pytest.approx(3 * 10 * 20.0)
    assert name_as_part("step.step") == "steps"
    assert name_as_part("epoch.epoch") == "epoch"


def test_what_is_saved_after_a_loop_belongs_to_it(session: StepMetrics, clock: list[int]) -> None:
    """It adds to the loop's time, and makes no step; a later session does not have it."""
    done = loop.open_loop("step")
    assert done is not None
    done.begin()
    pass_ms(clock, 60.0)
    done.close()
    done.add_late("checkpoint", 20_000_000)
    found = record(session)
    assert found.step.count == 1
    assert found.step.total_ms == pytest.approx(80.0)
    assert found.divide() == pytest.approx({"input": 0.0, "checkpoint": 20.0, "rest": 60.0})
    current.deactivate()
    done.add_late("checkpoint", 20_000_000)
    assert record(session).step.total_ms == pytest.approx(80.0)


def test_an_asynchronous_loop(session: StepMetrics, clock: list[int]) -> None:
    """`async for` is a loop like any other, also when its task is cancelled."""

    async def load() -> AsyncIterator[int]:
        for item in range(5):
            pass_ms(clock, 7.0)
            await asyncio.sleep(0)
            yield item

    async def train() -> int:
        total = 0
        async for item in steps(load()):
            with part("forward"):
                pass_ms(clock, 2.0)
            total += item
        return total

    assert asyncio.run(train()) == 10
    assert record(session).parts["input"].total_ms == pytest.approx(35.0)
    assert record(session).parts["forward"].total_ms == pytest.approx(10.0)


def test_threads_each_have_a_loop_of_their_own(session: StepMetrics) -> None:
    """Loops of the same name in several threads add up, each with its own parts."""

    def run() -> None:
        for _ in steps(range(100)):
            with part("forward"):
                pass

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert record(session).step.count == 400
    assert record(session).parts["forward"].count == 400


def test_a_part_outside_a_loop_is_an_operation(session: StepMetrics) -> None:
    """Its time is kept under `ops/<name>`."""
    with part("evaluation"):
        pass
    operations = current.process.operations
    assert operations is not None
    assert operations.aggregate_times()["evaluation"].count == 1
    assert session.is_empty()


def test_a_wrong_name_does_not_stop_the_job(
    session: StepMetrics, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is no name becomes text, with one warning."""
    monkeypatch.setattr(loop, "_warned", False)
    wrong: Any = [3]
    with caplog.at_level(logging.WARNING):
        for _ in steps(range(2), name=wrong):
            with part(wrong):
                pass
            with part("input"):  # a word of ours
                pass
    assert set(record(session, "[3]").parts) == {"input", "compute", "[3]", "input_part"}
    assert len(caplog.records) == 1


class _Hostile:
    """An object with which nothing can be done."""

    def _fail(self, *_: object) -> Any:
        raise RuntimeError

    __hash__ = __eq__ = __str__ = __repr__ = __bool__ = __len__ = _fail
    __class__ = property(_fail)


def test_a_hostile_name_does_not_stop_the_job(session: StepMetrics) -> None:
    """Neither its hash, its text nor its class can raise into the job."""
    wrong: Any = _Hostile()
    for _ in steps(range(2), name=wrong):
        with part(wrong):
            pass
    assert set(record(session, "<_Hostile>").parts) == {"input", "compute", "<_Hostile>"}
    for _ in steps(range(2), name="http://me:secret@host"):
        pass
    assert record(session, "http://me:***@host").step.count == 2


def test_a_part_of_the_time_has_its_own_steps(session: StepMetrics) -> None:
    """Sums that are fed for a while hold the steps of that while, of a loop that goes on too."""
    window = StepMetrics()
    for item in steps(range(10)):
        if item == 3:
            session.feed(window)
        if item == 7:
            session.stop_feeding(window)
    assert record(window).step.count == 4
    assert record(session).step.count == 10


def test_a_fault_of_ours_does_not_end_the_loop(
    session: StepMetrics, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The items come all the same, with one warning, whatever fails on our side."""
    monkeypatch.setattr(loop, "_warned", False)
    monkeypatch.setattr(session, "add", lambda *_: 1 / 0)
    assert list(steps(range(5))) == [0, 1, 2, 3, 4]
    monkeypatch.setattr(loop, "Watch", lambda: 1 / 0)
    assert list(steps(range(5))) == [0, 1, 2, 3, 4]
    assert [record.levelname for record in caplog.records] == ["WARNING"]


def test_the_end_of_the_session_ends_its_loops() -> None:
    """A session that ends within a loop has its steps so far, and the loop goes on."""
    current.activate(OperationMetrics(), folder=None)
    iterator = iter(steps(range(5)))
    assert [next(iterator), next(iterator)] == [0, 1]
    recorder = current.deactivate().steps
    assert list(iterator) == [2, 3, 4]
    assert recorder is not None
    assert record(recorder).step.count >= 2


def test_names_are_bounded(session: StepMetrics) -> None:
    """A part named after each item does not fill the memory: the rest is summed up as `other`."""
    for item in steps(range(100)):
        with part(f"item {item}"):
            pass
    for number in range(60):
        list(steps([1], name=f"loop {number}"))
    parts = record(session).parts
    assert len(parts) <= 45
    assert sum(times.count for name, times in parts.items() if name != "input") == 200
    assert len(session.records()) <= 52


def test_parts_of_tasks_side_by_side_all_count(session: StepMetrics, clock: list[int]) -> None:
    """Two tasks of one step in the same part: both times count, and the next step is clean."""

    async def work() -> None:
        with part("io"):
            pass_ms(clock, 1.0)
            await asyncio.sleep(0)

    async def train() -> None:
        for _ in steps(range(2)):
            await asyncio.gather(work(), work())

    asyncio.run(train())
    total = sum(times.total_ms for name, times in record(session).parts.items() if "io" in name)
    assert total >= 4.0


def test_each_task_is_in_parts_of_its_own(session: StepMetrics) -> None:
    """None is within the part of another task; within its own it is."""

    async def work(name: str, begun: asyncio.Event, go: asyncio.Event) -> None:
        with part(name):
            begun.set()
            await go.wait()
            with part("inner"):
                await asyncio.sleep(0)

    async def train() -> None:
        for _ in steps(range(3)):
            begun, go = asyncio.Event(), asyncio.Event()
            first = asyncio.create_task(work("a", begun, go))
            await begun.wait()
            second = asyncio.create_task(work("b", asyncio.Event(), go))
            await asyncio.sleep(0)
            go.set()
            await asyncio.gather(first, second)

    asyncio.run(train())
    found = record(session).parts
    assert found.keys() == {"input", "compute", "a", "b", "a.inner", "b.inner"}
    assert all(times.count == 3 for times in found.values())


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
def test_a_forked_child_inherits_no_step(session: StepMetrics, clock: list[int]) -> None:
    """The steps before the fork are the parent's; in the child a part is an operation."""
    for item in steps(range(3)):
        if item == 1:
            pid = os.fork()
            if pid == 0:
                clean = loop._innermost.get() is None
                os._exit(0 if clean and not loop._open.pop()._inputs_ns else 1)
            assert os.waitpid(pid, 0)[1] == 0
    assert record(session).step.count == 3


def test_long_loops_stay_small(clock: list[int]) -> None:
    """The course of a million seconds of steps is bounded, and its sums include every step."""
    current.activate(OperationMetrics(), folder=None)
    try:
        for _ in steps(range(20_000)):
            with part("forward"):
                pass_ms(clock, 50_000.0)
    finally:
        recorder = current.deactivate().steps
    assert recorder is not None
    course = record(recorder).course
    assert len(course.rows) <= 240
    assert sum(row.count for row in course.rows) == 20_000
    assert sum(row.parts_ms["forward"] for row in course.rows) == pytest.approx(1e9)


@pytest.mark.parametrize("is_handed_over", [False, True])
def test_work_after_the_last_step_counts(
    session: StepMetrics, clock: list[int], is_handed_over: bool
) -> None:
    """A trainer's last evaluation is a part of its loop, also if the steps were handed over."""
    driven = loop.open_loop("step")
    assert driven is not None
    driven.wait()
    for _ in range(2):
        pass_ms(clock, 1.0)
        driven.begin()
        pass_ms(clock, 10.0)
        driven.end()
        if is_handed_over:
            driven.flush()
        pass_ms(clock, 5.0)
        driven.add("evaluation", 5_000_000)
    driven.close()
    found = LoopRecord()
    found.merge(LoopRecord.from_dict(record(session).as_dict()))
    assert found.step.count == 2
    assert found.step.total_ms == pytest.approx(2 * 16)
    assert found.parts["evaluation"].total_ms == pytest.approx(10.0)
    assert sum(found.divide().values()) * 2 == pytest.approx(2 * 16)


def test_a_loop_without_a_step_is_none(session: StepMetrics, clock: list[int]) -> None:
    """A trainer that only evaluates leaves no steps."""
    driven = loop.open_loop("step")
    assert driven is not None
    driven.add("evaluation", 5_000_000)
    driven.close()
    assert session.records() == {}


def test_a_late_evaluation_survives_its_spool_file(session: StepMetrics, clock: list[int]) -> None:
    """A piece that has time but no step is written and read like any other."""
    piece = LoopRecord()
    piece.step.total_ms = 5.0
    assert LoopRecord.from_dict(piece.as_dict(brief=True)).step.total_ms == 5.0
