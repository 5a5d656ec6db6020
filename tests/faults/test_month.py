"""A job of a month: what it keeps is bounded, and what it says of the whole month is exact."""

from __future__ import annotations

import json
import resource
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from mlflow_perf.core.json_io import round_columns
from mlflow_perf.model.document import NodeDocument, PerfDocument
from mlflow_perf.publish.journal import Journal
from mlflow_perf.publish.journal_facts import JournalFacts
from mlflow_perf.publish.recovery import read_journal
from mlflow_perf.sampling.sampler import PerformanceMetricsCollector
from mlflow_perf.testing import FakeClock, FakeReader
from mlflow_perf.tracking.delivery import Delivery

MONTH_SEC = 30 * 86_400
FLUSH_EVERY = 4
RESTART_EVERY = 5_000
"""Seconds after which a counter begins anew, as when a device goes and comes."""


def month(seconds: int) -> Iterator[dict[str, float]]:
    """Yield the columns of the seed once a second; each counter's growth is a binary fraction."""
    for n in range(seconds + 1):
        spike = n == seconds // 3
        since_restart = n % RESTART_EVERY
        yield {
            "cpu_pct_per_cpu_avg": 100.0 if n % 4 == 0 else 20.0,
            "cpu_pct_per_cpu_min": 99.5 if spike else float(n % 7),
            "cpu_pct_per_cpu_max": 100.0,
            "mem_percent": 97.25 if spike else 40.0 + n % 5,
            "disk_usage_percent": 50.0,
            "disk_io_read_mb": 0.25 * n,
            "disk_io_write_mb": 0.5 * since_restart,
            "net_io_lo_sent_mb": 0.0,
            "net_io_lo_recv_mb": 0.0,
            "net_io_ext_sent_mb": 0.125 * n,
            "net_io_ext_recv_mb": 2.0 * n,
        }


class Job:
    """A job in simulated time, with its journal.

    Attributes:
        largest: The journal's largest size in bytes in each half of the job.
        blocks: Python's memory blocks, at each tenth of the job.
    """

    def __init__(self, folder: Path, seconds: int) -> None:
        self.largest = [0, 0]
        self.blocks: list[int] = []
        self._seconds = seconds
        self._count = 0
        self.collector = PerformanceMetricsCollector(
            readers=[FakeReader(month(seconds))],
            clock=FakeClock(stop_after=seconds - 0.5),
            on_report=self._on_report,
        )
        document = NodeDocument(node={"index": 0}, component="month")
        self.journal = Journal(
            Delivery(document=document),
            JournalFacts(started=1_700_000_000.0, counters=counters()),
            folder=folder,
            snapshot=self.collector.snapshot,
        )

    def _on_report(self, report: dict[str, float]) -> None:
        self.journal.append(report)
        self._count += 1
        if self._count % FLUSH_EVERY == 0:
            self.journal.flush()
        if self._count % 97 == 0:
            half = min(1, 2 * self._count // self._seconds)
            self.largest[half] = max(self.largest[half], self.journal.path.stat().st_size)
        if self._count % (self._seconds // 10) == 0:
            self.blocks.append(sys.getallocatedblocks())

    def run(self) -> None:
        """Go through all the seconds."""
        self.collector.start()
        assert self.collector.report_thread is not None
        self.collector.report_thread.join()
        self.journal.flush()


def counters() -> list[str]:
    """Return the columns that are counters."""
    reader = FakeReader([{}])
    return [column.name for column in reader.columns]


def lives_through(folder: Path, seconds: int) -> None:
    """Run a job of so many seconds and check all that is said of it."""
    job = Job(folder, seconds)
    job.run()
    metrics = job.collector.metrics()
    assert metrics["duration_sec"] == seconds
    assert metrics["max_t_mem_percent"] == 97.25
    assert metrics["max_t_cpu_pct_per_cpu_min"] == 99.5
    assert metrics["total_disk_io_read_mb"] == 0.25 * seconds
    assert metrics["total_net_io_ext_recv_mb"] == 2.0 * seconds
    restarts = seconds // RESTART_EVERY
    assert metrics["total_disk_io_write_mb"] == 0.5 * (seconds - restarts)
    # Each value stands for the second that ends with it; the first row has the second's values.
    full = seconds // 4
    assert metrics["cpu_avg_utilization_pct"] == pytest.approx(20 + 80 * full / seconds, rel=1e-9)
    assert metrics["cpu_avg_utilization_over80_pct"] == pytest.approx(100 * full / seconds)

    reports = round_columns(job.collector.snapshot()["columns"])
    node = NodeDocument(component="month", summary=metrics, reports=reports)
    text = json.dumps(PerfDocument({0: node}).as_dict())
    assert len(reports["timestamp"]) <= 1000
    assert max(x for x in reports["mem_percent_max"] if x is not None) == 97.25
    assert len(text) <= 200_000, "the target for 1,000 reports with the seed's columns"

    biggest = max(job.largest)
    assert biggest <= 1 << 20
    assert job.largest[1] <= 1.1 * job.largest[0]
    growth = job.blocks[-1] - job.blocks[2]
    assert growth < 2_000, "Python's memory is the same at the third tenth and at the end"

    recovered, _ = read_journal(job.journal.path.read_bytes())
    for key in metrics.keys() - {"perf_overhead_pct", "node_count"}:
        assert recovered.document.summary[key] == pytest.approx(metrics[key], rel=1e-9), key
    job.journal.remove()
    print(
        f"\n{seconds:,} samples: document {len(text) / 1000:.0f} kB, journal at most "
        f"{biggest / 1000:.0f} kB, {growth:+} memory blocks after the third tenth, resident at "
        f"most {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MB"
    )


def test_hours(tmp_path: Path) -> None:
    """Hours, each second of them, merge many times over and stay exact and bounded."""
    lives_through(tmp_path, 12_000)


@pytest.mark.load
@pytest.mark.timeout(1800)
def test_a_month(tmp_path: Path) -> None:
    """A month at one second is as exact, and no bigger."""
    lives_through(tmp_path, MONTH_SEC)
