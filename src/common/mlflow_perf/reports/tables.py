"""Headline figures, tables and facts of a report, as plain data."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mlflow_perf.analysis.findings import Finding
from mlflow_perf.analysis.metric_text import describe_node_count
from mlflow_perf.core.format import cpu_time, cut_text, quantity
from mlflow_perf.model.callers import describe_place
from mlflow_perf.model.document import NodeDocument
from mlflow_perf.model.metrics import METRICS, find_metric
from mlflow_perf.reports.job_share import add_cpu_shares, read_cpu_share

_NODE_COLUMNS = (
    ("duration_sec", "Duration"),
    ("job_cpu_avg_cores", "Job's CPUs"),
    ("cpu_limit_cores", "Limit"),
    ("job_max_mem_mb", "Job's memory"),
    ("cpu_avg_utilization_pct", "Node's CPUs busy"),
    ("node_unused_cpu_hours", "Unused by all"),
    ("max_t_mem_percent", "Node's memory"),
    ("gpu_avg_utilization_pct", "GPU busy"),
    ("total_disk_io_read_mb", "Node's disk read"),
    ("total_disk_io_write_mb", "written"),
    ("total_net_io_ext_recv_mb", "Node received"),
    ("total_net_io_ext_sent_mb", "sent"),
)
_LONGEST_FACT = 1000
_JUDGED_BY = ("cpu_avg_utilization_pct", "job_cpu_avg_cores")
_FACT_LABELS = {
    "ended_by": "Ended by",
    "hostname": "Host",
    "cpu_count": "CPUs of the node",
    "cpu_limit_cores": "CPUs of the job",
    "memory_mb": "Memory of the node",
    "mem_total_mb": "Memory of the node",
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
        minor: Whether only the report has room for it, not the description of the run.
    """

    label: str
    value: str
    detail: str = ""
    meaning: str = ""
    minor: bool = False


def explain_metric(key: str) -> str:
    """Return the meaning of a metric in one sentence; `""` if it is not in the table."""
    row = find_metric(key)
    return "" if row is None else row.meaning


def _total(nodes: Iterable[Mapping[str, float]], key: str) -> float | None:
    values = [node[key] for node in nodes if key in node]
    return sum(values) if values else None


def _highest(nodes: Iterable[Mapping[str, float]], key: str) -> float | None:
    return max((node[key] for node in nodes if key in node), default=None)


def build_tiles(
    nodes: Sequence[Mapping[str, float]], run: Mapping[str, float], *, is_cut_off: bool = False
) -> list[Tile]:
    """Return the headline figures that a run has: the job's own first, the nodes' named as such.

    Args:
        nodes: The summary of each node.
        run: The figures of the run as a whole.
        is_cut_off: Whether the duration is a lower bound, as that of a killed job.
    """
    return [
        *_build_cpu_tiles(nodes, run, "≥ " * is_cut_off),
        *_build_memory_tiles(nodes, run),
        *_build_traffic_tiles(nodes),
    ]


def _build_cpu_tiles(
    nodes: Sequence[Mapping[str, float]], run: Mapping[str, float], least: str
) -> Iterator[Tile]:
    if "run_duration_sec" in run:
        count = describe_node_count(int(run.get("run_node_count", 1)), nodes)
        took = least + quantity(run["run_duration_sec"], "s")
        yield Tile("Duration", took, count, explain_metric("run_duration_sec"))
    share = add_cpu_shares(read_cpu_share(node) for node in nodes)
    busy = run.get("run_cpu_avg_utilization_pct", _highest(nodes, "cpu_avg_utilization_pct"))
    if share.job is not None:
        yield Tile("Job's CPUs", share.used, share.rest, explain_metric("job_cpu_avg_cores"))
    elif busy is not None:
        limit = share.limit
        detail = f"of {quantity(limit, 'CPU' if limit == 1 else 'CPUs')}" if limit else ""
        meaning = explain_metric("run_cpu_avg_utilization_pct")
        yield Tile("Node's CPUs busy", quantity(busy, "%"), detail, meaning)
    held, used = run.get("run_cpu_hours"), _total(nodes, "job_cpu_hours")
    unused = run.get("run_unused_cpu_hours")
    detail = f"of {cpu_time(held)} held" if held is not None else ""
    if held is not None and used is not None:
        meaning = "CPU time that the job held and did not use itself."
        yield Tile("Unused by the job", cpu_time(max(0.0, held - used), held), detail, meaning)
    elif unused is not None:
        meaning = explain_metric("run_unused_cpu_hours")
        yield Tile("Unused CPU time", cpu_time(unused, held), detail, meaning)


def _build_memory_tiles(
    nodes: Sequence[Mapping[str, float]], run: Mapping[str, float]
) -> Iterator[Tile]:
    peak_mb, percent = _highest(nodes, "job_max_mem_mb"), run.get("run_max_t_mem_percent")
    if peak_mb is not None:
        limit_mb = _highest(nodes, "mem_limit_mb")
        parts = [f"of {quantity(limit_mb, 'MB')}"] if limit_mb else []
        parts += [f"node's peak {quantity(percent, '%')}"] if percent is not None else []
        meaning = explain_metric("job_max_mem_mb")
        yield Tile("Job's memory", quantity(peak_mb, "MB"), ", ".join(parts), meaning)
    elif percent is not None:
        detail = "busiest node" if len(nodes) > 1 else ""
        meaning = explain_metric("run_max_t_mem_percent")
        yield Tile("Node's memory peak", quantity(percent, "%"), detail, meaning)
    busy = [n["gpu_avg_utilization_pct"] for n in nodes if "gpu_avg_utilization_pct" in n]
    if busy:
        # Weighted by GPU-hours, like the metric and the tables of runs.
        used = run.get("run_gpu_avg_utilization_pct", sum(busy) / len(busy))
        memory = _highest(nodes, "max_t_gpu_mem_percent")
        others = _highest(nodes, "gpu_others_avg_utilization_pct")
        parts = [f"memory peak {quantity(memory, '%')}"] if memory is not None else []
        parts += [f"others {quantity(others, '%')}"] if others else []
        detail = ", ".join(parts)
        meaning = explain_metric("gpu_avg_utilization_pct")
        yield Tile("GPU busy", quantity(used, "%"), detail, meaning)


def _build_traffic_tiles(nodes: Sequence[Mapping[str, float]]) -> Iterator[Tile]:
    own = [_total(nodes, key) for key in ("job_io_read_mb", "job_io_write_mb")]
    disks = [_total(nodes, key) for key in ("total_disk_io_read_mb", "total_disk_io_write_mb")]
    network = [_total(nodes, f"total_net_io_ext_{way}_mb") for way in ("recv", "sent")]

    def size(value: float | None) -> str:
        return quantity(value or 0.0, "MB")

    if own != [None, None]:
        of_node = "" if disks == [None, None] else f"; node {size(disks[0])}, {size(disks[1])}"
        meaning = f"{explain_metric('job_io_read_mb')} {explain_metric('job_io_write_mb')}"
        detail = f"{size(own[1])} written{of_node}"
        yield Tile("Job's disk read", size(own[0]), detail, meaning, minor=True)
    elif disks != [None, None]:
        meaning = explain_metric("total_disk_io_read_mb")
        detail = f"{size(disks[1])} written"
        yield Tile("Node's disk read", size(disks[0]), detail, meaning, minor=True)
    if network != [None, None]:
        meaning = "Traffic of the whole node: the kernel does not count it for each job."
        yield Tile(
            "Node received", size(network[0]), f"{size(network[1])} sent", meaning, minor=True
        )
    cost, unused = _total(nodes, "node_cost"), _total(nodes, "node_unused_cost")
    if cost is not None:
        detail = f"{quantity(unused, '')} of it unused" if unused is not None else ""
        yield Tile("Cost", quantity(cost, ""), detail, "At the price per node-hour that was given.")


@dataclass(frozen=True)
class FindingRow:
    """One finding as texts.

    Attributes:
        kind: What it is, in words: `memory growth`.
        bottleneck: The word of the tag `mlflow_perf.bottleneck`, for its colour.
        severity: `high`, `medium` or `low`.
        share: Share of the time, such as `61%`.
        share_pct: The same as a number, at most 100.
        evidence: The figures.
        do: What to do about it; may be empty.
        where: The part of the run and the function, if they are known.
    """

    kind: str
    bottleneck: str
    severity: str
    share: str
    share_pct: float
    evidence: str
    do: str
    where: str


def build_finding_rows(findings: Iterable[Finding]) -> list[FindingRow]:
    """Return findings as texts, in their order."""
    rows = []
    for finding in findings:
        share_pct = round(min(100.0, 100.0 * finding.share), 1)
        place = finding.function and describe_place(finding.function, finding.caller)
        where = " · ".join(part for part in (finding.phase, place) if part)
        rows.append(
            FindingRow(
                finding.kind.replace("_", " "),
                finding.bottleneck,
                finding.severity,
                quantity(share_pct, "%"),
                share_pct,
                finding.evidence,
                finding.do,
                where,
            )
        )
    return rows


def can_be_judged(node: NodeDocument) -> bool:
    """Return whether a node reported the figures that findings are made of."""
    return not node.summary.keys().isdisjoint(_JUDGED_BY)


def choose_verdict(
    findings: Sequence[Finding], extras: Iterable[Mapping[str, Any]] = ()
) -> dict[str, str]:
    """Return the `bottleneck` and the `advice` of a run; empty if there is none.

    Args:
        findings: The run's findings: the first is the verdict.
        extras: What the nodes' documents say themselves, for want of findings; what most of them
            name counts.
    """
    extras = list(extras)
    stored = [
        (str(extra["bottleneck"]), str(extra.get("advice") or ""))
        for extra in extras
        if extra.get("bottleneck")
    ]
    # Of work that was started elsewhere the figures, and so the findings, say nothing.
    if findings and not any(extra.get("elsewhere") for extra in extras):
        return {"bottleneck": findings[0].bottleneck, "advice": findings[0].sentence}
    if not stored:
        return {}
    most = Counter(name for name, _ in stored).most_common(1)[0][0]
    advice = next((text for name, text in stored if name == most and text), "")
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
    units = {key: row.unit if (row := find_metric(key)) else "" for key, _ in present}
    rows = []
    for fact, summary in zip(facts, summaries, strict=True):
        values = {key: summary.get(key) for key, _ in present}
        cells = [{"value": v, "text": quantity(v, units[key])} for key, v in values.items()]
        rows.append({**fact, "cells": cells})
    columns = [{"key": k, "label": label, "meaning": explain_metric(k)} for k, label in present]
    return {"columns": columns, "rows": rows}


def build_metric_rows(summaries: Sequence[Mapping[str, float]]) -> list[dict[str, Any]]:
    """Return the table of all metrics except those of operations, loops and transfers.

    Each row has `key`, `unit`, `meaning` and the texts `least`, `mean`, `most`, which are equal if
    there is only one node.
    """
    keys = [metric.key for metric in METRICS]
    more = sorted({key for summary in summaries for key in summary} - set(keys))
    rows = []
    for key in [*keys, *(k for k in more if not k.startswith(("ops/", "steps/", "transfers/")))]:
        values = [summary[key] for summary in summaries if key in summary]
        if values:
            known = find_metric(key)
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
    known = {**node.node, "ended_by": node.extra.get("cause")}
    facts = {k: v for k, v in known.items() if v not in (None, "") and k != "index"}
    found = []
    for key in [k for k in _FACT_LABELS if k in facts] + sorted(facts.keys() - _FACT_LABELS.keys()):
        value = facts[key]
        text = str(value)
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            text = quantity(value, "MB" if key.endswith("_mb") else "")
        elif isinstance(value, (list, tuple)):
            text = ", ".join(map(str, value))
        label = _FACT_LABELS.get(key, key.replace("_", " "))
        found.append((cut_text(label, _LONGEST_FACT), cut_text(text, _LONGEST_FACT)))
    return found
