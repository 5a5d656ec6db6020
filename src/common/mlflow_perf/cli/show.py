"""`mlflow-perf show`: a run, or a workflow, in the terminal."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import click

from mlflow_perf.analysis import metric_text
from mlflow_perf.analysis.advice import decide_verdict
from mlflow_perf.analysis.workflow import Workflow, build_workflow
from mlflow_perf.cli import _options, _tables
from mlflow_perf.errors import RunNotFoundError
from mlflow_perf.tracking.perf_run import PerfRun
from mlflow_perf.tracking.search import find_children, get_run

_NODES_MAX = 3
_OPERATIONS_MAX = 20
_OPERATION = re.compile(r"ops/(.+)/(count|total_ms|avg_ms|p50_ms|p95_ms|p99_ms|min_ms|max_ms)")
_OPERATION_COLUMNS = ("count", "total_ms", "avg_ms", "p50_ms", "p95_ms", "max_ms")


@click.command()
@click.argument("run")
@_options.as_json
def command(run: str, *, as_json: bool) -> None:
    """Show what RUN used, wasted and waited for.

    RUN is a run id, a path to a document, or a folder of node-*.json. Of a workflow's parent run,
    the steps are shown.
    """
    _options.prepare()
    found = get_run(run)
    steps = find_children(found, documents=True)
    if not found.has_figures and not steps:
        raise RunNotFoundError(_nothing(found))
    if as_json:
        _tables.echo_json(_data(found, steps))
        return
    if found.has_figures:
        _show_run(found)
    if found.has_figures and steps:
        click.echo()
    if steps:
        _show_workflow(found, build_workflow(found, steps))


def _nothing(run: PerfRun) -> str:
    if run.status == "RUNNING":
        return f"The run {run.label} is still going: it holds no performance data yet."
    return f"The run {run.label} holds no performance data."


def _data(run: PerfRun, steps: Sequence[PerfRun]) -> dict[str, Any]:
    data: dict[str, Any] = {
        "run_id": run.run_id,
        "component": run.component,
        "nodes": {str(index): dict(summary) for index, summary in run.nodes.items()},
        "run": run.figures,
    }
    if steps:
        data["steps"] = [{"step": step.step, **_data(step, ())} for step in steps]
    return data


def _show_run(run: PerfRun) -> None:
    duration = run.figures.get("run_duration_sec", run.duration_sec)
    nodes = f"{run.node_count} node{'s' if run.node_count != 1 else ''}"
    took = metric_text.format_value(duration, "s")
    _title(run.component or run.name or run.label, run.status, nodes, took)
    if run.run_id:
        click.echo(_tables.paint(f"run {_tables.clean(run.run_id)}", "dim"))
    _show_verdicts(run)
    click.echo()
    _show_metrics(run)
    _show_operations(run)
    if not run.nodes:
        click.echo(_tables.wrap("The nodes' documents are missing: only the run's figures stand."))


def _title(name: str, status: str | None, *facts: str) -> None:
    beside = "  ".join(["", status or "", *facts])
    parts = [_tables.paint(_tables.short(name, beside=beside), "bold")]
    if status:
        style = {"FINISHED": "passed", "RUNNING": "bold"}.get(status, "failed")
        parts.append(_tables.paint(_tables.clean(status), style))
    click.echo("  ".join([*parts, *facts]))


def _show_verdicts(run: PerfRun) -> None:
    documents = run.document.nodes if run.document is not None else {}
    found: dict[str, list[int]] = {}
    for index, summary in run.nodes.items():
        facts = documents[index].node if index in documents else {}
        judged = decide_verdict(summary, facts)
        found.setdefault(f"{judged.bottleneck}: {judged.advice}", []).append(index)
    for sentence, nodes in list(found.items())[:_NODES_MAX]:
        whose = "" if len(found) == 1 else f"node{'s' if len(nodes) > 1 else ''} {_some(nodes)}: "
        click.echo(_tables.wrap(f"{whose}{sentence}"))


def _some(nodes: Sequence[int]) -> str:
    shown = ", ".join(map(str, nodes[:5]))
    return f"{shown} and {len(nodes) - 5} more" if len(nodes) > 5 else shown


def _show_metrics(run: PerfRun) -> None:
    columns = _columns(run)
    keys = sorted(
        {key for column in columns.values() for key in column}, key=metric_text.rank_metric
    )
    rows = [
        [
            key,
            *(
                metric_text.format_value(c.get(key), metric_text.find_unit(key))
                for c in columns.values()
            ),
        ]
        for key in keys
        if not _OPERATION.fullmatch(key)
    ]
    _tables.table(["metric", *columns], rows, right=len(columns))


def _columns(run: PerfRun) -> dict[str, Mapping[str, float]]:
    """Return what stands beside each other: the run and its nodes; of many nodes their range."""
    nodes = run.nodes
    columns: dict[str, Mapping[str, float]] = {}
    if len(nodes) <= _NODES_MAX:
        columns = {f"node {index}": summary for index, summary in nodes.items()}
    else:
        columns = {"min": _over(nodes, min), "mean": _over(nodes, _mean), "max": _over(nodes, max)}
    # One node's run-level figures say again what its own say.
    return columns if len(nodes) == 1 else {"run": run.figures, **columns}


def _over(nodes: Mapping[int, Mapping[str, float]], combine: Any) -> dict[str, float]:
    keys = {key for summary in nodes.values() for key in summary}
    return {key: combine([s[key] for s in nodes.values() if key in s]) for key in keys}


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _show_operations(run: PerfRun) -> None:
    found: dict[str, dict[str, float]] = {}
    for summary in run.nodes.values():
        for key, value in summary.items():
            match = _OPERATION.fullmatch(key)
            if match:
                # Of several nodes the slowest stands for all, but what is counted adds up.
                old = found.setdefault(match[1], {}).get(match[2], 0.0)
                adds = match[2] in ("count", "total_ms")
                found[match[1]][match[2]] = old + value if adds else max(old, value)
    for stats in found.values():
        if stats.get("count") and "total_ms" in stats:
            stats["avg_ms"] = stats["total_ms"] / stats["count"]
    if not found:
        return
    names = sorted(found, key=lambda name: -found[name].get("total_ms", 0.0))
    rows = [
        [name, *(metric_text.format_value(found[name].get(c)) for c in _OPERATION_COLUMNS)]
        for name in names[:_OPERATIONS_MAX]
    ]
    click.echo()
    _tables.table(["operation", *_OPERATION_COLUMNS], rows, right=len(_OPERATION_COLUMNS))
    if len(names) > _OPERATIONS_MAX:
        click.echo(f"… and {len(names) - _OPERATIONS_MAX:,} more operations (--json has all)")


def _show_workflow(run: PerfRun, workflow: Workflow | None) -> None:
    if workflow is None:
        return
    took = metric_text.format_value(workflow.duration_sec, "s")
    _title(workflow.name, run.status, f"{len(workflow.steps)} steps", took)
    click.echo()
    rows = [
        [
            f"{'*' if step.critical else ' '} {step.name}",
            step.status or "–",
            f"+{metric_text.format_value(step.started - workflow.started, 's')}",
            metric_text.format_value(step.waited_sec, "s"),
            metric_text.format_value(step.duration_sec, "s"),
            len(step.nodes) or "–",
            metric_text.format_value(step.figures.get("run_cpu_avg_utilization_pct"), "%"),
            metric_text.format_value(step.figures.get("run_unused_cpu_hours")),
        ]
        for step in workflow.steps
    ]
    header = ["step", "status", "began", "waited", "ran", "nodes", "CPU", "unused h"]
    styles = ["failed" if s.status in ("FAILED", "KILLED") else "" for s in workflow.steps]
    _tables.table(header, rows, right=6, styles=styles)
    click.echo(_tables.wrap(f"* critical path: {' → '.join(workflow.critical_path)}"))
    _tables.paragraph("Findings", workflow.findings)
