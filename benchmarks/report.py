"""Time and size of the document and of the report: for one node and for a thousand.

`python -m benchmarks report` prints two tables. Targets: a document of 1,000 reports is read within
1 ms and written within 2 ms. A page has at most 400 kB for one node; for 1,000 nodes it has at most
5 MB, and takes at most 10 s and 500 MB of memory.
"""

from __future__ import annotations

import copy
import resource
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks._timing import best_of

from mlflow_perf.core.json_io import round_columns
from mlflow_perf.model.document import NodeDocument, PerfDocument
from mlflow_perf.model.series import BoundedSeries
from mlflow_perf.model.summary import RunningSummary
from mlflow_perf.reports.html import render

REPORTS = 1000
COLUMNS = ("cpu_pct_per_cpu_avg", "cpu_pct_per_cpu_min", "cpu_pct_per_cpu_max", "mem_percent")
COUNTERS = ("disk_io_read_mb", "disk_io_write_mb", "net_io_ext_sent_mb", "net_io_ext_recv_mb",
            "io_stall_sec", "cpu_stall_sec", "job_io_read_mb", "job_io_write_mb")  # fmt: skip


def node(index: int) -> NodeDocument:
    """Return a node whose columns all differ."""
    series, summary = BoundedSeries(REPORTS), RunningSummary()
    for i in range(REPORTS):
        report = {"timestamp": 1763640000.0 + i, "elapsed_sec": float(i), "cpu_limit_cores": 16.0}
        report |= {name: (i * (7 + k) + index) % 97 + 0.37 for k, name in enumerate(COLUMNS)}
        report |= {name: i * (k + 1) * 0.213 for k, name in enumerate(COUNTERS)}
        series.append(report)
        summary.add(report)
    facts = {"index": index, "hostname": f"worker-{index}"}
    return NodeDocument(
        facts, "train", summary=summary.metrics(), reports=round_columns(series.columns())
    )


class Nodes:
    """Nodes that are made one by one, and the time that making them takes."""

    def __init__(self, count: int) -> None:
        self.count, self.making_sec = count, 0.0
        self._made = [node(i) for i in range(8)]

    def __iter__(self) -> Iterator[NodeDocument]:
        for index in range(self.count):
            begin = time.perf_counter()
            one = copy.deepcopy(self._made[index % 8])
            one.node["index"] = index
            self.making_sec += time.perf_counter() - begin
            yield one


def measure_document() -> None:
    """Print the time to read and to write the document of one node."""
    document = PerfDocument({0: node(0)})
    columns = len(document.nodes[0].reports)
    with tempfile.TemporaryDirectory() as folder:
        path = document.save(Path(folder) / "node-0.json")
        data = path.read_bytes()
        write_ms = 1000 * best_of(30, lambda: document.save(path))
        read_ms = 1000 * best_of(30, lambda: PerfDocument.from_json(data))
    print(f"{'document':<28}{'kB':>8}{'read, ms':>10}{'write, ms':>11}")
    print(f"{f'{REPORTS} reports, {columns} columns':<28}", end="")
    print(f"{len(data) / 1000:>8.0f}{read_ms:>10.2f}{write_ms:>11.2f}\n")


def main() -> None:
    """Print the tables."""
    measure_document()
    print(f"{'nodes':>6} {'page, MB':>9} {'render, s':>10} {'memory, MB':>11}")
    for count in (1, 1000):
        nodes = Nodes(count)
        begin = time.perf_counter()
        page = render(iter(nodes))
        took = time.perf_counter() - begin - nodes.making_sec
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(f"{count:>6} {len(page.encode()) / 1e6:>9.2f} {took:>10.2f} {memory:>11.0f}")


if __name__ == "__main__":
    main()
