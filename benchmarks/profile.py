"""Cost and truth of the stack sampler, beside py-spy and pyinstrument in the same run.

`python -m benchmarks profile` prints two tables. Targets: a pure-Python job is at most 1% slower at
the default rate, and shares of known functions are within 3 points. py-spy needs ptrace.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mlflow_perf.model.profile import Function, RawStacks
from mlflow_perf.model.profile_building import build_profile
from mlflow_perf.recorders.profile import live
from mlflow_perf.recorders.profile.stack_sampler import StackSampler
from mlflow_perf.recorders.profile.windows import StackWindow

RATE_HZ = 50.0
SLICE_SEC = 0.4
SLICES = 120


class PausingSampler(StackSampler):
    """Samples in every second slice of the time only."""

    def _next_wait(self) -> float:
        wait = super()._next_wait()
        slice_number, into = divmod(time.monotonic() - self.begin, SLICE_SEC)
        return wait if slice_number % 2 else SLICE_SEC - into + wait

    begin = 0.0


@contextmanager
def py_spy(output: str = os.devnull) -> Iterator[subprocess.Popen[bytes]]:
    command = [
        str(Path(sys.executable).parent / "py-spy"), "record", "--nonblocking", "--rate",
        f"{RATE_HZ:g}", "--pid", str(os.getpid()), "--duration", "600", "--idle", "--format", "raw",
        "--output", output,
    ]  # fmt: skip
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    time.sleep(1.0)  # it begins in the second that follows
    try:
        yield process
    finally:
        process.send_signal(signal.SIGCONT)
        process.send_signal(signal.SIGINT)
        process.wait(30)


@contextmanager
def pyinstrument(into: list[Any]) -> Iterator[None]:
    from pyinstrument import Profiler

    profiler = Profiler(interval=1 / RATE_HZ)
    profiler.start()
    yield
    into.append(profiler.stop())


def read_delay() -> float:
    """Return the seconds in which this thread waited for a CPU that others had."""
    return int(Path("/proc/thread-self/schedstat").read_text("ascii").split()[1]) / 1e9


def add(a: int, b: int) -> int:
    return a + b


def count_loops(until: float) -> float:
    """Return how many calls of a small function a thread makes per second, up to a moment.

    The time in which others on this machine had the CPU does not count; that in which the thread
    waited for the interpreter's lock does.
    """
    calls, done, begin, delay = 0, 0, time.monotonic(), read_delay()
    while time.monotonic() < until:
        for _ in range(500):
            done = add(done, 1)
        calls += 500
    return calls / (time.monotonic() - begin - (read_delay() - delay))


def measure_slowdown(begin: float, switch: Callable[[bool], object]) -> tuple[float, float]:
    """Return how much slower, in per cent, slices with a sampler are than their neighbours without.

    Args:
        begin: Moment at which the first slice, one without, began or begins.
        switch: Called with whether the slice that begins is one with the sampler.

    Returns:
        The median over all pairs, and its standard error.
    """
    rates = []
    for number in range(1, SLICES):
        switch(number % 2 == 1)
        rates.append(count_loops(begin + (number + 1) * SLICE_SEC))
    with_it = [
        100 * (1 - rates[i] / statistics.fmean((rates[i - 1], rates[i + 1])))
        for i in range(2, len(rates) - 1, 2)
    ]
    error = 1.25 * statistics.stdev(with_it) / len(with_it) ** 0.5
    return statistics.median(with_it), error


def print_slowdown() -> None:
    """Print the slowdown of a pure-Python loop, in slices with and without a sampler in turns."""

    def report(name: str, found: tuple[float, float], more: str = "") -> None:
        print(f"| slowdown | {name} | {found[0]:+.2f} ± {found[1]:.2f}%{more} |", flush=True)

    report("none (noise)", measure_slowdown(time.monotonic(), lambda _: None))
    window = StackWindow()
    sampler = PausingSampler()
    sampler.begin = time.monotonic()
    sampler.attach(window)
    sampler.start()
    found = measure_slowdown(sampler.begin, lambda _: None)
    sampler.detach_last(window)
    rate_hz = sum(cell[5] for cell in window.as_raw().cells) / (SLICES / 2 * SLICE_SEC)
    report("ours, default rate", found, f", {rate_hz:.0f} Hz")
    with py_spy() as process:

        def switch(is_on: bool) -> None:
            process.send_signal(signal.SIGCONT if is_on else signal.SIGSTOP)

        report(f"py-spy, {RATE_HZ:g} Hz", measure_slowdown(time.monotonic(), switch))


def sample_at(depth: int, threads: int, *, busy: bool) -> float:
    """Return the CPU seconds of one sample of threads that wait at a depth."""
    over = threading.Event()

    def wait(left: int, other: bool = False) -> None:
        if left > 1:
            # Another function at each second level: equal neighbours are one.
            (wait_too if not other else wait)(left - 1)
        else:
            over.wait()

    def wait_too(left: int) -> None:
        wait(left, other=False) if left > 1 else over.wait()

    workers = [threading.Thread(target=wait, args=(depth,)) for _ in range(threads)]
    for worker in workers:
        worker.start()
    sampler = StackSampler(RATE_HZ)
    sampler._windows = (StackWindow(),)
    sampler._sample(waited=False)
    costs = []
    for _ in range(300):
        if busy:  # as if each had run since the last sample
            for watched in sampler._watched.values():
                watched.rests = False
        begin = time.thread_time()
        sampler._sample(waited=False)
        costs.append(time.thread_time() - begin)
    over.set()
    for worker in workers:
        worker.join()
    sampler.restore_interval()
    return statistics.median(costs)


def print_samples() -> None:
    for depth in (10, 100):
        for threads in (1, 50):
            for busy in (True, False):
                cost = sample_at(depth, threads, busy=busy)
                what = "that ran" if busy else "that waited"
                name = f"CPU per sample, depth {depth}, {threads} threads {what}"
                print(f"| {name} | ours | {1e6 * cost:.0f} µs |")


def half(seconds: float) -> None:
    end = time.thread_time() + 0.5 * seconds
    while time.thread_time() < end:
        sum(range(200))


def third(seconds: float) -> None:
    end = time.thread_time() + 0.3 * seconds
    while time.thread_time() < end:
        sum(range(200))


def rest(seconds: float) -> None:
    time.sleep(0.2 * seconds)


def run_split(turns: int, seconds: float) -> dict[str, float]:
    """Spend time in three functions in turns, and return what each took of the wall time."""
    took: dict[str, float] = {}
    for _ in range(turns):
        for part in (half, third, rest):
            begin = time.perf_counter()
            part(seconds)
            took[part.__name__] = took.get(part.__name__, 0.0) + time.perf_counter() - begin
    return took


def report_split(name: str, true: dict[str, float], found: dict[str, float]) -> None:
    whole, seen = sum(true.values()), sum(found.values()) or 1.0
    worst = max(abs(100 * (true[one] / whole - found.get(one, 0.0) / seen)) for one in true)
    print(f"| worst share of 50/30/20 | {name} | {worst:.1f} points |")


def print_truth() -> None:
    """Print how far the shares of three functions are from what they measured themselves."""
    window = live.begin(None, None)
    true = run_split(80, 0.1)
    raw = live.end(window)
    found: dict[str, float] = {}
    for cell in raw.cells:
        for one in {raw.functions[i].name for i in raw.stacks[cell[2]][2]} & true.keys():
            found[one] = found.get(one, 0.0) + cell[3]
    report_split("ours", true, found)
    with tempfile.TemporaryDirectory() as folder:
        output = f"{folder}/raw.txt"
        with py_spy(output):
            true = run_split(80, 0.1)
        found = {}
        with contextlib.suppress(OSError):
            for line in Path(output).read_text(encoding="utf-8").splitlines():
                stack, _, count = line.rpartition(" ")
                for one in true:
                    if f"{one} (" in stack:
                        found[one] = found.get(one, 0.0) + int(count)
        report_split("py-spy", true, found)
    sessions: list[Any] = []
    with pyinstrument(sessions):
        true = run_split(80, 0.1)
    found = {}
    for stack, seconds in sessions[0].frame_records:
        for one in true:
            if any(frame.split("\x00")[0] == one for frame in stack):
                found[one] = found.get(one, 0.0) + seconds
    report_split("pyinstrument", true, found)


def print_drawing() -> None:
    """Print how long a profile of 100,000 different stacks takes from samples to its tree."""
    dice = random.Random(1)
    functions = [Function(f"f{i}", f"module{i % 40}.py", i, i % 3 == 0) for i in range(600)]
    stacks = [("main thread", 1, tuple(dice.choices(range(600), k=20))) for _ in range(100_000)]
    cells = [(1000.0 + i / 100, 0.0, i, dice.expovariate(10), 0.01, 1) for i in range(len(stacks))]
    begin = time.perf_counter()
    profile = build_profile([RawStacks(functions, stacks, cells)], started=1000.0, duration_sec=1e3)
    took = time.perf_counter() - begin
    size = len(json.dumps(profile)) / 1024
    print(f"| document of 100,000 folded stacks | ours | {took:.2f} s, {size:.0f} kB |")


if __name__ == "__main__":
    print("| what | with | |\n| --- | --- | ---: |")
    print_slowdown()
    print_samples()
    print_truth()
    print_drawing()
