"""A machine on which anything may happen between two samples: every value stays plausible.

`docs/accuracy.md` names the test of each odd machine one by one; this one mixes them all.
"""

from __future__ import annotations

import logging
import math
import tempfile
import threading
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.readers import trees
from tests.readers.trees import alike_cpus, netdev, put, record

from mlflow_perf.model.columns import COLUMNS, lookup_kind
from mlflow_perf.model.summary import summarise
from mlflow_perf.readers import open_readers
from mlflow_perf.readers.disk import DiskIoReader
from mlflow_perf.readers.job import JobSources
from mlflow_perf.readers.memory import MemoryReader
from mlflow_perf.readers.network import NetworkReader
from mlflow_perf.readers.process.process import ProcessTable
from mlflow_perf.readers.process.tree import ProcessTreeReader
from mlflow_perf.records import Kind
from mlflow_perf.sampling.sampler import PerformanceReportingThread
from mlflow_perf.testing import FakeClock

DISK = "   8       0 sda 1 0 {n} 0 1 0 {n} 0 0 0 0 0 0 0 0 0 0\n"
STALL = "some avg10=0.00 avg60=0.00 avg300=0.00 total={n}\n"
GROUP = "sys/fs/cgroup"

Happenings = list[tuple[str, "str | int"]]
"""Files of the machine, each with its new text, or with the number that its counters get."""

# Each file of the machine, as it is when its counters stand at n.
FILES: dict[str, Callable[[int], str]] = {
    "proc/stat": lambda n: alike_cpus(n, 2 * n, cpus=1 + n % 3),
    "proc/meminfo": lambda n: f"MemTotal: 1000 kB\nMemFree: 1 kB\nMemAvailable: {n % 2000} kB\n",
    "proc/diskstats": lambda n: DISK.format(n=n),
    "proc/net/dev": lambda n: netdev(lo=(n, n), **({"eth0": (n, n)} if n % 2 else {})),
    "proc/pressure/cpu": lambda n: STALL.format(n=n),
    "proc/10/io": lambda n: f"rchar: 1\nread_bytes: {n}\nwrite_bytes: {n}\n",
    f"{GROUP}/cpu.stat": lambda n: f"usage_usec {n}\nnr_throttled {n}\nthrottled_usec {n}",
    f"{GROUP}/memory.current": lambda n: f"{n}\n",
    f"{GROUP}/memory.events": lambda n: f"oom_kill {n}\n",
    f"{GROUP}/cpu.max": lambda n: f"{1000 + n} 100000\n" if n % 2 else "max 100000\n",
}
NUMBERS = st.integers(0, 10**6)
HAPPENINGS = st.lists(
    st.tuples(
        st.sampled_from(sorted(FILES)),
        st.one_of(NUMBERS, st.sampled_from(["", "nonsense\n", "cpu0 1\nintr", "-5 -5\n", "\0\0"])),
    ),
    max_size=12,
)


def machine(root: Path) -> Path:
    """Write a whole machine: a container with two processes; return its procfs."""
    proc = trees.docker_v2(root)
    for name, content in FILES.items():
        put(root / name, content(1001))
    put(root / "sys/block/sda/size", "1\n")
    record(proc, 1, 0)
    record(proc, 10, 1, cpu=5, rss=256)
    return proc


def run_job(root: Path, happenings: list[Happenings]) -> list[dict[str, float]]:
    """Return the reports of a job of a minute per round of happenings, on a recorded machine."""
    proc = machine(root)
    left = iter(happenings)

    class EventfulClock(FakeClock):
        """A clock on which something happens to the machine at each wait."""

        def wait(self, event: threading.Event, timeout_sec: float) -> bool:
            for name, content in next(left, []) if timeout_sec > 1 else []:
                put(root / name, content if isinstance(content, str) else FILES[name](content))
            return super().wait(event, timeout_sec)

    clock = EventfulClock(stop_after=60.0 * len(happenings))
    job = JobSources(proc=proc, root=root, environ={}, clock=clock.monotonic)
    table = ProcessTable(proc, ticks_per_sec=100, page_bytes=4096)
    readers = open_readers([
        (job.cpu,), *((make,) for make in job.others), (lambda: MemoryReader(proc),),
        (lambda: DiskIoReader(proc, sys=root / "sys"),),
        (lambda: NetworkReader(proc, sys=root / "sys"),),
        (lambda: ProcessTreeReader(10, table=table, clock=clock.monotonic),),
    ])  # fmt: skip
    reports: list[dict[str, float]] = []
    thread = PerformanceReportingThread(
        60.0, callback_on_loop=reports.append, readers=readers, clock=clock, always_two=True
    )
    thread.start()
    thread.join()
    return reports


@given(st.lists(HAPPENINGS, min_size=1, max_size=5))
@settings(max_examples=15)
def test_whatever_happens_no_figure_is_absurd(happenings: list[Happenings]) -> None:
    """Counters that wrap, files that vanish or hold nonsense, CPUs and NICs that come and go."""
    logging.getLogger("mlflow_perf").setLevel(logging.ERROR)
    try:
        with tempfile.TemporaryDirectory() as folder:
            reports = run_job(Path(folder), happenings)
    finally:
        logging.getLogger("mlflow_perf").setLevel(logging.NOTSET)
    assert len(reports) == len(happenings) + 1
    for report in reports:
        for name, value in report.items():
            assert math.isfinite(value), name
            assert value >= 0, name
            assert COLUMNS[name].unit != "%" or value <= 100, name
    for before, after in pairwise(reports):
        for name in before.keys() & after.keys():
            if lookup_kind(name) is Kind.COUNTER:
                assert after[name] >= before[name], name
    for key, value in summarise(reports).items():
        assert math.isfinite(value), key
        assert value >= 0, key


def test_a_source_that_turns_to_nonsense_warns_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Its values are left out until it is sound again; all other readers go on."""
    nonsense: Happenings = [("proc/stat", "nonsense\n")]
    sound: Happenings = [("proc/stat", 2000)]
    reports = run_job(tmp_path, [nonsense, nonsense, sound, [("proc/stat", 3000)]])
    assert ["cpu_busy_sec" in report for report in reports] == [True, False, False, True, True]
    assert all("mem_percent" in report for report in reports)
    warnings = [r for r in caplog.records if r.levelno >= logging.WARNING]
    assert len([r for r in warnings if "'cpu'" in r.getMessage()]) == 1
