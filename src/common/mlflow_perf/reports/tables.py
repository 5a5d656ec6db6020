"""Headline figures, tables and facts of a report, as plain data."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mlflow_perf.core.format import cpu_time, format_count, number, quantity
from mlflow_perf.model.document import NodeDocument
from mlflow_perf.model.metrics import METRICS, metric_for

__all__ = [
    "Tile",
    "build_metric_rows",
    "build_node_table",
    "build_tiles",
    "choose_verdict",
    "explain_metric",
    "list_facts",
]

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
_TRAFFIC = (
    ("Disk read", "total_disk_io_read_mb", "total_disk_io_write_mb", "written"),
    ("Net received", "total_net_io_ext_recv_mb", "total_net_io_ext_sent_mb", "sent"),
)
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


@dataclass(frozen=True)
class Tile:
    """One headline figure.

    Attributes:
        label: Its name, in two words.
        value: The figure with its unit.
        detail: What it is measured against; may be empty.
        meaning: One sentence, for the tooltip.
    """

    label: str
    value: str
    detail: str = ""
    meaning: str = ""


def explain_metric(key: str) -> str:
    """Return the meaning of a metric in one sentence; `""` if it is not in the table."""
    row = metric_for(key)
    return "" if row is None else row.meaning


def _total(nodes: Iterable[Mapping[str, float]], key: str) -> float | None:
    values = [node[key] for node in nodes if key in node]
    return sum(values) if values else None


def _highest(nodes: Iterable[Mapping[str, float]], key: str) -> float | None:
    return max((node[key] for node in nodes if key in node), default=None)


def build_tiles(nodes: Sequence[Mapping[str, float]], run: Mapping[str, float]) -> list[Tile]:
    """Return the headline figures that a run has.

    Args:
        nodes: The summary of each node.
        run: The figures of the run as a whole.
    """
    return [*_build_cpu_tiles(nodes, run), *_build_other_tiles(nodes, run)]


def _build_cpu_tiles(
    nodes: Sequence[Mapping[str, float]], run: Mapping[str, float]
) -> Iterator[Tile]:
    if "run_duration_sec" in run:
        count = format_count(int(run.get("run_node_count", 1)), "node")
        took = quantity(run["run_duration_sec"], "s")
        yield Tile("Duration", took, count, explain_metric("run_duration_sec"))
    used = run.get("run_cpu_avg_utilization_pct", _highest(nodes, "cpu_avg_utilization_pct"))
    if used is not None:
        cores = _total(nodes, "cpu_limit_cores") or sum(
            3600.0 * node["node_cpu_hours"] / node["duration_sec"]
            for node in nodes
            if node.get("duration_sec") and "node_cpu_hours" in node
        )
        detail = f"of {quantity(cores, 'CPU' if cores == 1 else 'CPUs')}" if cores else ""
        job = _total(nodes, "job_cpu_avg_cores")
        if detail and job is not None:
            detail += f", job {number(job)}"
        meaning = explain_metric("run_cpu_avg_utilization_pct")
        yield Tile("CPU busy", quantity(used, "%"), detail, meaning)
    unused, held = run.get("run_unused_cpu_hours"), run.get("run_cpu_hours")
    if unused is not None:
        detail = f"of {cpu_time(held)}" if held is not None else ""
        meaning = explain_metric("run_unused_cpu_hours")
        yield Tile("CPU unused", cpu_time(unused, held), detail, meaning)


def _build_other_tiles(
    nodes: Sequence[Mapping[str, float]], run: Mapping[str, float]
) -> Iterator[Tile]:
    peak_mb, percent = _highest(nodes, "job_max_mem_mb"), run.get("run_max_t_mem_percent")
    if percent is not None:
        detail = "busiest node" if len(nodes) > 1 else "of the node"
        if peak_mb is not None:
            detail = f"job {quantity(peak_mb, 'MB')}"
        meaning = explain_metric("run_max_t_mem_percent")
        yield Tile("Memory peak", quantity(percent, "%"), detail, meaning)
    elif peak_mb is not None:
        yield Tile("Memory peak", quantity(peak_mb, "MB"), "job")
    busy = [n["gpu_avg_utilization_pct"] for n in nodes if "gpu_avg_utilization_pct" in n]
    if busy:
        # Weighted by GPU-hours, like the metric and the tables of runs.
        used = run.get("run_gpu_avg_utilization_pct", sum(busy) / len(busy))
        memory = _highest(nodes, "max_t_gpu_mem_percent")
        detail = f"memory peak {quantity(memory, '%')}" if memory is not None else ""
        meaning = explain_metric("gpu_avg_utilization_pct")
        yield Tile("GPU busy", quantity(used, "%"), detail, meaning)
    for label, inward, outward, other in _TRAFFIC:
        first, second = _total(nodes, inward), _total(nodes, outward)
        if first is not None or second is not None:
            detail = f"{quantity(second or 0.0, 'MB')} {other}"
            meaning = f"{explain_metric(inward)} {explain_metric(outward)}"
            yield Tile(label, quantity(first or 0.0, "MB"), detail, meaning)
    cost, unused = _total(nodes, "node_cost"), _total(nodes, "node_unused_cost")
    if cost is not None:
        detail = f"{quantity(unused, '')} of it unused" if unused is not None else ""
        yield Tile("Cost", quantity(cost, ""), detail, "At the price per node-hour that was given.")


def choose_verdict(extras: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """Return the `bottleneck` that most nodes name and its `advice`; empty if none names one."""
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


def build_node_table(
    facts: Sequence[Mapping[str, Any]], summaries: Sequence[Mapping[str, float]]
) -> dict[str, Any]:
    """Return the table of the nodes: `columns` (key, label, meaning) and `rows`.

    Args:
        facts: `index`, `hostname` and `status` of each node.
        summaries: The summary of each node, in the same order.
    """
    present = [(k, label) for k, label in _NODE_COLUMNS if any(k in s for s in summaries)]
    units = {key: row.unit if (row := metric_for(key)) else "" for key, _ in present}
    rows = []
    for fact, summary in zip(facts, summaries, strict=True):
        values = {key: summary.get(key) for key, _ in present}
        cells = [{"value": v, "text": quantity(v, units[key])} for key, v in values.items()]
        rows.append({**fact, "cells": cells})
    columns = [{"key": k, "label": label, "meaning": explain_metric(k)} for k, label in present]
    return {"columns": columns, "rows": rows}


def build_metric_rows(summaries: Sequence[Mapping[str, float]]) -> list[dict[str, Any]]:
    """Return the table of all metrics except those of operations and transfers.

    Each row has `key`, `unit`, `meaning` and the texts `least`, `mean`, `most`, which are equal if
    there is only one node.
    """
    keys = [metric.key for metric in METRICS]
    more = sorted({key for summary in summaries for key in summary} - set(keys))
    rows = []
    for key in [*keys, *(k for k in more if not k.startswith(("ops/", "transfers/")))]:
        values = [summary[key] for summary in summaries if key in summary]
        if values:
            known = metric_for(key)
            unit = known.unit if known else ""
            rows.append(
                {
                    "key": key,
                    "unit": unit,
                    "meaning": explain_metric(key),
                    "least": quantity(min(values), unit),
                    "mean": quantity(sum(values) / len(values), unit),
                    "most": quantity(max(values), unit),
                }
            )
    return rows


def list_facts(node: NodeDocument) -> list[tuple[str, str]]:
    """Return the known facts of a node as label and text, the most important first."""
    facts = {k: v for k, v in node.node.items() if v not in (None, "") and k != "index"}
    found = []
    for key in [k for k in _FACT_LABELS if k in facts] + sorted(facts.keys() - _FACT_LABELS.keys()):
        value = facts[key]
        text = str(value)
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            text = quantity(value, "MB" if key.endswith("_mb") else "")
        elif isinstance(value, (list, tuple)):
            text = ", ".join(map(str, value))
        found.append((_FACT_LABELS.get(key, key.replace("_", " ")), text))
    return found
