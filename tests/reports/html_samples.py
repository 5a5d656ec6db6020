"""Documents that look like those of real jobs, for the tests of the pages."""

from __future__ import annotations

import math
import random
from typing import Any

from mlflow_perf.core.json_io import round_columns
from mlflow_perf.model.document import NodeDocument, PerfDocument
from mlflow_perf.model.series import BoundedSeries
from mlflow_perf.model.summary import RunningSummary

HOSTILE = "</script><img src=x onerror=alert(1)>'\"&`\u202e"


def reports(count: int, *, seed: int = 0, cores: int = 16) -> list[dict[str, float]]:
    """Return raw reports of a job that loads, computes in bursts and writes, one per second."""
    rng = random.Random(seed)
    totals = dict.fromkeys(
        (
            "disk_io_read_mb",
            "disk_io_write_mb",
            "net_io_lo_sent_mb",
            "net_io_lo_recv_mb",
            "net_io_ext_sent_mb",
            "net_io_ext_recv_mb",
            "cpu_busy_sec",
            "cpu_ticks_sec",
            "cpu_iowait_sec",
            "cpu_stall_sec",
            "mem_stall_sec",
            "io_stall_sec",
            "job_io_read_mb",
            "job_io_write_mb",
            "job_cpu_sec",
        ),
        0.0,
    )
    rows = []
    for i in range(count):
        t = i / max(1, count - 1)
        loading = t < 0.15
        busy = (
            12 + 6 * rng.random()
            if loading
            else 55 + 25 * math.sin(t * 40 + seed) + 8 * rng.random()
        )
        busy = min(100.0, max(0.5, busy))
        low, high = busy * (0.3 + 0.2 * rng.random()), min(100.0, busy + 20 + 15 * rng.random())
        if i:
            totals["disk_io_read_mb"] += (180 if loading else 4) * rng.random()
            totals["disk_io_write_mb"] += 120 * rng.random() if i % 60 > 50 else 0.3 * rng.random()
            totals["job_io_read_mb"] = totals["disk_io_read_mb"] * 0.8
            totals["job_io_write_mb"] = totals["disk_io_write_mb"] * 0.9
            totals["net_io_lo_sent_mb"] += 0.1 * rng.random()
            totals["net_io_lo_recv_mb"] = totals["net_io_lo_sent_mb"]
            totals["net_io_ext_sent_mb"] += 2 * rng.random()
            totals["net_io_ext_recv_mb"] += (90 if loading else 1) * rng.random()
            totals["cpu_busy_sec"] += cores * busy / 100
            totals["cpu_ticks_sec"] += cores
            totals["job_cpu_sec"] += cores * busy / 100 * 0.9
            totals["cpu_iowait_sec"] += 3 * rng.random() if loading else 0.1 * rng.random()
            totals["cpu_stall_sec"] += 0.05 * rng.random()
            totals["mem_stall_sec"] += 0.01 * rng.random()
            totals["io_stall_sec"] += 0.6 * rng.random() if loading else 0.02 * rng.random()
        rows.append(
            {
                "timestamp": 1763640000.0 + i,
                "elapsed_sec": float(i),
                "cpu_pct_per_cpu_avg": busy,
                "cpu_pct_per_cpu_min": low,
                "cpu_pct_per_cpu_max": high,
                "cpu_limit_cores": float(cores),
                "mem_percent": 22 + 45 * (1 - math.exp(-4 * t)) + rng.random(),
                "disk_usage_percent": 61.0 + 2 * t,
                "job_cpu_cores": cores * busy / 100 * 0.9,
                "job_mem_mb": 900 + 20000 * (1 - math.exp(-4 * t)) + 50 * rng.random(),
                "job_processes": 17.0,
                **totals,
            }
        )
    return rows


OPERATIONS = ("load_data", "fit", "fit.histogram", "fit.split", "evaluate", "store.get.deserialize")


def operations(seed: int = 0) -> dict[str, Any]:
    """Return the figures of a few operations, as a node's document holds them."""
    rng = random.Random(seed)
    found = {}
    for number, name in enumerate(OPERATIONS):
        count = 10 ** (number % 4)
        average = 5000 / count * (0.5 + rng.random())
        found[name] = {
            "count": count,
            "total_ms": average * count,
            "avg_ms": average,
            "p50_ms": average * 0.9,
            "p95_ms": average * 1.8,
            "p99_ms": average * 2.5,
            "min_ms": average * 0.4,
            "max_ms": average * 3,
        }
    return found


def node(index: int = 0, *, count: int = 1, rows: int = 300, keep: int = 1000) -> NodeDocument:
    """Return one node of a job of `count` nodes that took `rows` seconds."""
    series, summary = BoundedSeries(keep), RunningSummary()
    for report in reports(rows, seed=index):
        series.append(report)
        summary.add(report)
    summary.set_fact("node_count", float(count))
    summary.set_fact("perf_overhead_pct", 0.041)
    return NodeDocument(
        node={
            "index": index,
            "count": count,
            "hostname": f"worker-{index:03d}",
            "cpu_count": 16,
            "launcher": "openmpi",
        },
        component="train",
        run_id="0123456789abcdef0123456789abcdef",
        status="FINISHED",
        started=1763640000.0,
        duration_sec=float(rows - 1),
        summary=summary.metrics(),
        reports=round_columns(series.columns()),
        operations=operations(index),
        transfers={
            "nixl": {"num_successful": 128, "avg_xfer_time_ms": 1.93, "throughput_mb_s": 5210}
        },
        extra={
            "bottleneck": "cpu",
            "advice": "The CPUs were busy 58% of the time; 4 of 16 would do.",
        },
    )


def document(nodes: int = 1, *, rows: int = 300, keep: int = 1000) -> PerfDocument:
    """Return the document of a job."""
    return PerfDocument({i: node(i, count=nodes, rows=rows, keep=keep) for i in range(nodes)})


def hostile_document() -> PerfDocument:
    """Return a document in which every text is hostile."""
    one = node(rows=30)
    one.node["hostname"] = one.component = one.status = HOSTILE
    one.node[HOSTILE] = HOSTILE
    one.run_id = HOSTILE
    one.operations = {HOSTILE: one.operations["fit"]}
    one.transfers = {HOSTILE: {HOSTILE: 1.0, "count": 2.0}}
    one.summary[f"ops/{HOSTILE}/count"] = 3.0
    one.summary[HOSTILE] = 1.0
    one.reports[HOSTILE] = [1.0] * len(next(iter(one.reports.values())))
    one.extra = {"bottleneck": HOSTILE, "advice": HOSTILE}
    return PerfDocument({0: one})


_START = 1763640000.0


def _step_node(index: int, started: float, duration: float, busy: float) -> dict[str, Any]:
    hours = duration * 16 / 3600
    return {
        "index": index,
        "started": _START + started,
        "duration_sec": duration,
        "summary": {
            "duration_sec": duration,
            "cpu_avg_utilization_pct": busy,
            "node_cpu_hours": hours,
            "node_used_cpu_hours": hours * busy / 100,
            "node_unused_cpu_hours": hours * (1 - busy / 100),
            "max_t_mem_percent": 40.0 + index,
            "cpu_limit_cores": 16.0,
            "job_cpu_avg_cores": 0.13 * busy,
            "job_cpu_hours": 0.13 * busy * duration / 3600,
            "job_max_mem_mb": 900.0 + index,
        },
    }


def _step(name: str, after: list[str], started: float, duration: float, **more: Any) -> Any:
    nodes = more.pop("nodes", 1)
    return {
        "name": name,
        "run_id": name[0] * 32,
        "status": "FINISHED",
        "started": _START + started,
        "duration_sec": duration,
        "nodes": [
            _step_node(i, started + 20, duration - 30 - 30 * i, 88 - 12 * i) for i in range(nodes)
        ],
        "critical": True,
        "depends_on": after,
        **more,
    }


WORKFLOW: dict[str, Any] = {
    "name": "training",
    "started": _START,
    "duration_sec": 900.0,
    "steps": [
        _step("generate", [], 4, 120, waited_sec=4.0),
        _step("partition", ["generate"], 130, 60, waited_sec=6.0),
        _step("train", ["partition"], 220, 480, waited_sec=30.0, nodes=4),
        _step("validate", ["partition"], 200, 90, status="FAILED", critical=False),
        _step("score", ["train"], 720, 180, waited_sec=20.0),
    ],
    "critical_path": ["generate", "partition", "train", "score"],
    "totals": {"waited_sec": 60.0, "outside_sec": 150.0},
    "findings": ["train takes 53% of the time.", "score would do with 6 CPUs."],
}

COMPARISON: dict[str, Any] = {
    "runs": ["train (3f2a)", "train (91bc)"],
    "sentences": ["", "1.3 × faster: `train` 600 → 480 s; threads 1 → 2"],
    "parameters": [{"step": "", "name": "threads", "values": ["1", "2"], "details": []}],
    "phases": [
        {"step": "", "name": "load", "values": [20.0, None], "details": ["disk", ""]},
        {"step": "", "name": "fit", "values": [580.0, 480.0], "details": ["serial", "saturated"]},
    ],
    "notes": ["Other hardware: 8 CPUs instead of 16."],
    "rows": [
        {
            "component": "train",
            "node": None,
            "metric": "run_duration_sec",
            "unit": "s",
            "values": [600.0, 480.0],
            "change_pct": -20.0,
            "verdict": "better",
        },
        {
            "component": "train",
            "node": 0,
            "metric": "node_unused_cpu_hours",
            "unit": "CPU h",
            "values": [1.2, 1.9],
            "change_pct": 58.3,
            "verdict": "worse",
        },
        {
            "component": "train",
            "node": 0,
            "metric": "total_disk_io_read_mb",
            "unit": "MB",
            "values": [0.0, None],
            "change_pct": None,
            "verdict": "",
        },
    ],
}


PICTURES = {
    "States over time": '<svg viewBox="0 0 90 40"><rect width="90" height="40" fill="#fff"/></svg>'
}
"""A picture as the spans' plots give it."""


def compared_nodes() -> dict[str, Any]:
    """Return the nodes of `COMPARISON`'s runs: the first one took longer, in two phases."""
    runs = []
    for rows in (120, 60):
        one = node(rows=rows)
        edges = {"load": (0.0, rows / 3), "fit": (rows / 3, rows - 1.0)}
        one.extra["phases"] = [
            {"name": name, "start_s": start, "end_s": end} for name, (start, end) in edges.items()
        ]
        runs.append([one])
    return {"train": runs}
