"""The effect of a sampler on the job beside it: whole processes at 1 Hz, and a busy main thread.

`at_one_hertz` runs all processes at the same time and reads the kernel's clocks of their CPU time.
`beside_a_busy_thread` gives each contender slices of time in turn, all in one process.
"""

from __future__ import annotations

import contextlib
import os
import random
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil

from mlflow_perf.readers.process.process import cpu_clock_sec

SECONDS = 12.0
_A_WAIT_SEC = 30e-6
_MB = 1 << 20

_LOOP = """
import sys, time
sys.path.insert(0, {here!r})
from _collector_peers import {name}
ask = {name}()
print('ready', flush=True)
while True:
    ask()
    time.sleep(1)
"""
_SCRIPTS = {
    "bare Python": "import time\nprint('ready', flush=True)\ntime.sleep(600)",
    "MLflow, to sqlite": """
import time, mlflow
from mlflow.system_metrics.system_metrics_monitor import SystemMetricsMonitor
run = mlflow.start_run()
SystemMetricsMonitor(run.info.run_id, sampling_interval=1, samples_before_logging=10).start()
time.sleep(11)
print('ready', flush=True)
time.sleep(600)
""",
    "resource-tracker": """
import time
from resource_tracker import ResourceTracker
tracker = ResourceTracker(interval=1, discover_server=False, discover_cloud=False)
tracker.start()
time.sleep(5)
print('ready', flush=True)
time.sleep(600)
""",
    "CodeCarbon": """
import time
from codecarbon import OfflineEmissionsTracker
tracker = OfflineEmissionsTracker(
    country_iso_code='USA', measure_power_secs=1, save_to_file=False, log_level='critical',
)
tracker.start()
time.sleep(3)
print('ready', flush=True)
time.sleep(600)
""",
    "ours, collector alone": """
import time
from mlflow_perf.sampling.sampler import PerformanceMetricsCollector
PerformanceMetricsCollector().start()
time.sleep(3)
print('ready', flush=True)
time.sleep(600)
""",
    "ours, report() with its journal": """
import time, mlflow_perf
with mlflow_perf.report('bench', profile=0) as perf:
    while perf.run_id is None:
        time.sleep(0.1)
    time.sleep(3)
    print('ready', flush=True)
    time.sleep(600)
""",
    "ours, with the stack sampler too": """
import time, mlflow_perf
with mlflow_perf.report('bench') as perf:
    while perf.run_id is None:
        time.sleep(0.1)
    time.sleep(8)
    print('ready', flush=True)
    time.sleep(600)
""",
}


def _scripts() -> dict[str, str]:
    here = str(Path(__file__).parent)
    loops = {"floor": "floor", "psutil": "bare_psutil", "seed": "seed"}
    made = {name: _LOOP.format(here=here, name=function) for name, function in loops.items()}
    return {**made, **_SCRIPTS}


def at_one_hertz(folder: Path) -> dict[str, tuple[float, float, int]]:
    """Return CPU per second (µs), resident memory (MB) and number of processes of each contender.

    Args:
        folder: An empty folder for a tracking store.
    """
    environ = {**os.environ, "MLFLOW_TRACKING_URI": f"sqlite:///{folder}/mlflow.db"}
    make_store = "from mlflow import MlflowClient; MlflowClient().search_experiments()"
    subprocess.run([sys.executable, "-c", make_store], env=environ, check=True, cwd=folder)
    running = {
        name: subprocess.Popen(
            [sys.executable, "-c", code], env=environ, cwd=folder, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        )
        for name, code in _scripts().items()
    }  # fmt: skip
    try:
        ready = {n: p for n, p in running.items() if _is_ready(p)}
        before = {name: _cpu_sec(process.pid) for name, process in ready.items()}
        begin = time.monotonic()
        time.sleep(SECONDS)
        passed = time.monotonic() - begin
        return {
            name: (1e6 * (_cpu_sec(process.pid) - before[name]) / passed, *_memory(process.pid))
            for name, process in ready.items()
        }
    finally:
        for process in running.values():
            _end(process)


def _is_ready(process: subprocess.Popen[str]) -> bool:
    assert process.stdout is not None
    return any(line == "ready\n" for line in process.stdout)


def _tree(pid: int) -> list[psutil.Process]:
    root = psutil.Process(pid)
    return [root, *root.children(recursive=True)]


def _cpu_sec(pid: int) -> float:
    total = 0.0
    for process in _tree(pid):
        with contextlib.suppress(OSError, psutil.Error):
            ended = process.cpu_times()
            total += cpu_clock_sec(process.pid) + ended.children_user + ended.children_system
    return total


def _memory(pid: int) -> tuple[float, int]:
    sizes = [process.memory_info().rss / _MB for process in _tree(pid)]
    return sum(sizes), len(sizes)


def _end(process: subprocess.Popen[str]) -> None:
    with contextlib.suppress(psutil.Error):
        for one in reversed(_tree(process.pid)):
            with contextlib.suppress(psutil.Error):
                one.kill()
    if process.stdout is not None:
        process.stdout.close()
    process.wait()


class Beside:
    """A thread that takes samples beside a busy main thread, in slices of time.

    Args:
        sample: Takes one sample.
        hertz: Samples per second.
    """

    def __init__(self, sample: Callable[[], object], hertz: float) -> None:
        self._sample, self._pause = sample, 1 / hertz
        self.skews: list[float] = []
        self.losses: list[float] = []

    def slice(self, work: Callable[[float], float], seconds: float) -> tuple[float, int]:
        """Return the result of `work` with the thread beside it, and the number of samples."""
        stop, count = threading.Event(), len(self.skews)

        def run() -> None:
            while not stop.wait(self._pause):
                begin = time.perf_counter()
                self._sample()
                self.skews.append(time.perf_counter() - begin)

        thread = threading.Thread(target=run)
        thread.start()
        lost = work(seconds)
        stop.set()
        thread.join()
        return lost, max(1, len(self.skews) - count)


def measure_waits(seconds: float) -> float:
    """Run pure Python for some seconds and return how long this thread stood still.

    A round takes a few µs, so a round of more than 30 µs contained a wait. Unlike the speed of the
    loop, this does not depend on the machine's clock rate.
    """
    # Other processes of this machine get their share before the measurement.
    time.sleep(0.3 * seconds)
    lost, before = 0.0, time.perf_counter()
    end = before + seconds
    while before < end:
        for _ in range(50):
            pass
        now = time.perf_counter()
        if now - before > _A_WAIT_SEC:
            lost += now - before
        before = now
    return lost


@contextlib.contextmanager
def _undisturbed() -> Iterator[bool]:
    """Give this process real-time priority, where that is allowed; yield whether it is."""
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    except (AttributeError, OSError):
        yield False
        return
    try:
        yield True
    finally:
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))


def beside_a_busy_thread(
    contenders: dict[str, Callable[[], object]], *, rounds: int = 20, slice_sec: float = 0.1
) -> dict[str, tuple[float, float]]:
    """Return how long each contender, at 50 Hz, holds up a busy main thread.

    Returns:
        Name → time lost per sample (µs, median of the slices), duration of a sample beside it (ms,
        median). "nothing" is the noise: the difference of slices without a sampler, per sample.
    """
    beside = {name: Beside(sample, 50) for name, sample in contenders.items()}
    noise: list[float] = []
    with _undisturbed():
        for _ in range(rounds):
            # In random order: periodic work of the machine affects all of them alike.
            for one in random.sample([*beside.values()], len(beside)):
                before = measure_waits(slice_sec)
                lost, samples = one.slice(measure_waits, slice_sec)
                after = measure_waits(slice_sec)
                one.losses.append(1e6 * (lost - (before + after) / 2) / samples)
                noise.append(1e6 * (after - before) / samples)
    found = {
        name: (statistics.median(one.losses), 1e3 * statistics.median(one.skews))
        for name, one in beside.items()
    }
    return {"nothing": (statistics.median(map(abs, noise)), 0.0), **found}
