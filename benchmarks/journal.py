"""What the crash-safe journal costs: CPU time, bytes on disk, and the whole process at 1 Hz.

Run it with `python -m benchmarks journal`. The processes with and without a journal run side by
side, and the best figure of each counts: a busy machine spoils neither more than the other.

- tight: reports of this machine's own sources appended and flushed as often as a job at 1 Hz does,
  snapshots and the waits for the disk included, with no time between;
- at 1 Hz: a process that sleeps inside `mlflow_perf.report()`, as it is and with the journal's
  thread left out.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

PAIRS, SECONDS = 3, 24
REPORTS = 8000

_SLEEPER = """
import os, sys, time
import mlflow_perf
from mlflow_perf.publish.journal import Journal
import mlflow_perf.publish.dispatch

mlflow_perf.publish.dispatch.write_node = lambda delivery, **_: str(delivery.run.run_id)
if sys.argv[1] == "without":
    Journal.start = Journal.append = lambda self, *_: None
with mlflow_perf.report("sleeper"):
    time.sleep(1.5)
    begin, at = time.process_time(), time.monotonic()
    time.sleep(float(sys.argv[2]))
    print(1e6 * (time.process_time() - begin) / (time.monotonic() - at))
"""


def tight(folder: Path) -> tuple[float, float, int]:
    """Return CPU time per report in µs, bytes written per report, and the largest file in bytes."""
    from mlflow_perf.model.document import NodeDocument
    from mlflow_perf.publish.journal import Journal
    from mlflow_perf.publish.journal_facts import JournalFacts
    from mlflow_perf.readers import default_readers
    from mlflow_perf.sampling.sampler import PerformanceMetricsCollector
    from mlflow_perf.tracking.delivery import Delivery

    report: dict[str, float] = {"timestamp": time.time(), "elapsed_sec": 0.0}
    for reader in default_readers():
        reader.read(report)
        reader.read(report)
        reader.close()
    collector = PerformanceMetricsCollector()

    delivery = Delivery(document=NodeDocument(node={"index": 0}, component="bench"))
    journal = Journal(delivery, JournalFacts(), folder=folder, snapshot=collector.snapshot)
    rows = [{**report, "elapsed_sec": float(n)} for n in range(REPORTS)]
    for row in rows:
        collector.append_perf_metrics(row)
    written, largest, begin = _written(), 0, time.process_time()
    for n, row in enumerate(rows, 1):
        journal.append(row)
        if n % 4 == 0:
            journal.flush(sync=n % 8 == 0)
            largest = max(largest, journal.path.stat().st_size)
    cpu_sec, written = time.process_time() - begin, _written() - written
    journal.remove()
    return 1e6 * cpu_sec / REPORTS, written / REPORTS, largest


def _written() -> int:
    """Return the bytes that this process has written."""
    lines = Path("/proc/self/io").read_text(encoding="ascii").splitlines()
    return int(next(line for line in lines if line.startswith("wchar")).split()[1])


def at_one_hertz(folder: Path) -> dict[str, list[float]]:
    """Return the CPU time per second in µs of processes with and without the journal."""
    environ = {
        **os.environ,
        "MLFLOW_PERF_DIR": str(folder),
        "MLFLOW_TRACKING_URI": f"sqlite:///{folder}/none.db",
        "MLFLOW_RUN_ID": "0" * 32,
    }
    spent: dict[str, list[float]] = {"with": [], "without": []}
    for _ in range(PAIRS):
        pair = {
            how: subprocess.Popen(
                [sys.executable, "-c", _SLEEPER, how, str(SECONDS)],
                env=environ, stdout=subprocess.PIPE, text=True,
            )
            for how in spent
        }  # fmt: skip
        for how, process in pair.items():
            spent[how].append(float(process.communicate()[0]))
    return spent


def main() -> None:
    """Print the table."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        cpu_us, size, largest = tight(folder)
        spent = {how: min(values) for how, values in at_one_hertz(folder).items()}
    rows = [
        ("journal, tight loop: CPU per report", cpu_us, "µs", ""),
        ("journal: bytes written per report", size, "B", ""),
        ("journal: largest file of a long job", largest / 1000, "kB", ""),
        ("process at 1 Hz, without journal", spent["without"], "µs/s", ""),
        ("process at 1 Hz, with journal", spent["with"], "µs/s", "≤ 700"),
        ("journal's share of it", spent["with"] - spent["without"], "µs/s", ""),
    ]
    for what, value, unit, target in rows:
        print(f"{what:<40}{value:>10.1f} {unit:<6}{target}")


if __name__ == "__main__":
    main()
