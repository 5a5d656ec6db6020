"""How large the report is and how long it takes: one node, and a thousand.

`python benchmarks/report.py` prints a table: bytes of the page, seconds in `render`, and the most
memory that the process had. Targets: 400 kB; 5 MB, 10 s, 500 MB.
"""

from __future__ import annotations

import copy
import resource
import time
from collections.abc import Iterator

from mlflow_perf.model.document import NodeDocument, round_columns
from mlflow_perf.model.series import BoundedSeries
from mlflow_perf.model.summary import RunningSummary
from mlflow_perf.reports.html import render

REPORTS = 1000
COLUMNS = ("cpu_pct_per_cpu_avg", "cpu_pct_per_cpu_min", "cpu_pct_per_cpu_max", "mem_percent")
COUNTERS = ("disk_io_read_mb", "disk_io_write_mb", "net_io_ext_sent_mb", "net_io_ext_recv_mb",
            "io_stall_sec", "cpu_stall_sec", "job_io_read_mb", "job_io_write_mb")  # fmt: skip


def node(index: int) -> NodeDocument:
    """Return a node whose columns waver, each in its own way."""
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
    """Nodes made one by one; notes how long making them takes."""

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


def main() -> None:
    """Print the table."""
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
