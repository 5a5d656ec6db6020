"""`mlflow-perf compare`: compare runs or whole workflows."""

from __future__ import annotations

from collections.abc import Sequence

import click

from mlflow_perf.analysis.compare import Comparison, Row
from mlflow_perf.analysis.compare import compare as compare_runs
from mlflow_perf.cli import _options, _tables
from mlflow_perf.core.format import format_change, format_for_people
from mlflow_perf.model.metrics.names import name_metric

_LABELS_MAX = 20
_RUNS_MAX = 3


@click.command()
@click.argument("runs", nargs=-1, required=True)
@_options.as_json
@click.option(
    "--baseline",
    type=click.IntRange(1),
    default=1,
    metavar="N",
    help="Compare each run with the Nth of RUNS; default: the first.",
)
@click.option("--all", "everything", is_flag=True, help="Also show equal figures, and every node.")
@click.option("--markdown", "as_markdown", is_flag=True, help="Print Markdown.")
@click.option("--html", "html", metavar="FILE", help="Write an HTML page.")
def command(
    runs: tuple[str, ...],
    *,
    as_json: bool,
    baseline: int,
    everything: bool,
    as_markdown: bool,
    html: str | None,
) -> None:
    """Show what differs between RUNS, step by step and node by node.

    RUNS are run ids, paths to documents or folders of node-*.json. For a workflow's parent run, the
    steps are compared. The change is that of the last run against the baseline.
    """
    _options.prepare()
    if baseline > len(runs):
        raise click.BadParameter(
            f"there are {len(runs)} runs, so no run {baseline}.", param_hint="--baseline"
        )
    comparison = compare_runs(runs, baseline=baseline - 1)
    if html is not None:
        from mlflow_perf.reports.compared_curves import read_nodes
        from mlflow_perf.reports.html import render_comparison

        page = render_comparison(comparison.as_dict(), nodes=read_nodes(comparison.steps))
        _options.write(html, page)
    if as_json:
        fields = ("component", "node", "metric", "values", "change_pct")
        rows = [{name: getattr(row, name) for name in fields} for row in comparison.rows]
        _tables.echo_json(rows)
    elif as_markdown:
        click.echo(comparison.to_markdown(everything=everything), nl=False)
    elif html != "-":
        _show(comparison, comparison.rows if everything else comparison.headlines())


def _show(comparison: Comparison, rows: Sequence[Row]) -> None:
    """Print the runs, a table for each component and node, and how much has changed."""
    for i, label in enumerate(comparison.labels[:_LABELS_MAX], 1):
        click.echo(f"{i}  {_tables.short(label, beside=f'{i}  ')}")
    if len(comparison.labels) > _LABELS_MAX:
        click.echo(f"… and {len(comparison.labels) - _LABELS_MAX} more")
    if comparison.sentence:
        click.echo(_tables.paint(_tables.wrap(f"{comparison.sentence}."), "bold"))
    for note in comparison.notes:
        click.echo(_tables.wrap(f"! {note}"))
    groups: dict[tuple[str, int | None], list[Row]] = {}
    for row in rows:
        groups.setdefault((row.component, row.node), []).append(row)
    runs = len(comparison.labels)
    few = runs <= _RUNS_MAX
    names = [f"run {i}" for i in range(1, runs + 1)] if few else ["run 1", "min", "max", "last"]
    for (component, node), group in groups.items():
        suffix = "" if node is None else f", node {node}"
        title = _tables.short(component, beside=suffix) + suffix
        click.echo("\n" + _tables.paint(title, "bold"))
        cpu_hours = [v for row in group if row.unit == "CPU h" for v in row.values if v is not None]
        cells = []
        for row in group:
            values = row.values
            if not few:
                known = [value for value in values if value is not None]
                values = (values[0], min(known, default=None), max(known, default=None), values[-1])
            cells.append(
                [
                    name_metric(row.metric),
                    row.verdict if row.verdict != "same" else "",
                    *format_for_people(values, row.unit, cpu_hours=cpu_hours),
                    format_change(row.change_pct),
                ]
            )
        styles = [row.verdict for row in group]
        header = ["figure", "", *names, "change"]
        _tables.table(header, cells, right=len(names) + 1, styles=styles)
    better, worse = len(comparison.better), len(comparison.worse)
    changed = len(comparison.changed())
    counts = {
        "better": better,
        "worse": worse,
        "just different": changed - better - worse,
        "the same": len(comparison.rows) - changed,
    }
    click.echo("\n" + ", ".join(f"{count} {what}" for what, count in counts.items()))
