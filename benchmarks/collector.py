"""The cost of sampling, compared with peers and with the floor.

Run it with `python -m benchmarks collector`; `python benchmarks/collector.py` takes `--json` for
programs and `--markdown` for the documentation. Costs are CPU time. Each row's contenders take
turns in short rounds, or run at the same time, so that a busy machine affects all of them alike.
`_collector_peers.py` and `_collector_beside.py` define the peers; a peer that is not installed
(`pip install '.[bench]'`) is left out.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks import _collector_beside as beside
from benchmarks import _collector_peers as peers

from mlflow_perf.core.json_io import round_columns
from mlflow_perf.model.document import NodeDocument, PerfDocument
from mlflow_perf.model.series import BoundedSeries
from mlflow_perf.model.summary import RunningSummary
from mlflow_perf.readers import Reader, default_readers
from mlflow_perf.readers.process.tree import ProcessTreeReader
from mlflow_perf.sampling.reader_set import ReaderSet
from mlflow_perf.sampling.sampler import PerformanceMetricsCollector

ROUNDS = 40
_SEED_SOURCES = ("cpu", "memory", "disk_usage", "disk_io", "network")


@dataclass(frozen=True)
class Row:
    """One measured figure of ours, compared with a peer's.

    Attributes:
        what: What was measured.
        peer: Name of the peer; empty where there is none.
        peer_value: The peer's figure; None where there is none.
        value: Ours.
        unit: Unit of both.
        target: The largest allowed value of ours, in that unit; None for no target.
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


def measure_best(
    functions: list[Callable[[], Any]], *, loops: int, rounds: int = ROUNDS
) -> list[float]:
    """Return the least CPU time of one call of each function, in µs, measured in turns."""
    least = [float("inf")] * len(functions)
    for _ in range(rounds):
        for place, function in enumerate(functions):
            begin = time.process_time_ns()
            for _ in range(loops):
                function()
            least[place] = min(least[place], (time.process_time_ns() - begin) / loops / 1e3)
    return least


def make_sampler(readers: list[Reader]) -> Callable[[], None]:
    """Return a function that takes one sample of these readers."""

    def sample() -> None:
        report: dict[str, float] = {}
        for reader in readers:
            reader.read(report)

    return sample


def per_sample() -> list[Row]:
    """Compare one sample of the seed's sources."""
    readers = [reader for reader in default_readers() if reader.name in _SEED_SOURCES]
    others = peers.present({
        "floor": peers.floor, "psutil": peers.bare_psutil, "MLflow": peers.mlflow_monitors,
        "seed": peers.seed, "resource-tracker": peers.resource_tracker_system,
    })  # fmt: skip
    *theirs, ours = measure_best([*others.values(), make_sampler(readers)], loops=10)
    return [
        Row("CPU per sample, the seed's sources", name, value, ours, "µs",
            min(100.0, value / 3) if name == "seed" else None)
        for name, value in zip(others, theirs, strict=True)
    ]  # fmt: skip


def with_children(count: int, target_us: float) -> list[Row]:
    """Compare one sample of all sources, with a tree of `count` sleeping processes."""
    children = [subprocess.Popen(["sleep", "600"]) for _ in range(count - 1)]
    loops = 10 if count < 100 else 1
    what = f"CPU per sample, all sources, tree of {count}"
    try:
        readers = default_readers()
        tree = next(r for r in readers if isinstance(r, ProcessTreeReader))
        others = peers.present({
            "tree (psutil)": peers.psutil_tree, "resource-tracker": peers.resource_tracker_both,
        })  # fmt: skip
        *theirs, own_tree, ours = measure_best(
            [*others.values(), make_sampler([tree]), make_sampler(readers)], loops=loops, rounds=8
        )
        found = dict(zip(others, theirs, strict=True))
        return [
            Row(f"CPU per sample, tree of {count} alone", "tree (psutil)",
                found["tree (psutil)"], own_tree, "µs"),
            Row(what, "resource-tracker", found.get("resource-tracker"), ours, "µs", target_us),
        ]  # fmt: skip
    finally:
        for child in children:
            child.kill()
        for child in children:
            child.wait()


def whole_process() -> list[Row]:
    """Compare processes that only sample: CPU per second at 1 Hz, memory over bare Python."""
    with tempfile.TemporaryDirectory() as folder:
        found = beside.at_one_hertz(Path(folder))
    bare = found.pop("bare Python")[1]
    alone = found.pop("ours, collector alone")
    whole = found.pop("ours, report() with its journal")
    stacks = found.pop("ours, with the stack sampler too")
    rows = [
        Row("CPU per second at 1 Hz, collector alone", "", None, alone[0], "µs"),
        Row("CPU per second at 1 Hz, with the stack sampler", "", None, stacks[0], "µs"),
    ]
    for name, (cpu, _, _) in found.items():
        target = 0.75 * cpu if name == "psutil" else None
        what = "CPU per second at 1 Hz, journal and all"
        rows.append(Row(what, name, cpu, whole[0], "µs", target))
    for name, (_, memory_mb, count) in found.items():
        label = name if count == 1 else f"{name} ({count} processes)"
        target = 8.0 if name == "psutil" else None
        rows.append(
            Row("memory over bare Python", label, memory_mb - bare, alone[1] - bare, "MB", target)
        )
    return rows


def beside_a_busy_thread() -> list[Row]:
    """Compare how long a sample, at 50 Hz, holds up a main thread that only computes in Python."""
    readers = default_readers()
    sources, collector = ReaderSet(readers), PerformanceMetricsCollector(readers=[])
    begin = time.monotonic()

    def ours() -> None:
        now = time.monotonic() - begin
        collector.append_perf_metrics(sources.read({"timestamp": now, "elapsed_sec": now}))

    seeds = make_sampler([reader for reader in readers if reader.name in _SEED_SOURCES])
    others = peers.present({"floor": peers.floor, "psutil": peers.bare_psutil, "seed": peers.seed})
    found = beside.beside_a_busy_thread({**others, "ours": ours, "ours, its sources": seeds})
    sources.close()
    noise, _ = found.pop("nothing")
    lost, took = found.pop("ours")
    seeds_lost, seeds_took = found.pop("ours, its sources")
    rows = [Row("main thread stands still per sample, noise (A/A)", "", None, noise, "µs")]
    what = "main thread stands still per sample, seed's sources"
    for name, (value, _) in found.items():
        target = 1.5 * value if name == "floor" else None
        rows.append(Row(what, name, value, seeds_lost, "µs", target))
    what, floor = "main thread stands still per sample, all sources", found["floor"][0]
    rows.append(Row(what, "floor, of the seed's sources", floor, lost, "µs", 1.5 * floor))
    rows.append(Row("slowdown at 50 Hz, all sources", "", None, lost * 50 / 1e4, "%", 1.0))
    rows += [
        Row("a sample takes, beside it, seed's sources", name, value, seeds_took, "ms")
        for name, (_, value) in found.items()
    ]
    rows.append(Row("a sample takes, beside it, all sources", "", None, took, "ms", 5.0))
    return rows


def start_and_stop() -> list[Row]:
    """Measure the CPU time and the wall time of starting and stopping."""
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
    """Measure the memory of 1,000 reports of all columns, and its growth over 100,000 more."""
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
    # A column's memory rises and falls as neighbours are merged: compare the peaks.
    early = max(add(100) for _ in range(100))
    late = max(add(100) for _ in range(1000))
    tracemalloc.stop()
    return [
        Row(f"memory of 1,000 reports, {len(report)} columns", "", None, first, "kB", 500.0),
        Row("the same with peaks beside merged means", "", None, early, "kB", 500.0),
        Row("growth from 10,000 to 110,000 reports", "", None, max(0.0, late - early), "kB", 1.0),
    ]


def document() -> list[Row]:
    """Compare the document of 1,000 reports of the seed's columns with the seed's own file."""
    names = [c.name for r in default_readers() if r.name in _SEED_SOURCES for c in r.columns]
    series, summary = BoundedSeries(1000), RunningSummary()
    for i in range(1000):
        report = {"timestamp": 1763640000.0 + i, "elapsed_sec": float(i)}
        report |= {name: (i * 7 + k) % 97 + 0.123456 for k, name in enumerate(names)}
        series.append(report)
        summary.add(report)
    with tempfile.TemporaryDirectory() as folder:
        mine, seeds = Path(folder, "node-0.json"), Path(folder, "seed.json")
        rows = series.rows()

        def save() -> None:
            node = NodeDocument({"index": 0}, "bench", summary=summary.metrics(),
                                reports=round_columns(series.columns()))  # fmt: skip
            PerfDocument({0: node}).save(mine)

        theirs_us, ours_us = measure_best(
            [lambda: seeds.write_text(json.dumps({0: rows}, indent=2)), save], loops=1, rounds=10
        )
        sizes = [file.stat().st_size / 1e3 for file in (seeds, mine)]
    columns = f"{len(names) + 2} columns"
    return [
        Row(f"document of 1,000 reports, {columns}", "seed", sizes[0], sizes[1], "kB", 200.0),
        Row("the same, time to write", "seed", theirs_us / 1e3, ours_us / 1e3, "ms", 10.0),
    ]


def measure() -> list[Row]:
    """Measure everything."""
    rows = [*whole_process(), *per_sample(), *with_children(10, 400.0)]
    rows += [*with_children(500, 10_000.0), *beside_a_busy_thread(), *start_and_stop()]
    return [*rows, *memory(), *document()]


def _format_row(row: Row) -> tuple[str, ...]:
    theirs = "" if row.peer_value is None else f"{row.peer_value:,.1f}"
    ratio = "" if not row.peer_value else f"{row.value / row.peer_value:.2f}"
    verdict = "" if row.met is None else f"≤ {row.target:.0f}: {'met' if row.met else 'MISSED'}"
    return row.what, row.peer, theirs, f"{row.value:,.1f}", row.unit, ratio, verdict


def main() -> None:
    """Measure everything and print the table."""
    rows = measure()
    if "--json" in sys.argv:
        print(json.dumps([{**asdict(row), "met": row.met} for row in rows], indent=2))
    elif "--markdown" in sys.argv:
        print(f"Measured on {time.strftime('%Y-%m-%d', time.gmtime())}: {describe_machine()}.\n")
        print("| what | peer | the peer’s | ours | unit | ratio | target |")
        print("| --- | --- | ---: | ---: | --- | ---: | --- |")
        for row in rows:
            print(f"| {' | '.join(_format_row(row))} |")
    else:
        for cells in (
            ("what", "peer", "peer’s", "ours", "", "ratio", "target"),
            *map(_format_row, rows),
        ):
            print("{:<46} {:<28} {:>10} {:>9} {:<3} {:>6}  {}".format(*cells))


def describe_machine() -> str:
    """Return a description of this machine."""
    cpus, load = os.cpu_count(), os.getloadavg()[0]
    return (
        f"{platform.system()} {platform.release().split('-')[0]} on {platform.machine()}, {cpus} "
        f"CPUs, load {load:.1f}, Python {platform.python_version()}"
    )


if __name__ == "__main__":
    main()
