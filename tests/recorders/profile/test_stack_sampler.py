"""The sampling thread: what it finds agrees with what the code measured itself."""

from __future__ import annotations

import _thread
import asyncio
import hashlib
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import FunctionType
from typing import Any

import pytest
from tests.alone import alone

from mlflow_perf.core.thread_list import list_threads
from mlflow_perf.model.samples import MAIN_THREAD, OTHER_THREADS, RawStacks, Sample
from mlflow_perf.recorders.collect import collect_stacks
from mlflow_perf.recorders.profile import live, stack_sampler, stacks
from mlflow_perf.recorders.profile.stack_sampler import StackSampler
from mlflow_perf.recorders.profile.stacks import Place, list_idents, read_stack
from mlflow_perf.recorders.profile.watched import Watched
from mlflow_perf.recorders.profile.windows import StackWindow


def _burn(seconds: float) -> None:
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        sum(range(100))


def half() -> None:
    _burn(0.25)


def third() -> None:
    _burn(0.15)


def in_c() -> None:
    sum(range(10_000_000))  # keeps the interpreter's lock


def also_in_c() -> None:
    sum(range(3_000_000))


def asleep() -> None:
    time.sleep(0.1)


def _record(job: Callable[[], object], rate_hz: float | None = None) -> RawStacks:
    window = live.begin(rate_hz, None)
    try:
        job()
    finally:
        raw = live.end(window)
    return raw


def _seconds(raw: RawStacks, name: str, place: int = 3) -> float:
    """Return the wall (3) or CPU (4) seconds of the stacks that have a function."""
    named = [any(raw.functions[one].name == name for one in path) for _, _, path in raw.stacks]
    return sum(float(cell[place]) for cell in raw.cells if named[cell[2]])


def _timed(parts: list[Callable[[], None]], into: dict[str, float]) -> None:
    for part in parts:
        begin = time.monotonic()
        part()
        into[part.__name__] = into.get(part.__name__, 0.0) + time.monotonic() - begin


def test_the_shares_of_a_known_split_agree() -> None:
    """50, 30 and 20% of the CPU time and of sleep: the wall time of each as it measured itself."""
    took: dict[str, float] = {}
    raw = _record(lambda: _timed([half, third, asleep], took))
    whole = sum(took.values())
    for name, seconds in took.items():
        assert _seconds(raw, name) / whole == pytest.approx(seconds / whole, abs=0.08)
    assert _seconds(raw, "half", 4) + _seconds(raw, "third", 4) == pytest.approx(0.4, abs=0.08)
    assert _seconds(raw, "asleep", 4) < 0.05


def test_threads_that_wait_use_no_cpu_time_and_none_of_ours_is_seen() -> None:
    """Computing and waiting threads are distinguished; the main thread's join is its own time."""

    def job() -> None:
        threads = [threading.Thread(target=half), threading.Thread(target=asleep)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    raw = _record(job)
    assert _seconds(raw, "half", 4) == pytest.approx(0.25, abs=0.06)
    assert _seconds(raw, "asleep", 4) < 0.02
    assert _seconds(raw, "asleep") == pytest.approx(0.1, abs=0.08)
    assert {root for root, _, _ in raw.stacks} == {"main thread", "other threads"}
    assert not any("mlflow_perf" in function.file for function in raw.functions)


def test_waiting_in_an_event_loop_is_put_down_to_the_coroutines() -> None:
    """While the loop has nothing to do, its time is that of what its tasks await."""

    async def fetch(seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def serve() -> None:
        await asyncio.gather(fetch(0.25), fetch(0.25))

    raw = _record(lambda: asyncio.run(serve()))
    found = [[raw.functions[one].name for one in path] for _, _, path in raw.stacks]
    assert any(path[-2:] == ["fetch", "sleep"] and "_run_once" not in path for path in found)
    assert _seconds(raw, "fetch") == pytest.approx(0.25, abs=0.12)


def test_generators_recursion_and_generated_code_have_their_functions() -> None:
    """Time in a generator is its own, a function that calls itself is there once."""

    def rows() -> Iterator[int]:
        for number in range(3):
            _burn(0.03)
            yield number

    def deep(left: int) -> None:
        if left:
            deep(left - 1)
        else:
            _burn(0.1)

    def job() -> None:
        list(rows())
        deep(50)
        made["made_up"]()

    made: dict[str, Any] = {"burn": _burn}
    exec("def made_up():\n    burn(0.1)", made)

    raw = _record(job)
    names = [[raw.functions[one].name for one in path] for _, _, path in raw.stacks]
    assert any("rows" in path and path[-1] == "_burn" for path in names)
    assert {path.count("deep") for path in names if "deep" in path} == {1}
    assert any(function.file == "<string>" for function in raw.functions)


def test_one_thread_serves_several_windows() -> None:
    """Each window gets the samples of its own time; the thread ends with the last one."""
    first = live.begin(200, None)
    asleep()
    second = live.begin(None, None)
    third()
    names = [thread.name for thread in list_threads()]
    assert names.count("mlflow-perf-stacks") == 1
    both, later = live.end(first), live.end(second)
    assert _seconds(both, "asleep") > 0
    assert _seconds(later, "asleep") == 0
    assert 0 < _seconds(later, "third") <= 1.3 * _seconds(both, "third")


def test_the_switch_interval_is_as_the_job_left_it() -> None:
    """It is shortened while one thread works; what the job sets meanwhile stays."""
    before = sys.getswitchinterval()
    _record(third)
    assert sys.getswitchinterval() == before
    try:

        def job() -> None:
            third()
            sys.setswitchinterval(0.007)
            third()

        _record(job)
        assert sys.getswitchinterval() == pytest.approx(0.007, abs=2e-6)
    finally:
        sys.setswitchinterval(before)


@alone
def test_a_job_that_puts_back_the_switch_interval_it_read_gets_its_own_back() -> None:
    """A job that reads the shortened one, sets another and restores it ends with its own."""
    before = sys.getswitchinterval()

    def job() -> None:
        deadline = time.monotonic() + 10
        while (read := sys.getswitchinterval()) == before and time.monotonic() < deadline:
            _burn(0.01)
        assert read != before
        sys.setswitchinterval(0.02)
        third()
        sys.setswitchinterval(read)

    _record(job)
    assert sys.getswitchinterval() == before


def test_of_many_threads_a_few_are_looked_at_in_each_sample(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """To find a stack lists those of all threads; a thread's time waits for its turn."""
    monkeypatch.setattr(stack_sampler, "_MOST_LISTED", 0)
    looked: list[int] = []

    def look(ident: int) -> list[Place]:
        looked.append(ident)
        return read_stack(ident)

    monkeypatch.setattr(stack_sampler, "read_stack", look)
    over = threading.Event()
    threads = [threading.Thread(target=over.wait, args=(60,)) for _ in range(20)]
    for thread in threads:
        thread.start()
    sampler, window, walls = StackSampler(), StackWindow(), list[float]()

    def add(sample: Sample, at: float, wall: float, cpu: float, count: int = 1) -> None:
        walls.extend([wall] if any("wait" in one.name for one in sample.path) else [])

    monkeypatch.setattr(window, "add", add)
    earliest = time.monotonic()
    sampler.attach(window)
    sampler.release(window)
    begin = sampler._last
    for _ in range(3):
        glimpse = sampler._wait(0.0)[-1]
        looked.clear()
        sampler._sample(glimpse, list_idents())
        assert len(looked) <= 8
    until_last = sampler._last - begin
    sampler._finish()
    until_end = time.monotonic() - earliest
    over.set()
    sampler.interval.restore()
    assert 20 * until_last <= 1.001 * sum(walls)
    assert sum(walls) <= 1.001 * 20 * until_end


def test_a_fault_of_the_sampler_ends_it_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever its frames are like, the job goes on, with one warning."""

    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("odd frames")

    monkeypatch.setattr(StackSampler, "_sample", fail)
    raw = _record(asleep)
    assert raw.cells == []
    assert caplog.text.count("sampled no longer") == 1


def test_the_process_goes_on_where_no_thread_can_be_started(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A full process table costs the profile alone."""

    def refuse(_: StackSampler) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(StackSampler, "start", refuse)
    window = live.begin(None, None)
    assert isinstance(window, StackWindow)
    assert live.end(window).cells == []


def test_a_sample_knows_no_values() -> None:
    """What is kept of a frame is its root, line and functions."""
    assert Sample._fields == ("root", "line", "path")


def test_a_held_window_has_the_time_from_its_release_to_its_end() -> None:
    """What is done before a block begins and after it has ended is in no sample of it."""
    window = live.begin(None, None, held=True)
    try:
        asleep()
        live.release(window)
        began = time.monotonic()
        half()
        took = time.monotonic() - began
        live.note_end(window)
        asleep()
    finally:
        raw = live.end(window)
    assert _seconds(raw, "half") == pytest.approx(took, rel=0.02, abs=0.01)
    assert _seconds(raw, "asleep") == 0.0


@alone
def test_a_thread_that_python_does_not_list_is_not_the_main_thread() -> None:
    """One that `_thread` has started got the clock of the main thread, and its name."""
    over, ended = _thread.allocate_lock(), _thread.allocate_lock()
    over.acquire()
    ended.acquire()

    def raw() -> None:
        over.acquire()
        ended.release()

    _thread.start_new_thread(raw, ())
    raw_stacks = _record(third)
    over.release()
    ended.acquire()
    roots = {
        raw_stacks.functions[path[-1]].name: root for root, _, path in raw_stacks.stacks if path
    }
    assert roots["raw"] == OTHER_THREADS
    assert roots["_burn"] == MAIN_THREAD
    assert _seconds(raw_stacks, "raw", 4) == 0.0
    assert _seconds(raw_stacks, "_burn", 4) > 0.0


def test_a_thread_has_its_cpu_time_from_its_start_on() -> None:
    """That before its first sample was lost: of short threads, most of it."""
    sampler, window = StackSampler(), StackWindow()
    sampler.attach(window)
    sampler.release(window)
    done, over = threading.Event(), threading.Event()

    def work() -> None:
        _burn(0.1)
        done.set()
        over.wait(60)

    thread = threading.Thread(target=work)
    thread.start()
    assert done.wait(60)
    sampler._sample(sampler._wait(0.0)[-1], list_idents())
    sampler._finish()
    sampler.interval.restore()
    over.set()
    raw = window.as_raw()
    assert (
        0.1 <= sum(cell[4] for cell in raw.cells if raw.stacks[cell[2]][0] == OTHER_THREADS) < 0.2
    )


@alone
def test_a_thread_that_wakes_up_now_and_then_is_no_reason_to_wait_for_the_lock() -> None:
    """The sampler came 5 ms late then, and found the main thread where it sleeps."""
    over = threading.Event()
    heart = threading.Thread(target=lambda: [None for _ in iter(lambda: over.wait(0.005), True)])
    found: list[bool] = []

    def job() -> None:
        heart.start()
        for _ in range(100):
            _burn(0.01)
            sampler = live._live.sampler
            assert sampler is not None
            found.append(sampler.interval.is_set)
        over.set()
        heart.join()

    _record(job)
    assert sum(found) > 50


def test_sampling_ends_where_the_job_makes_another_interpreter(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Reading the stacks of its threads ended the process."""
    window = live.begin(None, None)
    sampler = live._live.sampler
    assert sampler is not None
    third()
    monkeypatch.setattr(stacks, "_list_interpreters", partial(list, (0, 1)))
    sampler.join(30)
    assert _seconds(live.end(window), "third") > 0.0
    assert [r.getMessage() for r in caplog.records] == [
        (
            "The job's stacks are sampled no longer: in a process with sub-interpreters, reading "
            "those of other threads can end it. MLFLOW_PERF_PROFILE=0 silences this."
        )
    ]


def test_a_held_window_outlasts_the_block_before_it() -> None:
    """In a pool of threads, one block ends while the next one starts."""
    before = live.begin(None, None)
    window = live.begin(None, None, held=True)
    live.end(before)
    live.release(window)
    third()
    assert _seconds(live.end(window), "third") > 0.0


def test_a_block_may_begin_between_the_end_of_another_and_of_its_window() -> None:
    """In a pool of threads: the one before is still being written."""
    before = live.begin(None, None)
    asleep()
    live.note_end(before)
    window = live.begin(None, None, held=True)
    live.release(window)
    third()
    first, second = live.end(before), live.end(window)
    assert _seconds(first, "asleep") > 0.0
    assert _seconds(first, "third") == 0.0
    assert _seconds(second, "third") > 0.0


@alone
def test_a_call_that_keeps_the_lock_from_the_start_of_a_block_has_its_time() -> None:
    """Nobody else runs before it has returned; its time went to nobody, or to what came next."""
    window = live.begin(None, None, held=True)
    try:
        live.release(window)
        began, used = time.monotonic(), time.thread_time()
        in_c()
        took, used = time.monotonic() - began, time.thread_time() - used
        asleep()
        live.note_end(window)
    finally:
        raw = live.end(window)
    assert _seconds(raw, "in_c") == pytest.approx(took, rel=0.1, abs=0.02)
    assert _seconds(raw, "in_c", 4) == pytest.approx(used, rel=0.1, abs=0.02)


@alone
def test_calls_that_keep_the_lock_one_after_the_other_have_each_its_time() -> None:
    """Between two of them the sampler has the lock for a moment: it looks within that moment."""
    took: dict[str, float] = {}
    parts = [asleep, in_c, also_in_c] * 6
    raw = _record(lambda: _timed(parts, took))
    whole = sum(took.values())
    for name, seconds in took.items():
        # At some of these moments, another thread of ours or a busy machine is faster.
        assert _seconds(raw, name) == pytest.approx(seconds, abs=0.2 * whole)


@alone
def test_such_a_call_is_in_the_profile_of_an_inner_block_too() -> None:
    """The outer block's last sample was before the inner one began."""
    outer = live.begin(None, None)
    asleep()
    inner = live.begin(None, None)
    began = time.monotonic()
    in_c()
    took = time.monotonic() - began
    live.note_end(inner)
    asleep()
    raw = live.end(inner)
    live.end(outer)
    assert _seconds(raw, "in_c") == pytest.approx(took, rel=0.1, abs=0.02)
    assert _seconds(raw, "asleep") == 0.0


def test_a_place_without_a_line_is_in_the_file_that_others_read(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The interpreter knows no line within a closure's first steps and a `with` block's end."""
    nowhere = FunctionType(_burn.__code__.replace(co_linetable=b""), globals())
    window = live.begin(200, tmp_path)
    try:
        nowhere(0.1)
        [raw] = collect_stacks(tmp_path)
    finally:
        live.end(window)
    assert _seconds(raw, "_burn") > 0.0
    assert not caplog.records


def test_a_thread_that_would_go_on_if_it_had_a_cpu_is_ready() -> None:
    """Where others have all CPUs, a thread that computes outside the lock is not asleep."""
    idents: list[int] = []
    over = threading.Event()

    def digest() -> None:
        idents.append(threading.get_native_id())
        while not over.is_set():
            hashlib.sha256(b"0" * (1 << 20))

    thread = threading.Thread(target=digest)
    thread.start()
    try:
        while not idents:
            time.sleep(0.01)
        busy, idle = (Watched(None, one, "main thread") for one in (idents[0], os.getpid()))
        assert sum(busy.is_ready() for _ in range(20)) > 15
    finally:
        over.set()
        thread.join()
    asleep = threading.Event()
    found: list[bool] = []

    def look() -> None:
        time.sleep(0.05)
        found.append(idle.is_ready())
        asleep.set()

    threading.Thread(target=look).start()
    asleep.wait()
    assert found == [False]
