"""`mlflow-perf check`: a gate for continuous integration."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import click

from mlflow_perf.analysis.gate import GateResult, same_hardware
from mlflow_perf.analysis.gate import check as check_runs
from mlflow_perf.analysis.gate_reports import to_junit, to_markdown
from mlflow_perf.cli import _options, _tables
from mlflow_perf.errors import SettingError
from mlflow_perf.runs import PerfRun, Source, find_runs, get_run

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
    help="Search the base in history: a condition in MLflow's search language; '' takes any. "
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
    any_hardware: bool,
    alpha: float,
    junit: str | None,
    output: str | None,
    as_json: bool,
) -> None:  # fmt: skip
    """Judge NEW against BASE: print Markdown and end with 0, or 1 where a limit is passed.

    RUNS are BASE and NEW, or only NEW where --base-filter searches the base. Each is a run id, a
    path to a document or a folder of node-*.json, or several of them as A,B,C: repeats of the same
    work, whose noise is then taken into account.
    """
    _options.fail_soon()
    base, new = _sides(runs, base_filter)
    found: Sequence[Source | PerfRun] = base
    if base_filter is not None:
        found = _history(get_run(new[0]), base_filter, base_last, any_hardware=any_hardware)
    result = check_runs(found, new, limits, alpha=alpha)
    markdown = to_markdown(result)
    if junit is not None:
        _options.write(junit, to_junit(result))
    if output is not None:
        _options.write(output, markdown)
    if as_json:
        _tables.echo_json(_data(result))
    else:
        click.echo(markdown, nl=False)
    sys.exit(0 if result.passed else 1)


def _sides(runs: Sequence[str], base_filter: str | None) -> tuple[list[str], list[str]]:
    wanted = 1 if base_filter is not None else 2
    if len(runs) != wanted:
        what = "NEW alone, because --base-filter searches the base" if wanted == 1 else "BASE NEW"
        raise click.UsageError(f"Name {what}; several runs of one side are written A,B,C.")
    sides = [_options.split(run) for run in runs]
    if not all(sides):
        raise click.UsageError("A side of the comparison is empty.")
    return (sides[0], sides[1]) if wanted == 2 else ([], sides[0])


def _history(new: PerfRun, condition: str, last: int, *, any_hardware: bool) -> list[PerfRun]:
    if new.component is None:
        raise SettingError(f"{new.label} names no component to search for: name the base's runs.")
    finished = "attributes.status = 'FINISHED'"
    query = f"{finished} and {condition}" if condition.strip() else finished
    found = find_runs(new.component, filter_string=query, max_results=_HISTORY_MAX)
    if any_hardware:
        others = [run for run in found if run.run_id != new.run_id]
        return others[:last]
    return same_hardware(found, new, last=last)


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
