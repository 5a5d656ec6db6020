"""The turns of a thread of ours, and how the job's threads come between them."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from mlflow_perf.recorders.profile import job_profiler
from mlflow_perf.recorders.profile.turns import Turns, Woken


class _Monitoring:
    PROFILER_ID = 2
    tool: str | None = None

    def get_tool(self, _: int) -> str | None:
        return self.tool

    def use_tool_id(self, _: int, name: str) -> None:
        self.tool = name


def _wait(turns: Turns, seconds: float = 0.0) -> Woken:
    returned: list[Any] = [function(*args) for function, args in turns.wait(seconds)]
    return turns.begin(returned[-1])


def _is_free(turns: Turns) -> bool:
    if is_free := turns._turn.acquire(blocking=False):
        turns._turn.release()
    return is_free


def test_a_turn_is_held_from_one_wait_to_the_next() -> None:
    """So a thread of the job that waits for it finds the thread of ours at rest."""
    turns = Turns(bool)
    turns.enter()
    assert not _is_free(turns)
    assert _wait(turns) == Woken(ended=False, was_profiled=False)
    assert not _is_free(turns)
    turns.leave()
    assert _is_free(turns)


def test_no_turn_begins_while_a_profiler_is_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next one says that it was."""
    fake = _Monitoring()
    monkeypatch.setattr(job_profiler, "monitoring", fake)
    fake.tool = "cProfile"
    turns, ended = Turns(bool), []
    turns.enter()

    def end() -> None:
        time.sleep(0.2)
        ended.append(_is_free(turns))
        fake.tool = None

    thread = threading.Thread(target=end)
    thread.start()
    assert _wait(turns) == Woken(ended=False, was_profiled=True)
    thread.join()
    assert ended == [True]
    assert _wait(turns) == Woken(ended=False, was_profiled=False)


def test_a_stop_ends_the_wait_for_a_profiler(monkeypatch: pytest.MonkeyPatch) -> None:
    """A profiler may stay on for ever."""
    fake = _Monitoring()
    monkeypatch.setattr(job_profiler, "monitoring", fake)
    fake.tool = "cProfile"
    turns = Turns(bool)
    turns.enter()
    threading.Timer(0.1, turns.stop).start()
    assert _wait(turns) == Woken(ended=True, was_profiled=True)


def test_a_profiler_comes_when_the_turn_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """And makes the interpreter calm."""
    fake = _Monitoring()
    monkeypatch.setattr(job_profiler, "monitoring", fake)
    calmed: list[bool] = []
    turns = Turns(lambda: calmed.append(fake.tool is None))
    turns.profiler.watch()
    turns.enter()
    threading.Timer(0.01, turns.leave).start()
    fake.use_tool_id(2, "cProfile")
    assert calmed == [True]
    assert fake.tool == "cProfile"
    turns.profiler.restore()


def test_a_turn_that_nobody_gives_back_is_not_waited_for() -> None:
    """A signal handler of the job may raise where the job's thread has it."""
    turns = Turns(bool)
    turns._turn.acquire()
    begin = time.monotonic()
    assert _wait(turns) == Woken(ended=False, was_profiled=False)
    assert 0.02 < time.monotonic() - begin < 5.0
    assert _is_free(turns)
    with turns.between():
        assert not _is_free(turns)
