"""The CPU time of threads that Python does not know belongs to the function that waits for them."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest
from tests.alone import alone

from mlflow_perf.model.samples import MAIN_THREAD, NATIVE_THREADS, OTHER_THREADS, Function, Sample
from mlflow_perf.recorders.profile import live, native_threads
from mlflow_perf.recorders.profile.native_threads import NativeThreads, find_callers
from mlflow_perf.recorders.profile.windows import StackWindow

BLAS = Function("blas", "job.py", 5, False)
WAIT = Function("Condition.wait", "threading.py", 300, True)


def _thread(function: Function, ran: float = 0.0) -> Any:
    """Return a stand-in for a thread of the job, which has run since the sampler has the lock."""
    samples = (Sample(MAIN_THREAD, 5, (function,)),)
    return SimpleNamespace(samples=samples, has_clock=True, at_cpu=0.0, read_cpu=lambda: ran)


def test_without_procfs_no_native_thread_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sandbox may have none; the sampler goes on."""

    def refuse(_: str) -> list[str]:
        raise FileNotFoundError

    monkeypatch.setattr("mlflow_perf.recorders.profile.native_threads.os.listdir", refuse)
    assert native_threads._list_unknown([]) == set()


def test_who_may_be_in_a_call_that_native_threads_work_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that runs beside the sampler, or one in a call that keeps the lock or waits."""
    monkeypatch.setattr(native_threads, "read_monotonic", lambda: 1.0)
    runs, computes, waits = _thread(BLAS, 0.9), _thread(BLAS), _thread(WAIT)
    busy = [(runs, 0.1, 1), (computes, 0.1, 2)]
    every = [runs, computes, waits]
    assert find_callers(busy, every, 0.0, waited=True, held=False) == [runs]
    assert find_callers(busy[1:], every, 0.0, waited=True, held=False) == []
    assert find_callers(busy[1:], every, 0.0, waited=True, held=True) == [computes]
    assert find_callers([], [computes, waits], 0.0, waited=False, held=False) == [computes]
    computes.has_clock = False
    assert find_callers(busy, every, 0.0, waited=True, held=False) == []


class _Clocks:
    """The CPU time of the process, and of its one native thread, in seconds."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.process = self.native = 0.0
        times = SimpleNamespace(
            process_time=lambda: self.process,
            thread_time=lambda: 0.0,
            clock_gettime=lambda _: self.native,
        )
        monkeypatch.setattr(native_threads, "time", times)
        monkeypatch.setattr(native_threads, "_list_unknown", lambda _: {-1})


def _cpu(window: StackWindow) -> dict[tuple[str, ...], float]:
    raw = window.as_raw()
    assert not any(cell[3] for cell in raw.cells)  # no wall time
    return {
        (raw.stacks[c[2]][0], *(raw.functions[one].name for one in raw.stacks[c[2]][2])): c[4]
        for c in raw.cells
    }


def test_their_time_is_kept_until_it_is_known_whose_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between two samples in C, the sampler may find the thread in Python."""
    clocks, native, window = _Clocks(monkeypatch), NativeThreads(OTHER_THREADS), StackWindow()
    window.begin = 0.0
    clocks.process, clocks.native = 0.2, 0.1
    native.note(0.1, 0.1)
    native.look_for_more([])
    assert native.note(0.0, 0.2) == pytest.approx(0.1)
    native.give([], [window], 0.0)
    assert _cpu(window) == {}
    native.give([_thread(BLAS)], [window], 0.0)
    assert _cpu(window) == {(MAIN_THREAD, "blas", NATIVE_THREADS.name): pytest.approx(0.1)}


def test_where_it_stays_unknown_it_is_no_functions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of several threads in C nobody knows which one waits for them."""
    clocks, native, window = _Clocks(monkeypatch), NativeThreads(OTHER_THREADS), StackWindow()
    window.begin = 0.0
    clocks.process, clocks.native = 0.2, 0.1
    native.note(0.1, 0.1)
    native.look_for_more([])
    native.give([_thread(BLAS), _thread(BLAS)], [window], 0.0)
    assert _cpu(window) == {(OTHER_THREADS, NATIVE_THREADS.name): pytest.approx(0.1)}


def test_a_thread_of_pythons_that_has_ended_is_none_of_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its time is in that of the process, too."""
    clocks, native = _Clocks(monkeypatch), NativeThreads(OTHER_THREADS)
    clocks.process = 1.0
    native.note(0.1, 0.1)
    native.look_for_more([])
    assert native.note(0.0, 0.2) == 0.0


@alone
def test_the_threads_of_blas_count_for_the_function_that_multiplies() -> None:
    """Half of the CPU time of a job was missing, so that its shares were wrong."""
    numpy = pytest.importorskip("numpy")
    matrix = numpy.ones((1500, 1500))

    def blas() -> None:
        end = time.process_time() + 2.0
        while time.process_time() < end:
            matrix @ matrix

    def python() -> None:
        end = time.process_time() + 1.0
        while time.process_time() < end:
            sum(range(1000))

    began, beside = time.process_time(), time.thread_time()
    blas()
    if time.process_time() - began < 1.3 * (time.thread_time() - beside):
        pytest.skip("BLAS has one thread here")
    window = live.begin(None, None)
    blas()
    python()
    raw = live.end(window)
    seconds = {"blas": 0.0, "python": 0.0}
    for _, _, stack, _, cpu, _ in raw.cells:
        for name in {raw.functions[one].name for one in raw.stacks[stack][2]} & seconds.keys():
            seconds[name] += cpu
    assert seconds["blas"] == pytest.approx(2.0, abs=0.3)
    assert seconds["python"] == pytest.approx(1.0, abs=0.2)
