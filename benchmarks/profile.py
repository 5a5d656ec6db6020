"""Cost and truth of the stack sampler, beside py-spy and pyinstrument in the same run.

`python -m benchmarks profile [--part NAME]` prints a table. Targets: a pure-Python job is at most
1% slower at the default rate, and shares of known functions are within 3 points. py-spy needs
ptrace.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import os
import random
import re
import shutil
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

from mlflow_perf.model.document import NodeDocument, PerfDocument
from mlflow_perf.model.profile_building import build_profile
from mlflow_perf.model.samples import Function, RawStacks
from mlflow_perf.recorders.profile import live
from mlflow_perf.recorders.profile.pace import Pace
from mlflow_perf.recorders.profile.stack_sampler import StackSampler
from mlflow_perf.recorders.profile.stacks import list_idents
from mlflow_perf.recorders.profile.windows import StackWindow
from mlflow_perf.reports.html import render

RATE_HZ = 50.0
SLICE_SEC = 0.4
SLICES = 100


class PausingPace(Pace):
    """Lets a sampler sample in every second slice of the time only."""

    def next_wait(self) -> float:
        """Return the wait, with the rest of a slice without samples."""
        wait = super().next_wait()
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
    for name, asked_hz in (("default rate", None), (f"{RATE_HZ:g} Hz", RATE_HZ)):
        window = StackWindow()
        sampler, pace = StackSampler(asked_hz), PausingPace(asked_hz)
        sampler._pace, pace.begin = pace, time.monotonic()
        sampler.attach(window)
        sampler.release(window)
        sampler.start()
        found = measure_slowdown(pace.begin, lambda _: None)
        sampler.detach_last(window)
        rate_hz = sum(cell[5] for cell in window.as_raw().cells) / (SLICES / 2 * SLICE_SEC)
        report(f"ours, {name}", found, f", {rate_hz:.0f} Hz")
    with py_spy() as process:

        def switch(is_on: bool) -> None:
            process.send_signal(signal.SIGCONT if is_on else signal.SIGSTOP)

        report(f"py-spy, {RATE_HZ:g} Hz", measure_slowdown(time.monotonic(), switch))


@contextmanager
def wait_at(depth: int, threads: int) -> Iterator[None]:
    """Let threads wait at a depth."""
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
    yield
    over.set()
    for worker in workers:
        worker.join()


def take_sample(sampler: StackSampler) -> None:
    """Take one sample of all threads."""
    sampler._sample(sampler._wait(0.0)[-1], list_idents())


def sample_ours(*, busy: bool) -> float:
    """Return the CPU seconds of one sample of all threads."""
    sampler = StackSampler(RATE_HZ)
    window = StackWindow()
    sampler.attach(window)
    sampler.release(window)
    take_sample(sampler)
    costs = []
    for _ in range(300):
        if busy:  # as if each had run since the last sample
            for watched in sampler._watched.values():
                watched.rests = False
        begin = time.thread_time()
        take_sample(sampler)
        costs.append(time.thread_time() - begin)
    sampler.interval.restore()
    return statistics.median(costs)


def read_cpu(pid: int) -> float:
    """Return the CPU seconds of all threads of a process."""
    tasks = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(one.read_text("ascii").split()[0]) for one in tasks) / 1e9


def sample_py_spy() -> float:
    """Return py-spy's CPU seconds of one sample of all threads, which it takes beside the job."""
    with py_spy() as process:
        time.sleep(1.0)
        begin, before = time.monotonic(), read_cpu(process.pid)
        time.sleep(4.0)
        return (read_cpu(process.pid) - before) / (RATE_HZ * (time.monotonic() - begin))


def print_samples() -> None:
    """Print the CPU time of a sample, by the depth of the stacks and the number of threads."""
    for depth in (10, 100):
        for threads in (1, 50):
            with wait_at(depth, threads):
                costs = {
                    "ours, that ran": sample_ours(busy=True),
                    "ours, that waited": sample_ours(busy=False),
                    "py-spy, that waited": sample_py_spy(),
                }
            for name, cost in costs.items():
                what = f"CPU per sample, depth {depth}, {threads} threads"
                print(f"| {what} | {name} | {1e6 * cost:.0f} µs |", flush=True)


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
    if importlib.util.find_spec("pyinstrument") is None:
        print("| worst share of 50/30/20 | pyinstrument | not installed |")
        return
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
    """Print how long a profile of 100,000 stacks takes to its tree, and its graph in Chromium."""
    dice = random.Random(1)
    functions = [Function(f"f{i}", f"module{i % 40}.py", i, i % 3 == 0) for i in range(600)]
    stacks = [("main thread", 1, tuple(dice.choices(range(600), k=20))) for _ in range(100_000)]
    cells = [(1000.0 + i / 100, 0.0, i, dice.expovariate(10), 0.01, 1) for i in range(len(stacks))]
    begin = time.process_time()
    profile = build_profile([RawStacks(functions, stacks, cells)], started=1000.0, duration_sec=1e3)
    took = time.process_time() - begin
    size = len(json.dumps(profile)) / 1024
    print(f"| document of 100,000 folded stacks | ours | {took:.2f} CPU s, {size:.0f} kB |")
    node = NodeDocument(
        node={"index": 0}, started=1000.0, duration_sec=1e3, extra={"profile": profile}
    )
    boxes, times = draw(render(PerfDocument({0: node})))
    if times:
        shown = f"{statistics.median(times):.0f} ms ({min(times):.0f} to {max(times):.0f})"
        print(f"| its flame graph drawn in Chromium, {boxes} boxes | ours | {shown} |")


def draw(page: str) -> tuple[int, list[float]]:
    """Return how many boxes a report's flame graph has, and the milliseconds of five drawings.

    Each is from the data's text to the boxes with their layout; empty without Chromium.
    """
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        return 0, []
    page = re.sub(r"<meta[^>]*Content-Security-Policy[^>]*>", "", page)
    before, mark, after = page.rpartition("<script>/* The flame graph")
    page = f"{before}<script>window.begun = performance.now()</script>{mark}" + after.replace(
        "</script>",
        """</script><script>
            const graph = document.getElementById("flame"), width = graph.scrollHeight;
            const took = performance.now() - window.begun;
            document.body.dataset.drawn = `${graph.children.length} ${took}`;
            </script>""",
        1,
    )
    found = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "page.html")
        path.write_text(page, encoding="utf-8")
        for _ in range(5):
            command = [chromium, "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom"]
            command += [f"--user-data-dir={folder}/profile", path.as_uri()]
            done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
            found += re.findall(r'data-drawn="(\d+) ([\d.]+)"', done.stdout)
    return (int(found[0][0]) if found else 0), [float(took) for _, took in found]


PARTS = {
    "slowdown": print_slowdown,
    "samples": print_samples,
    "truth": print_truth,
    "drawing": print_drawing,
}

if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--part", choices=PARTS, action="append")
    print("| what | with | |\n| --- | --- | ---: |")
    for part in parser.parse_args().part or PARTS:
        PARTS[part]()
