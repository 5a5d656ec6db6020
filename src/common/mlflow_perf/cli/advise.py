"""`mlflow-perf advise`: what to ask for next time."""

from __future__ import annotations

from collections.abc import Mapping

import click

from mlflow_perf.analysis.resource_lines import azureml_lines, kubernetes_lines, slurm_lines
from mlflow_perf.analysis.rightsize import RightSize, right_size
from mlflow_perf.analysis.step_runs import load_step_runs
from mlflow_perf.cli import _options, _tables
from mlflow_perf.errors import RunNotFoundError
from mlflow_perf.tracking.search import find_runs, get_run

_LINES = {
    "slurm": ("Slurm", slurm_lines),
    "kubernetes": ("Kubernetes", kubernetes_lines),
    "azureml": ("Azure ML", azureml_lines),
}

_NAMES = {"cpus": "CPUs", "memory_mb": "memory, MB", "nodes": "nodes", "gpus": "GPUs"}


@click.command()
@click.argument("run", required=False)
@click.option("--component", metavar="NAME", help="Take the history of a component instead.")
@click.option(
    "--last",
    default=20,
    show_default=True,
    type=click.IntRange(1, 1000),
    metavar="N",
    help="With --component: its newest N runs.",
)
@click.option(
    "--headroom",
    default=20.0,
    show_default=True,
    type=click.FloatRange(0, 1000),
    metavar="PCT",
    help="Added to the peak memory and the longest time.",
)
@click.option("--for", "target", type=click.Choice([*_LINES]), help="Print only these lines.")
@_options.as_json
def command(
    run: str | None,
    *,
    component: str | None,
    last: int,
    headroom: float,
    target: str | None,
    as_json: bool,
) -> None:  # fmt: skip
    """Advise on cores, memory, nodes and GPUs, from RUN or from a component's history.

    RUN is a run id, a path to a document, or a folder of node-*.json; of a workflow's parent run
    each step is advised on.
    """
    if (run is None) == (component is None):
        raise click.UsageError("Name RUN, or --component NAME: one of them.")
    _options.prepare()
    sizes = _of_component(component, last, headroom) if component else _of_run(run or "", headroom)
    if as_json:
        data = {name: size.as_dict() for name, size in sizes.items()}
        _tables.echo_json(next(iter(data.values())) if len(data) == 1 else {"steps": data})
        return
    if target is not None:
        click.echo("\n\n".join(_lines(name, size, target, sizes) for name, size in sizes.items()))
    elif len(sizes) == 1:
        _show(*next(iter(sizes.items())))
    else:
        _show_steps(sizes)


def _of_component(component: str, last: int, headroom: float) -> dict[str, RightSize]:
    found = find_runs(component, max_results=last, documents=True)
    if not found:
        raise RunNotFoundError(f"No run of the component {component!r} holds performance data.")
    return {component: right_size(found, headroom_pct=headroom)}


def _of_run(run: str, headroom: float) -> dict[str, RightSize]:
    subject = load_step_runs([get_run(run)], documents=True)[0]
    return {name: right_size([step], headroom_pct=headroom) for name, step in subject.steps.items()}


def _lines(name: str, size: RightSize, target: str, sizes: Mapping[str, RightSize]) -> str:
    lines = _LINES[target][1](size)
    return lines if len(sizes) == 1 else f"# {_tables.clean(name)}\n{lines}"


def _show(name: str, size: RightSize) -> None:
    click.echo(_tables.paint(_tables.short(name), "bold"))
    _tables.table(["per node", "had", "peak", "ask for"], _rows(size), right=3)
    _tables.paragraph("Evidence", size.evidence)
    for title, lines in _LINES.values():
        click.echo("\n" + _tables.paint(title, "bold"))
        click.echo(lines(size))


def _show_steps(sizes: Mapping[str, RightSize]) -> None:
    """Print what each step of a workflow had and should ask for, then the evidence."""
    rows = [
        [
            name,
            *(_change(size.had.get(key), asked) for key, asked in _asked(size).items()),
        ]
        for name, size in sizes.items()
    ]
    _tables.table(["step: had → ask for", *_NAMES.values()], rows, right=len(_NAMES))
    for name, size in sizes.items():
        _tables.paragraph(_tables.clean(name), size.evidence)
    click.echo("\nLines to paste: --for " + ", --for ".join(_LINES))


def _asked(size: RightSize) -> dict[str, float | None]:
    return {"cpus": size.cpus, "memory_mb": size.memory_mb, "nodes": size.nodes, "gpus": size.gpus}


def _change(had: float | None, asked: float | None) -> str:
    return f"{_number(had)} → {_number(asked)}" if had or asked else "–"


def _rows(size: RightSize) -> list[list[str]]:
    return [
        [_NAMES[key], _number(size.had.get(key)), _number(size.peak.get(key)), _number(asked)]
        for key, asked in _asked(size).items()
        if key != "gpus" or size.had.get("gpus") or size.gpus
    ]


def _number(value: float | None) -> str:
    return "–" if not value else f"{value:,.1f}".removesuffix(".0")
