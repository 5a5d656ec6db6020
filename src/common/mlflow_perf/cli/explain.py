"""`mlflow-perf explain`: explain a run, or the change from one run to another."""

from __future__ import annotations

import click

from mlflow_perf.analysis.explanations import build_explanation
from mlflow_perf.cli import _options, _tables


@click.command()
@click.argument("run")
@click.argument("other", required=False)
@_options.as_json
def command(run: str, other: str | None, *, as_json: bool) -> None:
    """Explain the time of RUN, or the change from RUN to OTHER, as Markdown.

    Each is a run id, a path to a document or a folder of node-*.json. The answer has at most 2,000
    tokens, and no paths or passwords, so that it can be given to an agent.
    """
    _options.prepare()
    found = build_explanation(run, other)
    if as_json:
        _tables.echo_json(found.as_dict())
    else:
        lines = found.to_markdown().split("\n")
        click.echo("\n".join(map(_tables.clean, lines)), nl=False)
