"""Headline, tables and facts of a report, as plain data. Imports the document and metric table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mlflow_perf.core.format import cpu_time, number, quantity
from mlflow_perf.model.document import NodeDocument
from mlflow_perf.model.metrics import METRICS, metric_for

__all__ = ["Tile", "build_tiles", "choose_verdict", "list_facts", "metric_rows", "node_rows"]

_NETWORK = ("total_net_io_ext_recv_mb", "total_net_io_ext_sent_mb")


@dataclass(frozen=True)
class Tile:
    """One headline figure.

    Attributes:
        label: What it is, in two words.
        value: The figure with its unit.
        detail: What it is measured against; may be empty.
        meaning: One sentence, for the tooltip.
    """

    label: str
    value: str
    detail: str = ""
    meaning: str = ""


def _sum_of(nodes: Iterable[Mapping[str, float]], *keys: str) -> float | None:
    values = [node[key] for node in nodes for key in keys if key in node]
    return sum(values) if values else None


def _max_of(nodes: Iterable[Mapping[str, float]], key: str) -> float | None:
    return max((node[key] for node in nodes if key in node), default=None)


def _meaning(key: str) -> str:
    row = metric_for(key)
    return "" if row is None else row.meaning


def build_tiles(nodes: Sequence[Mapping[str, float]], run: Mapping[str, float]) -> list[Tile]:
    """Return the headline figures of a run, only those that it has.

    Args:
        nodes: The summary of each node.
        run: The figures of the run as a whole.
    """
    found = [
        _duration(run),
        _cpu(nodes, run),
        _unused(run),
        _memory(nodes, run),
        _gpu(nodes, run),
        _moved("Disk read", nodes, ("total_disk_io_read_mb", "total_disk_io_write_mb"), "written"),
        _moved("Net received", nodes, _NETWORK, "sent"),
        _cost(nodes),
    ]
    return [tile for tile in found if tile is not None]


def _duration(run: Mapping[str, float]) -> Tile | None:
    if "run_duration_sec" not in run:
        return None
    nodes = int(run.get("run_node_count", 1))
    detail = "1 node" if nodes == 1 else f"{nodes:,} nodes"
    value = quantity(run["run_duration_sec"], "s")
    return Tile("Duration", value, detail, _meaning("run_duration_sec"))


def _cpu(nodes: Sequence[Mapping[str, float]], run: Mapping[str, float]) -> Tile | None:
    used = run.get("run_cpu_avg_utilization_pct", _max_of(nodes, "cpu_avg_utilization_pct"))
    if used is None:
        return None
    cores = _sum_of(nodes, "cpu_limit_cores") or _cores_from_hours(nodes)
    detail = f"of {quantity(cores, 'CPU' if cores == 1 else 'CPUs')}" if cores else ""
    job = _sum_of(nodes, "job_cpu_avg_cores")
    if detail and job is not None:
        detail += f", job {number(job)}"
    return Tile("CPU busy", quantity(used, "%"), detail, _meaning("run_cpu_avg_utilization_pct"))


def _cores_from_hours(nodes: Sequence[Mapping[str, float]]) -> float | None:
    cores = [
        3600.0 * node["node_cpu_hours"] / node["duration_sec"]
        for node in nodes
        if node.get("duration_sec") and "node_cpu_hours" in node
    ]
    return sum(cores) if cores else None


def _unused(run: Mapping[str, float]) -> Tile | None:
    unused, held = run.get("run_unused_cpu_hours"), run.get("run_cpu_hours")
    if unused is None:
        return None
    detail = f"of {cpu_time(held)}" if held is not None else ""
    return Tile("CPU unused", cpu_time(unused, held), detail, _meaning("run_unused_cpu_hours"))


def _memory(nodes: Sequence[Mapping[str, float]], run: Mapping[str, float]) -> Tile | None:
    peak_mb = _max_of(nodes, "job_max_mem_mb")
    job = "" if peak_mb is None else f"job {quantity(peak_mb, 'MB')}"
    percent = run.get("run_max_t_mem_percent")
    if percent is None:
        return Tile("Memory peak", job.removeprefix("job "), "job") if job else None
    detail = job or ("busiest node" if len(nodes) > 1 else "of the node")
    return Tile("Memory peak", quantity(percent, "%"), detail, _meaning("run_max_t_mem_percent"))


def _gpu(nodes: Sequence[Mapping[str, float]], run: Mapping[str, float]) -> Tile | None:
    known = [n["gpu_avg_utilization_pct"] for n in nodes if "gpu_avg_utilization_pct" in n]
    if not known:
        return None
    # Weighted by GPU-hours, as the tables of runs and the metric say.
    used = run.get("run_gpu_avg_utilization_pct", sum(known) / len(known))
    memory = _max_of(nodes, "max_t_gpu_mem_percent")
    detail = f"memory peak {quantity(memory, '%')}" if memory is not None else ""
    meaning = _meaning("gpu_avg_utilization_pct") or "Average utilisation of the job's GPUs."
    return Tile("GPU busy", quantity(used, "%"), detail, meaning)


def _moved(
    label: str, nodes: Sequence[Mapping[str, float]], keys: tuple[str, str], other: str
) -> Tile | None:
    first, second = (_sum_of(nodes, key) for key in keys)
    if first is None and second is None:
        return None
    detail = f"{quantity(second or 0.0, 'MB')} {other}"
    return Tile(
        label, quantity(first or 0.0, "MB"), detail, f"{_meaning(keys[0])} {_meaning(keys[1])}"
    )


def _cost(nodes: Sequence[Mapping[str, float]]) -> Tile | None:
    cost, unused = _sum_of(nodes, "node_cost"), _sum_of(nodes, "node_unused_cost")
    if cost is None:
        return None
    detail = f"{quantity(unused, '')} of it unused" if unused is not None else ""
    return Tile("Cost", quantity(cost, ""), detail, "At the price per node-hour that was given.")


def choose_verdict(extras: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """Return the `bottleneck` that most nodes name and its `advice`; empty when none names one."""
    named = [
        (str(extra["bottleneck"]), str(extra.get("advice") or ""))
        for extra in extras
        if extra.get("bottleneck")
    ]
    if not named:
        return {}
    most = Counter(name for name, _ in named).most_common(1)[0][0]
    advice = next((text for name, text in named if name == most and text), "")
    return {"bottleneck": most, "advice": advice}


_NODE_COLUMNS = (
    ("duration_sec", "Duration"),
    ("cpu_avg_utilization_pct", "CPU busy"),
    ("node_unused_cpu_hours", "Unused"),
    ("max_t_mem_percent", "Memory peak"),
    ("gpu_avg_utilization_pct", "GPU busy"),
    ("total_disk_io_read_mb", "Disk read"),
    ("total_disk_io_write_mb", "Disk written"),
    ("total_net_io_ext_recv_mb", "Net received"),
    ("total_net_io_ext_sent_mb", "Net sent"),
)


def node_rows(facts: Sequence[Mapping[str, Any]], summaries: Sequence[Mapping[str, float]]) -> Any:
    """Return the table of the nodes: `columns` (key, label, meaning) and `rows`.

    Args:
        facts: `index`, `hostname` and `status` of each node.
        summaries: The summary of each node, in the same order.
    """
    present = [(k, label) for k, label in _NODE_COLUMNS if any(k in s for s in summaries)]
    columns = [{"key": k, "label": label, "meaning": _meaning(k)} for k, label in present]
    rows = [
        {**fact, "cells": [_cell(key, summary.get(key)) for key, _ in present]}
        for fact, summary in zip(facts, summaries, strict=True)
    ]
    return {"columns": columns, "rows": rows}


def _cell(key: str, value: float | None) -> dict[str, Any]:
    row = metric_for(key)
    return {"value": value, "text": quantity(value, row.unit if row else "")}


def metric_rows(summaries: Sequence[Mapping[str, float]]) -> list[dict[str, Any]]:
    """Return the table of all metrics but those of operations and transfers.

    Each row has `key`, `unit`, `meaning` and `least`, `mean`, `most`: three equal texts where
    there is one node only.
    """
    keys = [metric.key for metric in METRICS]
    more = sorted({key for summary in summaries for key in summary} - set(keys))
    return [
        _metric_row(key, values)
        for key in [*keys, *(k for k in more if not k.startswith(("ops/", "transfers/")))]
        if (values := [summary[key] for summary in summaries if key in summary])
    ]


def _metric_row(key: str, values: list[float]) -> dict[str, Any]:
    row = metric_for(key)
    unit = row.unit if row else ""
    figures = {"least": min(values), "mean": sum(values) / len(values), "most": max(values)}
    return {
        "key": key,
        "unit": unit,
        "meaning": row.meaning if row else "",
        **{name: quantity(value, unit) for name, value in figures.items()},
    }


_FACT_LABELS = {
    "hostname": "Host",
    "cpu_count": "CPUs of the node",
    "cpu_limit_cores": "CPUs of the job",
    "memory_mb": "Memory of the node",
    "mem_limit_mb": "Memory of the job",
    "cpu_model": "CPU model",
    "launcher": "Launcher",
    "scheduler": "Scheduler",
    "count": "Nodes of the job",
}


def list_facts(node: NodeDocument) -> list[tuple[str, str]]:
    """Return what is known of a node, label and text, in an order that people expect."""
    facts = {k: v for k, v in node.node.items() if v not in (None, "") and k != "index"}
    order = [k for k in _FACT_LABELS if k in facts] + sorted(facts.keys() - _FACT_LABELS.keys())
    return [(_FACT_LABELS.get(k, k.replace("_", " ")), _fact(k, facts[k])) for k in order]


def _fact(key: str, value: Any) -> str:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return quantity(value, "MB") if key.endswith("_mb") else quantity(value, "")
    if isinstance(value, (list, tuple)):
        return ", ".join(str(item) for item in value)
    return str(value)
