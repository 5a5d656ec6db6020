"""`mlflow-perf show`: show a run or a workflow in the terminal."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import click

from mlflow_perf.analysis import metric_text
from mlflow_perf.analysis.findings import Finding, NodeJudge, findings_of
from mlflow_perf.analysis.phases import describe_phase, read_phases
from mlflow_perf.analysis.step_causes import read_loops
from mlflow_perf.analysis.step_texts import describe_loop
from mlflow_perf.analysis.workflow import Workflow, build_workflow
from mlflow_perf.cli import _options, _tables
from mlflow_perf.core.format import MISSING, format_count, format_for_people
from mlflow_perf.errors import RunNotFoundError
from mlflow_perf.model.document import BROKEN, NodeDocument, PerfDocument
from mlflow_perf.model.metrics.names import GROUPS, group_metric, name_metric
from mlflow_perf.reports.job_share import add_cpu_shares, read_cpu_share
from mlflow_perf.tracking.perf_run import PerfRun
from mlflow_perf.tracking.search import find_children, get_run

_NODES_MAX = 3
_FINDINGS_MAX = 3
_OPERATIONS_MAX = 20
_OPERATION = re.compile(r"ops/(.+)/(count|total_ms|avg_ms|p50_ms|p95_ms|p99_ms|min_ms|max_ms)")
_FIGURES = {
    "count": "count",
    "total_ms": "in total",
    "avg_ms": "mean",
    "p50_ms": "median",
    "p95_ms": "95% within",
    "max_ms": "longest",
}


@click.command()
@click.argument("run")
@_options.as_json
def command(run: str, *, as_json: bool) -> None:
    """Show what RUN used, wasted and waited for.

    RUN is a run id or its first 8 characters, a path to a document, or a folder of node-*.json.
    For a workflow's parent run, the steps are shown.
    """
    _options.prepare()
    # The verdict needs the curves, as that in the run's tags; the document below has none.
    judge = NodeJudge()
    found = get_run(run, None if as_json else judge.visit)
    steps = find_children(found, documents=True)
    if not found.has_figures and not steps:
        if found.status == "RUNNING":
            raise RunNotFoundError(found.explain_missing_end())
        raise RunNotFoundError(f"The run {found.label} holds no performance data.")
    if as_json:
        _tables.echo_json(_collect_data(found, steps))
        return
    if found.has_figures:
        for i, part in enumerate(found.split()):
            if i:
                click.echo()
            nodes = part.document.nodes if part.document is not None else {}
            # The run's first component has no name there.
            name = (part.component or "") if i else ""
            _show_run(part, judge.merge(nodes, name))
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


def _show_run(run: PerfRun, findings: Sequence[Finding]) -> None:
    """Print a run's title, its verdicts, and the tables of its metrics and operations."""
    duration = run.figures.get("run_duration_sec", run.duration_sec)
    count = metric_text.describe_node_count(run.node_count, run.nodes.values())
    took = format_for_people([duration], "s")[0]
    if run.is_cut_off:
        took = f"at least {took}" if duration else MISSING
    _print_title(run.component or run.name or run.label, run.status, count, took)
    if run.cause:
        click.echo(_tables.wrap(f"Ended by: {_tables.clean(run.cause)}"))
    _show_findings(run, findings)
    if run.run_id:
        click.echo(_tables.paint(f"run {_tables.clean(run.run_id)}", "dim"))
    if run.document is not None:
        for name, ranks in read_loops(run.document.nodes.values()).items():
            click.echo(_tables.wrap(describe_loop(_tables.clean(name), ranks)))
    click.echo()
    _show_figures(_make_columns(run), is_cut_off=run.is_cut_off)
    _show_operations(run)
    if not run.nodes:
        click.echo(_tables.wrap("The nodes' documents are missing: only the run's figures remain."))


def _show_figures(columns: Mapping[str, Mapping[str, float]], *, is_cut_off: bool) -> None:
    """Print the figures in groups; those of the run and of its nodes with one name share a row.

    The duration of a run that was cut off is a lower bound.
    """
    keys = {
        key
        for column in columns.values()
        for key in column
        if not _OPERATION.fullmatch(key) and not key.startswith("steps/")
    }
    found: dict[tuple[str, str, str], list[float | None]] = {}
    for key in sorted(keys, key=metric_text.rank_metric):
        values = [column.get(key) for column in columns.values()]
        place = (group_metric(key), name_metric(key), metric_text.find_unit(key))
        pairs = list(zip(found.get(place, [None] * len(values)), values, strict=True))
        if any(old is not None and new is not None for old, new in pairs):
            place = (place[0], key, place[2])
        found[place] = [new if old is None else old for old, new in pairs]
    cpu_hours = [v for (*_, unit), values in found.items() if unit == "CPU h"
                 for v in values if v is not None]  # fmt: skip
    groups: dict[str, list[list[str]]] = {}
    for (group, name, unit), values in found.items():
        cells = format_for_people(values, unit, cpu_hours=cpu_hours)
        if is_cut_off and name == "duration":
            cells = [cell if cell == MISSING else f"≥ {cell}" for cell in cells]
        groups.setdefault(group, []).append([f"  {name}", *cells])
    rows, styles = [], []
    for title in [*(name for name in GROUPS if name in groups), *(groups.keys() - GROUPS.keys())]:
        rows += [[title, *("" for _ in columns)], *groups[title]]
        styles += ["bold", *("" for _ in groups[title])]
    if rows:
        _tables.table(["", *columns], rows, right=len(columns), styles=styles)


def _show_findings(run: PerfRun, findings: Sequence[Finding]) -> None:
    """Print the verdict, how the CPUs were shared, and the next findings."""
    known = run.document.nodes if run.document is not None else {}
    if not findings:
        nodes = {i: NodeDocument(summary=dict(summary)) for i, summary in run.nodes.items()}
        findings = findings_of(PerfDocument(nodes)) if nodes else []
    if not findings:
        return
    first, *others = findings
    verdict = _tables.wrap(f"{first.word}: {first.sentence}")
    click.echo(verdict.replace(first.word, _tables.paint(first.word, "bold"), 1))
    share = add_cpu_shares(read_cpu_share(summary) for summary in run.nodes.values())
    if str(share):
        click.echo(_tables.wrap(str(share)))
    for finding in others[:_FINDINGS_MAX]:
        kind = finding.kind.replace("_", " ")
        percent = 100 * min(1.0, finding.share)
        click.echo(_tables.wrap(f"  {percent:.0f}% {kind}: {finding.sentence}"))
    for index in sorted(known)[:_NODES_MAX]:
        phases = read_phases(known[index])
        if len(phases) > 1:
            of_node = f" of node {index}" if len(known) > 1 else ""
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
    units = {column: "ms" if column.endswith("_ms") else "" for column in _FIGURES}
    rows = [
        [name, *(format_for_people([found[name].get(c)], unit)[0] for c, unit in units.items())]
        for name in names[:_OPERATIONS_MAX]
    ]
    click.echo()
    _tables.table(["operation", *_FIGURES.values()], rows, right=len(_FIGURES))
    if len(names) > _OPERATIONS_MAX:
        click.echo(
            f"… and {format_count(len(names) - _OPERATIONS_MAX, 'more operation')} (--json has all)"
        )


def _show_workflow(run: PerfRun, workflow: Workflow) -> None:
    """Print a workflow's title, the table of its steps, the critical path and the findings."""
    took = _say(workflow.duration_sec)
    _print_title(workflow.name, run.status, format_count(len(workflow.steps), "step"), took)
    click.echo()
    shares = [add_cpu_shares(read_cpu_share(n.summary) for n in s.nodes) for s in workflow.steps]
    columns = {
        "step": [f"{'*' if step.critical else ' '} {step.name}" for step in workflow.steps],
        "status": [step.status or MISSING for step in workflow.steps],
        "began": [f"+{_say(step.started - workflow.started)}" for step in workflow.steps],
        "waited": [_say(step.waited_sec) for step in workflow.steps],
        "mlflow-perf": [_say(step.reporting_sec) for step in workflow.steps],
        "ran": [_say(step.duration_sec) for step in workflow.steps],
        "measured": [_say(s.measured_sec or None) for s in workflow.steps],
        "nodes": [str(len(step.nodes) or MISSING) for step in workflow.steps],
        "job's CPUs": ["–" if s.job is None else s.used for s in shares],
    }
    # At 80 columns a name needs the room of columns that say nothing new.
    if columns["measured"] == columns["ran"]:
        del columns["measured"]
    if not workflow.totals["reporting_sec"]:
        del columns["mlflow-perf"]
    if set(columns["nodes"]) <= {"1"}:
        del columns["nodes"]
    header, rows = list(columns), list(zip(*columns.values(), strict=True))
    styles = ["failed" if s.status in BROKEN else "" for s in workflow.steps]
    _tables.table(header, rows, right=len(header) - 2, styles=styles)
    if workflow.critical_path:
        click.echo(_tables.wrap(f"* critical path: {' → '.join(workflow.critical_path)}"))
    _tables.paragraph("Findings", workflow.findings)


def _say(seconds: float | None) -> str:
    """Return a length of time for people: `3 min 34 s`."""
    return format_for_people([seconds], "s")[0]
