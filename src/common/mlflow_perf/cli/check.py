"""`mlflow-perf check`: a gate for continuous integration."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import click

from mlflow_perf.analysis.gate import GateResult
from mlflow_perf.analysis.gate import check as check_runs
from mlflow_perf.analysis.gate_reports import to_junit, to_markdown
from mlflow_perf.analysis.step_runs import find_same_hardware
from mlflow_perf.cli import _options, _tables
from mlflow_perf.errors import RunNotFoundError, SettingError
from mlflow_perf.tracking.load import RunRef
from mlflow_perf.tracking.perf_run import PerfRun
from mlflow_perf.tracking.search import find_runs, get_run

Side = RunRef | PerfRun
"""One run of one side: named, or found in history."""

_HISTORY_MAX = 200


@click.command()
@click.argument("runs", nargs=-1)
@click.option(
    "--limit",
    "limits",
    multiple=True,
    required=True,
    metavar="KEY=+10%",
    help="May rise by 10% of the base; -10% may fall by it; +5 by units; KEY=90, KEY<=90 and "
    "KEY>=50 are values of their own. STEP:KEY=… holds for one step. Repeatable.",
)
@click.option(
    "--base-filter",
    metavar="FILTER",
    help="Search BASE in history: a condition in MLflow's search language; '' takes any. "
    "Only finished runs of the same component on the same hardware are taken.",
)
@click.option(
    "--base-last",
    default=10,
    show_default=True,
    type=click.IntRange(1, _HISTORY_MAX),
    metavar="N",
    help="Take the newest N that --base-filter finds.",
)
@click.option("--new-filter", metavar="FILTER", help="Search NEW too; needs --component.")
@click.option(
    "--new-last",
    default=1,
    show_default=True,
    type=click.IntRange(1, _HISTORY_MAX),
    metavar="N",
    help="Take the newest N that --new-filter finds.",
)
@click.option("--component", metavar="NAME", help="Whose history to search; default: NEW's.")
@click.option("--any-hardware", is_flag=True, help="Let --base-filter take other hardware too.")
@click.option(
    "--alpha",
    default=0.05,
    show_default=True,
    type=click.FloatRange(0, 1, min_open=True, max_open=True),
    help="Chance that a test may have of calling noise a regression.",
)
@click.option("--junit", metavar="FILE", help="Write JUnit XML.")
@click.option("--output", "-o", metavar="FILE", help="Write the Markdown to a file as well.")
@_options.as_json
def command(
    runs: tuple[str, ...],
    *,
    limits: tuple[str, ...],
    base_filter: str | None,
    base_last: int,
    new_filter: str | None,
    new_last: int,
    component: str | None,
    any_hardware: bool,
    alpha: float,
    junit: str | None,
    output: str | None,
    as_json: bool,
) -> None:  # fmt: skip
    """Judge NEW against BASE: print Markdown and end with 0, or 1 where a limit is passed.

    RUNS are BASE and NEW, less the one that a filter searches. Each is a run id, a path to a
    document or a folder of node-*.json, or several of them as A,B,C: repeats of the same work,
    whose noise is then taken into account.
    """
    _options.prepare()
    base, new = _sides(runs, search_base=base_filter is not None, search_new=new_filter is not None)
    if new_filter is not None:
        new = _newest(component, new_filter, new_last)
    if base_filter is not None:
        base = _history(new, component, base_filter, any_hardware=any_hardware)[:base_last]
    result = check_runs(base, new, limits, alpha=alpha)
    _write(result, junit, output)
    if as_json:
        _tables.echo_json(_data(result))
    else:
        click.echo(to_markdown(result), nl=False)
    sys.exit(0 if result.passed else 1)


def _sides(
    runs: Sequence[str], *, search_base: bool, search_new: bool
) -> tuple[Sequence[Side], Sequence[Side]]:
    wanted = [*([] if search_base else ["BASE"]), *([] if search_new else ["NEW"])]
    if len(runs) != len(wanted):
        names = " and ".join(wanted) or "no run: the filters search both sides"
        raise click.UsageError(f"Name {names}; several runs of one side are written A,B,C.")
    sides = [_options.split(run) for run in runs]
    if not all(sides):
        raise click.UsageError("A side of the comparison is empty.")
    base = [] if search_base else sides[0]
    return base, ([] if search_new else sides[-1])


def _newest(component: str | None, condition: str, last: int) -> list[PerfRun]:
    if component is None:
        raise click.UsageError("--new-filter needs --component NAME.")
    found = find_runs(component, filter_string=condition, max_results=last)
    if not found:
        raise RunNotFoundError(f"--new-filter finds no run of the component {component!r}.")
    return found


def _history(
    new: Sequence[Side], component: str | None, condition: str, *, any_hardware: bool
) -> list[PerfRun]:
    """Return the finished runs of history that are like the new ones, newest first."""
    judged = [run if isinstance(run, PerfRun) else get_run(run) for run in new]
    name = component or judged[0].component
    if name is None:
        raise SettingError(
            f"{judged[0].label} names no component to search for: give --component NAME, "
            "or name the base's runs."
        )
    finished = "attributes.status = 'FINISHED'"
    query = f"{finished} and {condition}" if condition.strip() else finished
    found = find_runs(name, filter_string=query, max_results=_HISTORY_MAX)
    ids = {run.run_id for run in judged}
    others = [run for run in found if run.run_id not in ids]
    if not others:
        raise RunNotFoundError(f"--base-filter finds no other finished run of {name!r}.")
    return others if any_hardware else find_same_hardware(others, judged[0])


def _write(result: GateResult, junit: str | None, output: str | None) -> None:
    if junit is not None:
        _options.write(junit, to_junit(result))
    if output is not None:
        _options.write(output, to_markdown(result))


def _data(result: GateResult) -> dict[str, object]:
    return {
        "passed": result.passed,
        "base": list(result.base),
        "new": list(result.new),
        "checks": [
            {
                "step": c.step,
                "limit": c.limit.text,
                "metric": c.limit.key,
                "base": list(c.base),
                "new": list(c.new),
                "change_pct": c.change_pct,
                "p": c.p,
                "outcome": c.outcome,
                "passed": c.passed,
                "how": c.how,
            }
            for c in result.checks
        ],
        "notes": list(result.notes),
        "failures": list(result.failures),
    }
