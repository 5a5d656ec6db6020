"""`mlflow-perf scale`: predict the run time on other numbers of nodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import click

from mlflow_perf.analysis.component_history import find_component_runs
from mlflow_perf.analysis.scaling_runs import (
    ScalingPoint,
    ScalingStudy,
    group_points,
    study_scaling,
)
from mlflow_perf.analysis.step_runs import load_step_runs
from mlflow_perf.cli import _options, _tables
from mlflow_perf.core.format import duration, format_count
from mlflow_perf.errors import RunNotFoundError, SettingError
from mlflow_perf.tracking.perf_run import PerfRun

_MOST_RUNS = 1000


@click.command()
@click.argument("runs", nargs=-1, metavar="RUN…")
@click.option("--component", metavar="NAME", help="Use the history of a component instead.")
@click.option("--nodes", metavar="N,N,…", help="Numbers of nodes to predict and choose from.")
@click.option("--html", metavar="FILE", help="Write a page with a picture.")
@_options.as_json
def command(
    runs: Sequence[str],
    *,
    component: str | None,
    nodes: str | None,
    html: str | None,
    as_json: bool,
) -> None:
    """Predict the run time on other numbers of nodes, and the best number by time and by cost.

    RUN … are runs of one component, or workflows, on at least two numbers of nodes; three are
    needed to separate serial work, parallel work and coordination.
    """
    if bool(runs) == (component is not None):
        raise click.UsageError("Give either RUN … or --component NAME.")
    try:
        counts = [int(part) for part in (nodes or "").split(",") if part.strip()]
    except ValueError:
        counts = [0]
    if min(counts, default=1) < 1:
        raise SettingError(f"--nodes takes whole numbers such as 16,32, not {nodes!r}.")
    _options.prepare()
    if component is not None:
        found = find_component_runs(component, last=_MOST_RUNS, documents=False)
    else:
        sides = load_step_runs([run for text in runs for run in _options.split(text)])
        found = [run for side in sides for run in side.steps.values()]
    groups = group_points(found)
    if not groups:
        raise RunNotFoundError("None of the runs ended well with a duration: nothing to scale.")
    if component is None:
        _tell_left_out(found, groups)
    several = {name: p for name, p in groups.items() if len({point.nodes for point in p}) > 1}
    # Of a workflow's steps, those that had one number of nodes throughout are left out.
    studies = [study_scaling(n, p, nodes=counts) for n, p in (several or groups).items()]
    if html is not None:
        from mlflow_perf.reports.scaling_picture import render_scaling

        _options.write(html, render_scaling(studies))
    if as_json:
        data = [study.as_dict() for study in studies]
        _tables.echo_json(data[0] if len(data) == 1 else data)
        return
    for study in studies:
        _show(study)


def _tell_left_out(runs: Sequence[PerfRun], groups: Mapping[str, list[ScalingPoint]]) -> None:
    used = {point.run_id for points in groups.values() for point in points}
    if left := [_tables.clean(run.label) for run in runs if run.run_id not in used]:
        names = ", ".join(left[:3]) + (" …" if len(left) > 3 else "")
        click.echo(f"Left out, as not ended well or without a duration: {names}.", err=True)


def _show(study: ScalingStudy) -> None:
    click.echo(_tables.paint(_tables.short(study.component), "bold"))
    measured: dict[int, list[float]] = {}
    for point in study.points:
        measured.setdefault(point.nodes, []).append(point.seconds)
    rows = []
    for row in study.as_dict()["predictions"]:
        seen = measured.get(row["nodes"], [])
        rows.append(
            [
                row["nodes"],
                ", ".join(duration(s) for s in seen[:3]) + (" …" if len(seen) > 3 else "") or "–",
                duration(row["seconds"]),
                f"{duration(row['low_seconds'])} to {duration(row['high_seconds'])}",
                f"{row['node_hours']:.3g}",
            ]
        )
    _tables.table(
        ["nodes", "measured", "predicted", "in 9 of 10 cases", "node-hours"], rows, right=4
    )
    fastest = format_count(study.fastest, "node")
    click.echo(f"Shortest on {fastest}, fewest node-hours on {study.cheapest:,}.")
    if study.scaling.note:
        click.echo(study.scaling.note)
