"""A profiler of the job counts what it counts without us."""

from __future__ import annotations

import contextlib
import functools
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest

from mlflow_perf.core.thread_list import list_threads
from mlflow_perf.model.samples import MAIN_THREAD
from mlflow_perf.recorders.profile import job_profiler, live
from mlflow_perf.recorders.profile.job_profiler import JobProfiler, look_for_profilers


class Monitoring:
    """`sys.monitoring`, as far as it is used."""

    PROFILER_ID = 2

    def __init__(self) -> None:
        self.tools: dict[int, str] = {}

    def get_tool(self, tool: int) -> str | None:
        """Return the name of the tool that is on."""
        return self.tools.get(tool)

    def use_tool_id(self, tool: int, name: str) -> None:
        """Switch a tool on."""
        if tool in self.tools:
            raise ValueError(f"tool {tool} is already in use")
        self.tools[tool] = name


@pytest.fixture
def monitoring(monkeypatch: pytest.MonkeyPatch) -> Monitoring:
    """What stands for the interpreter's module."""
    fake = Monitoring()
    monkeypatch.setattr(job_profiler, "monitoring", fake)
    return fake


def test_a_profiler_waits_for_the_meeting_and_no_other_tool_does(monitoring: Monitoring) -> None:
    """The interpreter's function does the rest, with its results and exceptions."""
    met: list[bool] = []

    @contextlib.contextmanager
    def meet() -> Iterator[None]:
        met.append(next(look_for_profilers()))
        yield

    profiler = JobProfiler(meet)
    profiler.watch()
    monitoring.use_tool_id(1, "coverage")
    assert met == []
    monitoring.use_tool_id(2, "cProfile")
    assert met == [False]
    assert next(look_for_profilers())
    with pytest.raises(ValueError, match="already in use"):
        monitoring.use_tool_id(2, "cProfile")
    profiler.restore()
    assert monitoring.use_tool_id == Monitoring.use_tool_id.__get__(monitoring)


def test_a_function_that_replaced_ours_stays(monitoring: Monitoring) -> None:
    """Ours, below it, does nothing more."""
    met: list[bool] = []

    @contextlib.contextmanager
    def meet() -> Iterator[None]:
        met.append(True)
        yield

    profiler = JobProfiler(meet)
    profiler.watch()
    jobs: Any = functools.partial(monitoring.use_tool_id)
    monitoring.use_tool_id = jobs  # type: ignore[method-assign]
    profiler.restore()
    monitoring.use_tool_id(2, "cProfile")
    assert monitoring.use_tool_id is jobs
    assert met == []


def seen() -> None:
    """Take time that is sampled."""
    time.sleep(0.15)


def unseen() -> None:
    """Take time under a profiler."""
    time.sleep(0.3)


def test_no_stacks_are_read_while_a_profiler_is_on(monitoring: Monitoring) -> None:
    """That time has a row of its own, and nothing of ours stays afterwards."""
    before = sys.getswitchinterval()
    window = live.begin(None, None)
    try:
        seen()
        begin = time.monotonic()
        monitoring.use_tool_id(2, "cProfile")
        assert sys.getswitchinterval() == before
        unseen()
        monitoring.tools.clear()
        time.sleep(0.1)
        seen()
    finally:
        raw = live.end(window)
    lasted = time.monotonic() - begin
    walls: dict[str, float] = {}
    for _, _, stack, wall, _, _ in raw.cells:
        root, _, functions = raw.stacks[stack]
        if root != MAIN_THREAD:  # the test runner has threads too
            continue
        for name in {raw.functions[one].name for one in functions}:
            walls[name] = walls.get(name, 0.0) + wall
    assert walls["seen"] > 0.15
    assert "unseen" not in walls
    assert 0.25 < walls["(not read: a profiler of the job was on)"] < lasted
    assert monitoring.use_tool_id == Monitoring.use_tool_id.__get__(monitoring)


def test_sampling_ends_while_a_profiler_is_on(monitoring: Monitoring) -> None:
    """Nobody waits for a profiler that is never switched off."""
    window = live.begin(None, None)
    monitoring.use_tool_id(2, "cProfile")
    live.end(window)
    assert "mlflow-perf-stacks" not in [one.name for one in list_threads()]


@pytest.mark.skipif(sys.version_info < (3, 12), reason="cProfile sees all threads from 3.12 on")
def test_cprofile_counts_the_job_alone() -> None:
    """Each return in our thread ended a function of the job's, and ours were among them."""
    import cProfile
    import pstats

    def burn() -> None:
        end = time.thread_time() + 0.2
        while time.thread_time() < end:
            sum(range(100))

    window = live.begin(None, None)
    found = []
    try:
        for _ in range(10):
            profile = cProfile.Profile()
            profile.enable()
            burn()
            profile.disable()
            found.append({key[2]: row for key, row in pstats.Stats(profile).stats.items()})  # type: ignore[attr-defined]
    finally:
        live.end(window)
    for names in found:
        assert set(names) == {
            "burn",
            "<built-in method time.thread_time>",
            "<built-in method builtins.sum>",
            "<method 'disable' of '_lsprof.Profiler' objects>",
        }
        assert names["burn"][3] > 0.19
