"""`mlflow-perf advise`: recommend the resources to ask for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import click

from mlflow_perf.analysis.component_history import find_component_runs
from mlflow_perf.analysis.machines import MachineChoice, choose_machine, read_machines
from mlflow_perf.analysis.resource_lines import LINES
from mlflow_perf.analysis.rightsize import RightSize, right_size
from mlflow_perf.analysis.run_inputs import check_inputs, parse_inputs, read_inputs
from mlflow_perf.analysis.sized_steps import size_each
from mlflow_perf.analysis.step_runs import load_step_runs
from mlflow_perf.cli import _options, _tables
from mlflow_perf.errors import RunNotFoundError
from mlflow_perf.reports.advice_page import render_advice
from mlflow_perf.tracking.perf_run import PerfRun
from mlflow_perf.tracking.search import find_runs, get_run

_NAMES = {"cpus": "CPUs", "memory_mb": "memory, MB", "nodes": "nodes", "gpus": "GPUs",
          "gpu_memory_mb": "GPU memory, MB"}  # fmt: skip
_MOST_RUNS = 100_000
_DOCUMENTS_MAX = 200
_EVIDENCE_MAX = 12
"""With more steps than this, the evidence would hide the table."""


def _parse_share(ctx: click.Context, param: click.Parameter, text: str) -> float:
    """Return `1%` or `0.01` as a number between 0 and 1."""
    del ctx, param
    try:
        share = float(text.strip().removesuffix("%")) / (100.0 if text.endswith("%") else 1.0)
    except ValueError:
        share = -1.0
    if not 0 < share < 1:
        raise click.BadParameter(f"{text!r} is no share between 0 and 1, such as 1% or 0.01.")
    return share


@click.command()
@click.argument("run", required=False)
@click.option("--component", metavar="NAME", help="Use the history of a component instead.")
@click.option("--all", "everything", is_flag=True, help="Use the history of every component.")
@click.option(
    "--last",
    default=200,
    show_default=True,
    type=click.IntRange(1, _MOST_RUNS),
    metavar="N",
    help="With --component and --all: the newest N runs of a component.",
)
@click.option(
    "--input",
    "inputs",
    multiple=True,
    metavar="NAME=NUMBER",
    help="A parameter, counter or read_mb of the next run, such as rows=2e6.",
)
@click.option(
    "--risk",
    default="1%",
    show_default=True,
    callback=_parse_share,
    metavar="SHARE",
    help="Accepted share of runs with too little memory.",
)
@click.option(
    "--headroom",
    default=None,
    type=click.FloatRange(0, 1000),
    metavar="PCT",
    help="Added to the peak memory and the longest time; by default learned from the runs.",
)
@click.option(
    "--machines",
    type=click.Path(path_type=Path),
    metavar="FILE.csv",
    help="Choose the cheapest of these machines: name, cpus, memory_gb, price_per_hour, gpus, "
    "gpu_memory_gb.",
)
@click.option("--for", "target", type=click.Choice([*LINES]), help="Print only these lines.")
@click.option("--html", metavar="FILE", help="Write a page with a picture of the past peaks.")
@_options.as_json
def command(
    run: str | None,
    *,
    component: str | None,
    everything: bool,
    last: int,
    inputs: Sequence[str],
    risk: float,
    headroom: float | None,
    machines: Path | None,
    target: str | None,
    html: str | None,
    as_json: bool,
) -> None:  # fmt: skip
    """Advise on cores, memory, nodes and GPUs, from RUN or from a component's history.

    RUN is a run id, a path to a document, or a folder of node-*.json. For a workflow's parent run,
    each step gets its own advice, learned from all tasks of the step.
    """
    if [run is not None, component is not None, everything].count(True) != 1:
        raise click.UsageError("Give one of RUN, --component NAME and --all.")
    given = parse_inputs(inputs)
    if headroom is not None and given:
        raise click.UsageError("--headroom takes the largest peak; leave out --input.")
    table = None if machines is None else read_machines(machines)
    _options.prepare()
    silent: list[PerfRun] = []
    runs = _find_runs(run, component, last, silent)
    check_inputs(given, (read_inputs(one) for found in runs.values() for one in found))

    def size_runs(found: Sequence[PerfRun]) -> RightSize:
        # Of several components, each is given those inputs that it knows.
        own = {n: v for n, v in given.items() if any(n in read_inputs(one) for one in found)}
        return right_size(found, headroom_pct=headroom, risk=risk, inputs=own)

    sizes = size_each(runs, size_runs, silent)
    choices = {n: choose_machine(size, table) for n, size in sizes.items()} if table else {}
    if html is not None:
        _write_page(html, sizes, given, choices)
    if as_json:
        _print_json(sizes, choices, several="components" if everything else "steps")
    elif target is not None:
        for i, (name, size) in enumerate(sizes.items()):
            if len(sizes) > 1:
                click.echo("\n" * (i > 0) + f"# {_tables.clean(name)}")
            click.echo(LINES[target][1](size))
    elif len(sizes) == 1:
        _show(*next(iter(sizes.items())), choices)
    else:
        _show_steps(sizes, choices)


def _find_runs(
    run: str | None, component: str | None, last: int, silent: list[PerfRun]
) -> dict[str, list[PerfRun]]:
    """Return the runs to learn from by the name of their step or component.

    Args:
        run: The run.
        component: The component.
        last: At most so many runs of a component.
        silent: Gets the runs of components that were killed before they had figures.
    """
    documents = True if last <= _DOCUMENTS_MAX else None
    if component is not None:
        found = find_component_runs(component, last=last, documents=documents, silent=silent)
        return {component: found}
    if run is not None:
        return load_step_runs([get_run(run)])[0].group_tasks()
    groups: dict[str, list[PerfRun]] = {}
    for one in find_runs(max_results=_MOST_RUNS, silent=silent):
        for part in (one, *one.components.values()):
            if part.component is not None and len(groups.setdefault(part.component, [])) < last:
                groups[part.component].append(part)
    if not groups:
        raise RunNotFoundError("No run of any component holds performance data.")
    return dict(sorted(groups.items()))


def _print_json(
    sizes: Mapping[str, RightSize], choices: Mapping[str, MachineChoice], *, several: str
) -> None:
    data = {}
    for name, size in sizes.items():
        data[name] = size.as_dict()
        if name in choices:
            data[name] |= choices[name].as_dict()
    one = len(data) == 1 and several == "steps"
    _tables.echo_json(next(iter(data.values())) if one else {several: data})


def _write_page(
    path: str,
    sizes: Mapping[str, RightSize],
    inputs: Mapping[str, float],
    choices: Mapping[str, MachineChoice],
) -> None:
    lines = {
        name: [(title, make_lines(size)) for title, make_lines in LINES.values()]
        for name, size in sizes.items()
    }
    for name, choice in choices.items():
        lines[name].insert(0, ("Cheapest machine", choice.reason))
    _options.write(path, render_advice(sizes, inputs=inputs, lines=lines))
    if path != "-":
        click.echo(f"Wrote {_tables.clean(path)}", err=True)


def _show(name: str, size: RightSize, choices: Mapping[str, MachineChoice]) -> None:
    """Print what a step had, used at its peak and should ask for, and the lines to paste."""
    rows = [
        [_NAMES[key], _format(size.had.get(key)), _format(size.peak.get(key)), _format(asked)]
        for key, asked in ((key, getattr(size, key)) for key in _NAMES)
        if not key.startswith("gpu") or size.had.get(key) or asked
    ]
    click.echo(_tables.paint(_tables.short(name), "bold"))
    _tables.table(["per node", "had", "peak", "ask for"], rows, right=3)
    _tables.paragraph("Evidence", size.evidence)
    if name in choices:
        _tables.paragraph("Machine", [choices[name].reason])
    for title, format_lines in LINES.values():
        click.echo("\n" + _tables.paint(title, "bold"))
        click.echo(format_lines(size))


def _show_steps(sizes: Mapping[str, RightSize], choices: Mapping[str, MachineChoice]) -> None:
    """Print what each step of a workflow had and should ask for, then the evidence."""
    rows = []
    keys = [
        k for k in _NAMES if k != "gpu_memory_mb" or any(s.gpu_memory_mb for s in sizes.values())
    ]
    for name, size in sizes.items():
        pairs = [(size.had.get(key), getattr(size, key)) for key in keys]
        cells = [
            f"{_format(had)} → {_format(asked)}" if had or asked else "–" for had, asked in pairs
        ]
        rows.append([name, *cells])
    titles = [_NAMES[key] for key in keys]
    _tables.table(["step: had → ask for", *titles], rows, right=len(titles))
    for name, choice in choices.items():
        _tables.paragraph(f"Machine of {_tables.clean(name)}", [choice.reason])
    if len(sizes) <= _EVIDENCE_MAX:
        for name, size in sizes.items():
            _tables.paragraph(_tables.clean(name), size.evidence)
    else:
        click.echo("\nThe evidence: --component NAME, --html FILE or --json")
        if bounds := sum(size.is_lower_bound for size in sizes.values()):
            click.echo(
                f"{bounds} of them are lower bounds, made without documents of runs or from runs "
                "that did not finish: --component NAME says which."
            )
    click.echo("\nLines to paste: --for " + ", --for ".join(LINES))


def _format(value: float | None) -> str:
    if not value:
        return "–"
    return f"{value:,.0f}" if value >= 1000 else f"{value:,.1f}".removesuffix(".0")
