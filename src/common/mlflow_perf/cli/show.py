"""`mlflow-perf show`: show a run or a workflow in the terminal."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import click

from mlflow_perf.analysis import metric_text
from mlflow_perf.analysis.findings import findings_of
from mlflow_perf.analysis.phases import describe_phase, read_phases
from mlflow_perf.analysis.step_causes import read_loops
from mlflow_perf.analysis.step_texts import describe_loop
from mlflow_perf.analysis.workflow import Workflow, build_workflow
from mlflow_perf.analysis.workflow_steps import Step
from mlflow_perf.cli import _options, _tables
from mlflow_perf.errors import RunNotFoundError
from mlflow_perf.model.document import NodeDocument, PerfDocument
from mlflow_perf.reports.job_share import add_cpu_shares, read_cpu_share
from mlflow_perf.tracking.perf_run import PerfRun
from mlflow_perf.tracking.search import find_children, get_run

_NODES_MAX = 3
_FINDINGS_MAX = 3
_OPERATIONS_MAX = 20
_OPERATION = re.compile(r"ops/(.+)/(count|total_ms|avg_ms|p50_ms|p95_ms|p99_ms|min_ms|max_ms)")
_OPERATION_COLUMNS = ("count", "total_ms", "avg_ms", "p50_ms", "p95_ms", "max_ms")


@click.command()
@click.argument("run")
@_options.as_json
def command(run: str, *, as_json: bool) -> None:
    """Show what RUN used, wasted and waited for.

    RUN is a run id, a path to a document, or a folder of node-*.json. For a workflow's parent run,
    the steps are shown.
    """
    _options.prepare()
    found = get_run(run)
    steps = find_children(found, documents=True)
    if not found.has_figures and not steps:
        if found.status == "RUNNING":
            raise RunNotFoundError(
                f"The run {found.label} is still going: it holds no performance data yet."
            )
        raise RunNotFoundError(f"The run {found.label} holds no performance data.")
    if as_json:
        _tables.echo_json(_collect_data(found, steps))
        return
    if found.has_figures:
        _show_run(found)
        for other in found.components.values():
            click.echo()
            _show_run(other)
    if found.has_figures and steps:
        click.echo()
    workflow = build_workflow(found, steps) if steps else None
    if workflow is not None:
        _show_workflow(found, workflow)


def _collect_data(run: PerfRun, steps: Sequence[PerfRun]) -> dict[str, Any]:
    data: dict[str, Any] = {
        "run_id": run.run_id,
        "component": run.component,
        "nodes": {str(index): dict(summary) for index, summary in run.nodes.items()},
        "run": run.figures,
    }
    if run.components:
        data["components"] = {
            name: _collect_data(other, ()) for name, other in run.components.items()
        }
    if steps:
        data["steps"] = [{"step": step.step, **_collect_data(step, ())} for step in steps]
    return data


def _show_run(run: PerfRun) -> None:
    """Print a run's title, its verdicts, and the tables of its metrics and operations."""
    duration = run.figures.get("run_duration_sec", run.duration_sec)
    count = f"{run.node_count} node{'s' if run.node_count != 1 else ''}"
    took = metric_text.format_value(duration, "s")
    _print_title(run.component or run.name or run.label, run.status, count, took)
    if run.run_id:
        click.echo(_tables.paint(f"run {_tables.clean(run.run_id)}", "dim"))
    _show_findings(run)
    if run.document is not None:
        for name, ranks in read_loops(run.document.nodes.values()).items():
            click.echo(_tables.wrap(describe_loop(_tables.clean(name), ranks)))
    click.echo()
    columns = _make_columns(run)
    keys = {
        key
        for column in columns.values()
        for key in column
        if not _OPERATION.fullmatch(key) and not key.startswith("steps/")
    }
    ranked = sorted(keys, key=metric_text.rank_metric)
    for title, of_node in (("your job", False), ("the whole node", True)):
        rows = []
        for key in (key for key in ranked if metric_text.is_of_node(key) == of_node):
            unit = metric_text.find_unit(key)
            values = metric_text.format_row([c.get(key) for c in columns.values()], unit)
            rows.append([key, *values])
        if rows:
            _tables.table([title, *columns], rows, right=len(columns))
            click.echo()
    _show_operations(run)
    if not run.nodes:
        click.echo(_tables.wrap("The nodes' documents are missing: only the run's figures remain."))


def _show_findings(run: PerfRun) -> None:
    """Print how the CPUs were shared, the verdict, and the next findings."""
    share = add_cpu_shares(read_cpu_share(summary) for summary in run.nodes.values())
    if str(share):
        click.echo(_tables.wrap(str(share)))
    known = run.document.nodes if run.document is not None else {}
    nodes = {
        index: known.get(index) or NodeDocument(summary=dict(summary))
        for index, summary in run.nodes.items()
    }
    if not nodes:
        return
    first, *others = findings_of(PerfDocument(nodes))
    click.echo(_tables.wrap(f"{first.word}: {first.sentence}"))
    for finding in others[:_FINDINGS_MAX]:
        kind = finding.kind.replace("_", " ")
        percent = 100 * min(1.0, finding.share)
        click.echo(_tables.wrap(f"  {percent:.0f}% {kind}: {finding.sentence}"))
    _show_phases(known)


def _show_phases(nodes: Mapping[int, NodeDocument]) -> None:
    """Print one sentence for each phase of the first nodes."""
    for index in sorted(nodes)[:_NODES_MAX]:
        phases = read_phases(nodes[index])
        if len(phases) > 1:
            of_node = f" of node {index}" if len(nodes) > 1 else ""
            _tables.paragraph(f"Phases{of_node}", map(describe_phase, phases))


def _print_title(name: str, status: str | None, *facts: str) -> None:
    beside = "  ".join(["", status or "", *facts])
    parts = [_tables.paint(_tables.short(name, beside=beside), "bold")]
    if status:
        style = {"FINISHED": "passed", "RUNNING": "bold"}.get(status, "failed")
        parts.append(_tables.paint(_tables.clean(status), style))
    click.echo("  ".join([*parts, *facts]))


def _make_columns(run: PerfRun) -> dict[str, Mapping[str, float]]:
    """Return the table's columns: the run and its nodes; for many nodes, min, mean and max."""
    nodes = run.nodes
    if len(nodes) == 1:
        # The run-level figures of one node are the node's own.
        return {f"node {index}": summary for index, summary in nodes.items()}
    columns: dict[str, Mapping[str, float]] = {"run": run.figures}
    if len(nodes) <= _NODES_MAX:
        return columns | {f"node {index}": summary for index, summary in nodes.items()}
    values: dict[str, list[float]] = {}
    for summary in nodes.values():
        for key, value in summary.items():
            values.setdefault(key, []).append(value)
    return columns | {
        "min": {key: min(found) for key, found in values.items()},
        "mean": {key: sum(found) / len(found) for key, found in values.items()},
        "max": {key: max(found) for key, found in values.items()},
    }


def _show_operations(run: PerfRun) -> None:
    """Print the slowest operations; for several nodes, counts and totals are summed."""
    found: dict[str, dict[str, float]] = {}
    for summary in run.nodes.values():
        for key, value in summary.items():
            if match := _OPERATION.fullmatch(key):
                name, figure = match.groups()
                stats = found.setdefault(name, {})
                old = stats.get(figure, 0.0)
                # The other figures are those of the slowest node.
                is_sum = figure in ("count", "total_ms")
                stats[figure] = old + value if is_sum else max(old, value)
    if not found:
        return
    for stats in found.values():
        if stats.get("count") and "total_ms" in stats:
            stats["avg_ms"] = stats["total_ms"] / stats["count"]
    names = sorted(found, key=lambda name: -found[name].get("total_ms", 0.0))
    rows = [
        [name, *(metric_text.format_value(found[name].get(c)) for c in _OPERATION_COLUMNS)]
        for name in names[:_OPERATIONS_MAX]
    ]
    click.echo()
    _tables.table(["operation", *_OPERATION_COLUMNS], rows, right=len(_OPERATION_COLUMNS))
    if len(names) > _OPERATIONS_MAX:
        click.echo(f"… and {len(names) - _OPERATIONS_MAX:,} more operations (--json has all)")


def _show_workflow(run: PerfRun, workflow: Workflow) -> None:
    """Print a workflow's title, the table of its steps, the critical path and the findings."""
    took = metric_text.format_value(workflow.duration_sec, "s")
    _print_title(workflow.name, run.status, f"{len(workflow.steps)} steps", took)
    click.echo()
    rows = [
        [
            f"{'*' if step.critical else ' '} {step.name}",
            step.status or "–",
            f"+{metric_text.format_value(step.started - workflow.started, 's')}",
            metric_text.format_value(step.waited_sec, "s"),
            metric_text.format_value(step.duration_sec, "s"),
            metric_text.format_value(step.measured_sec if step.nodes else None, "s"),
            len(step.nodes) or "–",
            _format_cpus(step),
        ]
        for step in workflow.steps
    ]
    header = ["step", "status", "began", "waited", "ran", "measured", "nodes", "job's CPUs"]
    styles = ["failed" if s.status in ("FAILED", "KILLED") else "" for s in workflow.steps]
    _tables.table(header, rows, right=6, styles=styles)
    click.echo(_tables.wrap(f"* critical path: {' → '.join(workflow.critical_path)}"))
    _tables.paragraph("Findings", workflow.findings)


def _format_cpus(step: Step) -> str:
    """Return the CPUs that a step used of those that it could: `0.9 of 2`."""
    share = add_cpu_shares(read_cpu_share(node.summary) for node in step.nodes)
    return "–" if share.job is None else share.used
