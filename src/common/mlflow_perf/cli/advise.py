"""`mlflow-perf advise`: recommend the resources to ask for."""

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
@click.option("--component", metavar="NAME", help="Use the history of a component instead.")
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
    default=None,
    type=click.FloatRange(0, 1000),
    metavar="PCT",
    help="Added to the peak memory and the longest time; by default learned from the runs.",
)
@click.option("--for", "target", type=click.Choice([*_LINES]), help="Print only these lines.")
@_options.as_json
def command(
    run: str | None,
    *,
    component: str | None,
    last: int,
    headroom: float | None,
    target: str | None,
    as_json: bool,
) -> None:  # fmt: skip
    """Advise on cores, memory, nodes and GPUs, from RUN or from a component's history.

    RUN is a run id, a path to a document, or a folder of node-*.json. For a workflow's parent run,
    each step gets its own advice.
    """
    if (run is None) == (component is None):
        raise click.UsageError("Give either RUN or --component NAME.")
    _options.prepare()
    if component is not None:
        found = find_runs(component, max_results=last, documents=True)
        if not found:
            raise RunNotFoundError(f"No run of the component {component!r} holds performance data.")
        sizes = {component: right_size(found, headroom_pct=headroom)}
    else:
        steps = load_step_runs([get_run(run or "")], documents=True)[0].steps
        sizes = {name: right_size([s], headroom_pct=headroom) for name, s in steps.items()}
    if as_json:
        data = {name: size.as_dict() for name, size in sizes.items()}
        _tables.echo_json(next(iter(data.values())) if len(data) == 1 else {"steps": data})
    elif target is not None:
        for i, (name, size) in enumerate(sizes.items()):
            if len(sizes) > 1:
                click.echo("\n" * (i > 0) + f"# {_tables.clean(name)}")
            click.echo(_LINES[target][1](size))
    elif len(sizes) == 1:
        _show(*next(iter(sizes.items())))
    else:
        _show_steps(sizes)


def _show(name: str, size: RightSize) -> None:
    """Print what a step had, used at its peak and should ask for, and the lines to paste."""
    rows = [
        [_NAMES[key], _format(size.had.get(key)), _format(size.peak.get(key)), _format(asked)]
        for key, asked in _list_asked(size).items()
        if key != "gpus" or size.had.get("gpus") or size.gpus
    ]
    click.echo(_tables.paint(_tables.short(name), "bold"))
    _tables.table(["per node", "had", "peak", "ask for"], rows, right=3)
    _tables.paragraph("Evidence", size.evidence)
    for title, format_lines in _LINES.values():
        click.echo("\n" + _tables.paint(title, "bold"))
        click.echo(format_lines(size))


def _show_steps(sizes: Mapping[str, RightSize]) -> None:
    """Print what each step of a workflow had and should ask for, then the evidence."""
    rows = []
    for name, size in sizes.items():
        pairs = [(size.had.get(key), asked) for key, asked in _list_asked(size).items()]
        cells = [
            f"{_format(had)} → {_format(asked)}" if had or asked else "–" for had, asked in pairs
        ]
        rows.append([name, *cells])
    _tables.table(["step: had → ask for", *_NAMES.values()], rows, right=len(_NAMES))
    for name, size in sizes.items():
        _tables.paragraph(_tables.clean(name), size.evidence)
    click.echo("\nLines to paste: --for " + ", --for ".join(_LINES))


def _list_asked(size: RightSize) -> dict[str, float | None]:
    return {"cpus": size.cpus, "memory_mb": size.memory_mb, "nodes": size.nodes, "gpus": size.gpus}


def _format(value: float | None) -> str:
    return "–" if not value else f"{value:,.1f}".removesuffix(".0")
