"""What a sample costs, beside peers and the floor, all in turns (targets.md).

Run it with `python -m benchmarks collector`, `--json` for other programs. Costs are CPU time; each
row's contenders take turns in short rounds and the best round of each counts, so that a busy
machine spoils none of them more than the others.

- floor: the same kernel files through kept descriptors, read and not looked at;
- psutil: one call per source, nothing else;
- seed: what lightgbm-benchmark's collector does per report, in our words: utilisation of each CPU
  over an interval of its own, memory, disk, disk IO, and each interface's counters;
- MLflow: its system metrics monitors, asked once each;
- tree (psutil): a process and its descendants, one by one, as process trackers do.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import psutil

from mlflow_perf.perf import PerformanceMetricsCollector
from mlflow_perf.readers import Reader, default_readers
from mlflow_perf.readers.processes import ProcessTreeReader
from mlflow_perf.series import BoundedSeries
from mlflow_perf.summary import RunningSummary

ROUNDS = 40
_SEED_SOURCES = ("cpu", "memory", "disk_usage", "disk_io", "network")


@dataclass(frozen=True)
class Row:
    """One measured figure: ours beside a peer's.

    Attributes:
        what: What was measured.
        peer: Name of the peer; empty where there is none.
        peer_value: The peer's figure; None where there is none.
        value: Ours.
        unit: Unit of both.
        target: Most that ours may be, in that unit; None where none is set.
    """

    what: str
    peer: str
    peer_value: float | None
    value: float
    unit: str
    target: float | None = None

    @property
    def met(self) -> bool | None:
        """Whether the target is met."""
        return None if self.target is None else self.value <= self.target


def best(functions: list[Callable[[], Any]], *, loops: int, rounds: int = ROUNDS) -> list[float]:
    """Return the least CPU time of one call of each, in µs, measured in turns."""
    least = [float("inf")] * len(functions)
    for _ in range(rounds):
        for place, function in enumerate(functions):
            begin = time.process_time_ns()
            for _ in range(loops):
                function()
            least[place] = min(least[place], (time.process_time_ns() - begin) / loops / 1e3)
    return least


def floor() -> Callable[[], None]:
    """Return what reads the seed's sources through kept descriptors."""
    paths = ("stat", "meminfo", "diskstats", "net/dev")
    files = [os.open(f"/proc/{path}", os.O_RDONLY) for path in paths]

    def read() -> None:
        for file in files:
            os.pread(file, 1 << 16, 0)
        os.statvfs("/")

    return read


def bare_psutil() -> None:
    """Ask psutil for each source once."""
    psutil.cpu_percent(percpu=True)
    psutil.virtual_memory()
    psutil.disk_usage("/")
    psutil.disk_io_counters()
    psutil.net_io_counters(pernic=True)


def seed() -> dict[str, float]:
    """Take one report as the seed does, less the wait for its interval."""
    busy = psutil.cpu_percent(interval=1e-6, percpu=True)
    report = {
        "cpu_avg": sum(busy) / len(busy), "cpu_min": min(busy), "cpu_max": max(busy),
        "mem": psutil.virtual_memory().percent, "disk": psutil.disk_usage("/").percent,
    }  # fmt: skip
    io = psutil.disk_io_counters(perdisk=False)
    if io is not None:
        report["read"], report["written"] = io.read_bytes / 2**20, io.write_bytes / 2**20
    nics = psutil.net_io_counters(pernic=True)
    for name, nic in nics.items():
        side = "lo" if name == "lo" else "ext"
        report[f"{side}_sent"] = report.get(f"{side}_sent", 0.0) + nic.bytes_sent / 2**20
        report[f"{side}_recv"] = report.get(f"{side}_recv", 0.0) + nic.bytes_recv / 2**20
    return report


def mlflow_monitors() -> Callable[[], None]:
    """Return what asks MLflow's own monitors once."""
    from mlflow.system_metrics.metrics.cpu_monitor import CPUMonitor
    from mlflow.system_metrics.metrics.disk_monitor import DiskMonitor
    from mlflow.system_metrics.metrics.network_monitor import NetworkMonitor

    monitors = [CPUMonitor(), DiskMonitor(), NetworkMonitor()]

    def ask() -> None:
        for monitor in monitors:
            monitor.collect_metrics()
            monitor.clear_metrics()

    return ask


def sampling(readers: list[Reader]) -> Callable[[], None]:
    """Return what takes one sample of these readers."""

    def sample() -> None:
        report: dict[str, float] = {}
        for reader in readers:
            reader.read(report)

    return sample


def psutil_tree() -> Callable[[], None]:
    """Return what walks this process's tree with psutil."""
    root = psutil.Process()

    def walk() -> None:
        for process in (root, *root.children(recursive=True)):
            with process.oneshot():
                process.cpu_times()
                process.memory_info()
                process.io_counters()

    return walk


def per_sample() -> list[Row]:
    """Compare one sample of the seed's sources."""
    readers = [reader for reader in default_readers() if reader.name in _SEED_SOURCES]
    peers = {"floor": floor(), "psutil": bare_psutil, "MLflow": mlflow_monitors(), "seed": seed}
    *others, ours = best([*peers.values(), sampling(readers)], loops=20)
    what = "CPU per sample, the seed's sources"
    return [
        Row(what, name, value, ours, "µs", min(100.0, value / 3) if name == "seed" else None)
        for name, value in zip(peers, others, strict=True)
    ]


def with_children(count: int, target_us: float) -> list[Row]:
    """Compare one sample with the job's sources too, over a tree of so many sleeping processes."""
    children = [subprocess.Popen(["sleep", "600"]) for _ in range(count - 1)]
    loops = 20 if count < 100 else 2
    try:
        readers = default_readers()
        tree = next(r for r in readers if isinstance(r, ProcessTreeReader))
        walk, own_tree, ours = best(
            [psutil_tree(), sampling([tree]), sampling(readers)], loops=loops, rounds=10
        )
        return [
            Row(f"CPU per sample, tree of {count} alone", "tree (psutil)", walk, own_tree, "µs"),
            Row(f"CPU per sample, all sources, tree of {count}", "", None, ours, "µs", target_us),
        ]
    finally:
        for child in children:
            child.kill()
        for child in children:
            child.wait()


_SECONDS = 10
_OURS = f"""
import time
from mlflow_perf.perf import PerformanceMetricsCollector
collector = PerformanceMetricsCollector()
collector.start()
begin = time.process_time()
time.sleep({_SECONDS})
print(1e6 * (time.process_time() - begin) / {_SECONDS})
"""
_PSUTIL = f"""
import time, psutil
begin = time.process_time()
for _ in range({_SECONDS}):
    psutil.cpu_percent(percpu=True); psutil.virtual_memory(); psutil.disk_usage("/")
    psutil.disk_io_counters(); psutil.net_io_counters(pernic=True); time.sleep(1)
print(1e6 * (time.process_time() - begin) / {_SECONDS})
"""


def whole_process() -> list[Row]:
    """Compare the CPU time of a process that does nothing else, per second at one sample each."""
    running = [
        subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
        for code in (_PSUTIL, _OURS)
    ]
    theirs, ours = (float(process.communicate()[0]) for process in running)
    return [Row("CPU per second at 1 Hz, all sources", "psutil", theirs, ours, "µs", 700.0)]


def start_and_stop() -> list[Row]:
    """Measure starting and stopping, in CPU and in wall time."""
    starts, stops, waits = [], [], []
    for _ in range(20):
        collector = PerformanceMetricsCollector(interval=1.0)
        begin = time.process_time()
        collector.start()
        started = time.process_time()
        clock = time.perf_counter()
        collector.finalize()
        waits.append(time.perf_counter() - clock)
        starts.append(started - begin)
        stops.append(time.process_time() - started)
    return [
        Row("start, CPU", "", None, 1e3 * min(starts), "ms", 5.0),
        Row("stop, CPU", "", None, 1e3 * min(stops), "ms"),
        Row("stop, wall (seed: 0.52 s mean)", "", None, 1e3 * min(waits), "ms", 10.0),
    ]


def memory() -> list[Row]:
    """Measure what 1,000 reports of all columns take, and what 100,000 more add."""
    report: dict[str, float] = {"timestamp": 0.0, "elapsed_sec": 0.0}
    for reader in default_readers():
        reader.read(report)
        reader.read(report)
        reader.close()
    tracemalloc.start()
    series, summary = BoundedSeries(1000), RunningSummary()

    def add(count: int) -> float:
        for _ in range(count):
            report["elapsed_sec"] += 1.0
            fresh = {name: value + 0.5 for name, value in report.items()}
            series.append(fresh)
            summary.add(fresh)
        return tracemalloc.get_traced_memory()[0] / 1e3

    first = add(1000)
    # A column's room rises and falls as neighbours are merged: the most of several turns counts.
    early = max(add(100) for _ in range(100))
    late = max(add(100) for _ in range(1000))
    tracemalloc.stop()
    return [
        Row(f"memory of 1,000 reports, {len(report)} columns", "", None, first, "kB", 500.0),
        Row("the same with peaks beside merged means", "", None, early, "kB", 500.0),
        Row("growth from 10,000 to 110,000 reports", "", None, max(0.0, late - early), "kB", 1.0),
    ]


def main() -> None:
    """Measure everything and print the table."""
    rows = [*per_sample(), *with_children(10, 400.0), *with_children(500, 10_000.0)]
    rows += [*whole_process(), *start_and_stop(), *memory()]
    if "--json" in sys.argv:
        print(json.dumps([{**asdict(row), "met": row.met} for row in rows], indent=2))
        return
    print(f"{'what':<46} {'peer':<14} {'peer’s':>9} {'ours':>9}    {'ratio':>6}  target")
    for row in rows:
        theirs = "" if row.peer_value is None else f"{row.peer_value:.1f}"
        ratio = "" if not row.peer_value else f"{row.value / row.peer_value:.2f}"
        verdict = "" if row.met is None else f"≤ {row.target:.0f}: {'met' if row.met else 'MISSED'}"
        print(
            f"{row.what:<46} {row.peer:<14} {theirs:>9} {row.value:>9.1f} {row.unit} "
            f"{ratio:>6}  {verdict}"
        )


if __name__ == "__main__":
    main()
