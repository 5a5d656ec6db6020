"""What a sampler does to the job beside it: whole processes at 1 Hz, and a busy main thread.

The processes of `at_one_hertz` all run at the same time and are looked at from outside, through
the kernel's clocks of CPU time. The slices of `beside_a_busy_thread` take turns in one process.
"""

from __future__ import annotations

import contextlib
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import psutil

from mlflow_perf.readers.process import cpu_clock_sec

SECONDS = 12.0
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
from mlflow_perf.perf import PerformanceMetricsCollector
PerformanceMetricsCollector().start()
time.sleep(3)
print('ready', flush=True)
time.sleep(600)
""",
    "ours, report() with its journal": """
import time, mlflow_perf
with mlflow_perf.report('bench') as perf:
    while perf.run_id is None:
        time.sleep(0.1)
    time.sleep(3)
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
    """Return CPU per second (µs), resident memory (MB) and processes of each contender.

    Args:
        folder: Where a store may be made.
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
    """A thread that takes samples beside a busy main thread, as often as asked, in slices.

    Args:
        sample: What it calls.
        hertz: How often.
    """

    def __init__(self, sample: Callable[[], object], hertz: float) -> None:
        self._sample, self._pause = sample, 1 / hertz
        self.skews: list[float] = []
        self.losses: list[float] = []

    def slice(self, work: Callable[[float], float], seconds: float) -> tuple[float, int]:
        """Return what the work returned with the thread beside it, and how often it sampled."""
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


def waited(seconds: float) -> float:
    """Run pure Python in this thread for so long and return how long it was kept from running.

    Time in which it could have run and another process had the CPU is left out: what is left is
    what it waited for Python's lock. So a busy machine does not disturb the figure.
    """
    begin = time.perf_counter()
    before = time.thread_time() + _in_line_sec()
    while time.perf_counter() - begin < seconds:
        for _ in range(200):
            pass
    passed = time.perf_counter() - begin
    return passed - (time.thread_time() + _in_line_sec() - before)


def _in_line_sec() -> float:
    """Return how long this thread has stood in line for a CPU since it was started."""
    text = Path(f"/proc/self/task/{threading.get_native_id()}/schedstat").read_text("ascii")
    return int(text.split()[1]) / 1e9


def beside_a_busy_thread(
    contenders: dict[str, Callable[[], object]], *, rounds: int = 24, slice_sec: float = 0.25
) -> dict[str, tuple[float, float]]:
    """Return what each contender takes from a busy main thread at 50 Hz.

    Returns:
        Name -> time lost per sample (µs, median of the slices), how long a sample takes beside it
        (ms, median). "nothing" is what a slice without a sampler loses, per as many samples.
    """
    beside = {name: Beside(sample, 50) for name, sample in contenders.items()}
    noise: list[float] = []
    for _ in range(rounds):
        for one in beside.values():
            lost, samples = one.slice(waited, slice_sec)
            one.losses.append(1e6 * lost / samples)
            noise.append(1e6 * waited(slice_sec) / samples)
    found = {
        name: (statistics.median(one.losses), 1e3 * statistics.median(one.skews))
        for name, one in beside.items()
    }
    return {"nothing": (statistics.median(noise), 0.0), **found}
