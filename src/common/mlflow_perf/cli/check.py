"""`mlflow-perf check`: a gate for continuous integration."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import click

from mlflow_perf.analysis.component_history import find_component_runs, find_past
from mlflow_perf.analysis.gate import check as check_runs
from mlflow_perf.analysis.gate_reports import to_junit, to_markdown
from mlflow_perf.cli import _options, _tables
from mlflow_perf.tracking.load import RunRef
from mlflow_perf.tracking.perf_run import PerfRun
from mlflow_perf.tracking.search import get_run

Side = RunRef | PerfRun
"""A run of one side of the comparison: named by the user, or found in the history."""

_HISTORY_MAX = 200
_BASE_LAST = 10


@click.command()
@click.argument("runs", nargs=-1)
@click.option(
    "--limit",
    "limits",
    multiple=True,
    required=True,
    metavar="KEY=+10%",
    help="KEY may rise by 10% of the base; -10%: fall by it; +5: rise by units; KEY=90, KEY<=90 "
    "and KEY>=50 are absolute bounds; KEY=auto: the noise of BASE; auto: that of duration_sec. "
    "STEP:KEY=… applies to one step. Repeatable.",
)
@click.option(
    "--base-filter",
    metavar="FILTER",
    help="Search BASE in the history: a condition in MLflow's search language; '' matches any. "
    "Only finished runs of the same component on the same hardware are used.",
)
@click.option(
    "--base-last",
    type=click.IntRange(1, _HISTORY_MAX),
    metavar="N",
    help="Use the newest N runs that --base-filter finds (default: 10); without a filter, of all "
    "runs.",
)
@click.option("--new-filter", metavar="FILTER", help="Search NEW too; needs --component.")
@click.option(
    "--new-last",
    default=1,
    show_default=True,
    type=click.IntRange(1, _HISTORY_MAX),
    metavar="N",
    help="Use the newest N that --new-filter finds.",
)
@click.option("--component", metavar="NAME", help="The component to search for; default: NEW's.")
@click.option(
    "--any-hardware", is_flag=True, help="Let --base-filter find runs on other hardware too."
)
@click.option(
    "--alpha",
    default=0.05,
    show_default=True,
    type=click.FloatRange(0, 1, min_open=True, max_open=True),
    help="Probability that a test may call noise a regression.",
)
@click.option("--junit", metavar="FILE", help="Write JUnit XML.")
@click.option("--output", "-o", metavar="FILE", help="Write the Markdown to a file as well.")
@_options.as_json
def command(
    runs: tuple[str, ...],
    *,
    limits: tuple[str, ...],
    base_filter: str | None,
    base_last: int | None,
    new_filter: str | None,
    new_last: int,
    component: str | None,
    any_hardware: bool,
    alpha: float,
    junit: str | None,
    output: str | None,
    as_json: bool,
) -> None:  # fmt: skip
    """Judge NEW against BASE: print Markdown and end with 0, or 1 if a limit is exceeded.

    It ends with 2 if a limit cannot be judged, such as KEY=auto with fewer than three runs of BASE.

    RUNS are BASE and NEW, except for a side that a filter searches. Each is a run id, a path to a
    document or a folder of node-*.json, or several of them as A,B,C: repeats of the same work,
    whose noise is then taken into account.
    """
    _options.prepare()
    if base_last is not None and base_filter is None:
        base_filter = ""
    wanted = ["BASE"] * (base_filter is None) + ["NEW"] * (new_filter is None)
    if len(runs) != len(wanted):
        names = " and ".join(wanted) or "no run, because the filters search both sides"
        raise click.UsageError(f"Give {names}; write several runs of one side as A,B,C.")
    sides = [_options.split(run) for run in runs]
    if not all(sides):
        raise click.UsageError("A side of the comparison is empty.")
    base: Sequence[Side] = sides[0] if base_filter is None else []
    new: Sequence[Side] = sides[-1] if new_filter is None else []
    if new_filter is not None:
        if component is None:
            raise click.UsageError("--new-filter needs --component NAME.")
        new = find_component_runs(
            component, filter_string=new_filter, last=new_last, kind="matching run"
        )
    if base_filter is not None:
        read = [run if isinstance(run, PerfRun) else get_run(run) for run in new]
        if component is not None:
            new = read = [run.find_component(component) or run for run in read]
        past = find_past(read, component, base_filter, most=_HISTORY_MAX, any_hardware=any_hardware)
        base = past[: base_last or _BASE_LAST]
    result = check_runs(base, new, limits, alpha=alpha)
    if junit is not None:
        _options.write(junit, to_junit(result))
    if output is not None:
        _options.write(output, to_markdown(result))
    if as_json:
        _tables.echo_json(result.as_dict())
    else:
        click.echo(to_markdown(result), nl=False)
    sys.exit(result.exit_code)
