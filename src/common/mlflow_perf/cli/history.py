"""`mlflow-perf history`: show one metric over the runs of a component."""

from __future__ import annotations

import click

from mlflow_perf.analysis import metric_text
from mlflow_perf.analysis.component_history import DEFAULT_METRIC, History, read_history
from mlflow_perf.cli import _options, _tables
from mlflow_perf.core.format import clock_time, format_change, format_count, format_for_people
from mlflow_perf.model.metrics.names import name_metric

_ROWS_MAX = 20


@click.command()
@click.option("--component", required=True, metavar="NAME", help="The component.")
@click.option(
    "--metric", default=DEFAULT_METRIC, show_default=True, metavar="KEY", help="The metric."
)
@click.option(
    "--last",
    default=200,
    show_default=True,
    type=click.IntRange(1, 10_000),
    metavar="N",
    help="Use the newest N finished runs.",
)
@click.option("--filter", "condition", default="", help="A condition in MLflow's search language.")
@click.option(
    "--param",
    "params",
    multiple=True,
    metavar="NAME",
    help="Only runs with the newest run's value of this parameter. Repeatable.",
)
@click.option("--same-params", is_flag=True, help="Only runs with all parameters of the newest.")
@click.option("--any-hardware", is_flag=True, help="Use runs on other hardware too.")
@_options.as_json
def command(
    *,
    component: str,
    metric: str,
    last: int,
    condition: str,
    params: tuple[str, ...],
    same_params: bool,
    any_hardware: bool,
    as_json: bool,
) -> None:  # fmt: skip
    """Show a metric over the runs of a component, and the runs at which its level changed.

    Finished runs on the hardware of the newest one are used. A run with the tag
    mlflow_perf.baseline is the baseline that the present level is compared with.
    """
    _options.prepare()
    found = read_history(
        component,
        metric,
        last=last,
        filter_string=condition,
        same_params=None if same_params else params,
        any_hardware=any_hardware,
    )
    if as_json:
        _tables.echo_json(found.as_dict())
    else:
        _show(found)


def _show(history: History) -> None:
    """Print each change in a sentence, then the newest runs."""
    unit = metric_text.find_unit(history.metric)

    def say(value: float) -> str:
        return format_for_people([value], unit)[0]

    name = name_metric(history.metric)
    click.echo(_tables.paint(_tables.short(f"{history.component}: {name}"), "bold"))
    times = {point.run_id: clock_time(point.time) for point in history.points}
    direction = metric_text.find_direction(history.metric)
    for change in history.changes:
        text = (
            f"{times[change.run_id]}, run {change.run_id[:8]}: {say(change.before)} → "
            f"{say(change.after)} ({format_change(change.change_pct)})"
        )
        line = _tables.wrap(text, first="- ", indent="  ")
        # Nobody knows whether more of a user's own metric is better.
        if direction:
            rose = change.after > change.before
            verdict = "worse" if rose == (direction == "lower") else "better"
            line = _tables.paint(
                _tables.wrap(f"{verdict}: {text}", first="- ", indent="  "), verdict
            )
        click.echo(line)
    if not history.changes:
        click.echo(f"No lasting change in {format_count(len(history.points), 'run')}.")
    if (pinned := history.as_dict()["baseline"]) is not None:
        against = f"{say(history.level)} now ({format_change(pinned['change_pct'])})"
        click.echo(f"Baseline, run {pinned['run_id'][:8]}: {say(pinned['value'])}; {against}.")
    if history.left_out:
        runs = format_count(history.left_out, "run")
        click.echo(f"{runs} left out: other hardware or parameters, or no value.")
    marks = {change.run_id: format_change(change.change_pct) for change in history.changes}
    rows = [
        [times[p.run_id], p.run_id[:8], marks.get(p.run_id, ""), say(p.value)]
        for p in history.points[-_ROWS_MAX:]
    ]
    click.echo()
    _tables.table(["started", "run", "change", name], rows, right=1)
