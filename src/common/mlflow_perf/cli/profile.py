"""`mlflow-perf profile`: show the functions that took a run's time, or that changed between two."""

from __future__ import annotations

from typing import Any

import click

from mlflow_perf.analysis.phases import describe_phase, read_phases
from mlflow_perf.analysis.profile_changes import ProfileChange, compare_profiles, format_seconds
from mlflow_perf.cli import _options, _tables
from mlflow_perf.core.format import duration as format_duration
from mlflow_perf.core.format import format_count
from mlflow_perf.core.json_io import read_number, to_json
from mlflow_perf.errors import RunNotFoundError
from mlflow_perf.model.callers import describe_place, find_main_caller
from mlflow_perf.model.document import AUTOLOG, NodeDocument
from mlflow_perf.model.profile import format_share, list_functions, read_samples
from mlflow_perf.reports.speedscope import join_speedscope
from mlflow_perf.tracking.load import load

_ROWS_MAX = 20
_PATH_MAX = 28
_UNMET_LEAST_SEC, _UNMET_LEAST_PART = 0.5, 0.2
_OWN_MAX, _OWN_LEAST_PCT = 3, 5.0


@click.command()
@click.argument("run")
@click.argument("other", required=False)
@_options.as_json
@click.option("--speedscope", metavar="FILE", help="Write the profile for speedscope.app.")
def command(run: str, other: str | None, *, as_json: bool, speedscope: str | None) -> None:
    """Show the functions that took the time of RUN, or that changed from RUN to OTHER.

    Each is a run id, a path to a document or a folder of node-*.json.
    """
    _options.prepare()
    sides = [_read_nodes(name) for name in (run, other) if name is not None]
    if speedscope is not None:
        data = join_speedscope(sides[-1])
        if data is None:
            raise RunNotFoundError(f"The profile of {other or run!r} is damaged: it has no tree.")
        _options.write(speedscope, to_json(data))
    if len(sides) == 2:
        change = compare_profiles(*sides)
        if change is None:
            raise RunNotFoundError("The two runs have no functions that can be compared.")
        if as_json:
            _tables.echo_json(change.as_dict())
        elif speedscope != "-":
            _show_change(change)
    elif as_json:
        found = []
        for node in sides[0]:
            profile = {key: v for key, v in node.extra["profile"].items() if key != "flame"}
            phases = [phase.as_dict() for phase in read_phases(node)]
            index = node.node.get("index", 0)
            found.append({"node": index, "run_id": node.run_id, **profile, "phases": phases})
        _tables.echo_json(found)
    elif speedscope != "-":
        for node in sides[0]:
            _show_node(node, len(sides[0]))


def _read_nodes(run: str) -> list[NodeDocument]:
    """Return the nodes of a run that have a profile.

    Raises:
        RunNotFoundError: When there is none.
    """
    nodes = load(run).all_nodes()
    found = [node for node in nodes if isinstance(node.extra.get("profile"), dict)]
    if not found and any(node.node.get("recorded_by") == AUTOLOG for node in nodes):
        why = "autolog() takes no stacks. Use a report() block or `mlflow-perf run` instead"
    else:
        why = (
            "it was recorded with MLFLOW_PERF_PROFILE=0, by an older version, or ran no Python; "
            "or Python did not load our hook (-I, -E, -S), made sub-interpreters, was under "
            "cProfile from its start (Python 3.12 and newer), or has a limit of its addresses "
            "(ulimit -v, -d), which MLFLOW_PERF_PROFILE=50 overrides"
        )
    if not found:
        raise RunNotFoundError(f"The run {run!r} has no profile: {why}.")
    return found


def _show_node(node: NodeDocument, count: int) -> None:
    profile = node.extra["profile"]
    of_node = f", node {node.node.get('index', 0)}" if count > 1 else ""
    title = _tables.short(node.component or "job", beside=of_node) + of_node
    click.echo(_tables.paint(title, "bold"))
    samples, rate_hz, processes = (
        read_number(profile.get(key)) or 0 for key in ("samples", "rate_hz", "processes")
    )
    of = f" of {processes:g} processes" if processes > 1 else ""
    inexact = "; ±: 95% interval" if read_samples(profile) else ""
    click.echo(f"{format_count(samples, 'sample')}{of}, {rate_hz:g} a second{inexact}")
    if own := _describe_own(profile):
        click.echo(_tables.wrap(f"CPU time by the job's own functions: {own}"))
    if unmet := _describe_unmet(node):
        click.echo(_tables.wrap(unmet))
    rows = [
        [
            row.get("function"),
            _shorten(f"{row.get('file')}:{row.get('line')}"),
            format_share(row, "self"),
            format_share(row, "total"),
            f"{read_number(row.get('cpu_pct')) or 0:.0f}%",
        ]
        for row in list_functions(node)[:_ROWS_MAX]
    ]
    click.echo()
    _tables.table(["function", "where", "self", "total", "computing"], rows, right=3)
    _tables.paragraph("Phases", map(describe_phase, read_phases(node)))


def _describe_unmet(node: NodeDocument) -> str:
    """Return how much of the job's CPU time no sample met, where it is much; or nothing."""
    met = read_number(node.extra["profile"].get("cpu_s")) or 0.0
    whole = 3600 * (read_number(node.summary.get("job_cpu_hours")) or 0.0)
    if whole - met < max(_UNMET_LEAST_SEC, _UNMET_LEAST_PART * whole):
        return ""
    return (
        f"That is {format_duration(met)} of the job's {format_duration(whole)} of CPU time. The "
        "rest is of interpreters that start, of threads that began and ended between two samples, "
        "of threads and programs that are not Python's, or of processes that were not sampled."
    )


def _shorten(place: str) -> str:
    """Return the end of a long path, which a narrow table would break in several places."""
    parts = place.split("/")
    while len(parts) > 2 and len("/".join(parts)) > _PATH_MAX:
        del parts[0]
    text = "/".join(parts)
    return text if text == place else f"…/{text}"


def _describe_own(profile: dict[str, Any]) -> str:
    """Return which of the job's own functions computed most, with the libraries they called.

    The table is by wall time, so that threads of libraries that wait may come first in it.
    """
    whole = read_number(profile.get("cpu_s")) or 0.0
    own = profile.get("own")
    named = []
    for row in own if isinstance(own, list) and whole > 0 else ():
        cpu, error = (read_number(row.get(key)) or 0.0 for key in ("cpu_s", "cpu_error_s"))
        shares = {"self_pct": 100.0 * cpu / whole, "self_error_pct": 100.0 * error / whole}
        if shares["self_pct"] >= _OWN_LEAST_PCT:
            place = describe_place(str(row.get("function")), find_main_caller(row, "cpu"))
            named.append((cpu, f"{place} {format_share(shares, 'self')}"))
    return ", ".join(text for _, text in sorted(named, reverse=True)[:_OWN_MAX])


def _show_change(change: ProfileChange) -> None:
    took = f"{format_duration(change.before_s)} → {format_duration(change.after_s)}"
    click.echo(f"{took} ({format_seconds(change.change_s)})")
    if change.sentence:
        click.echo(_tables.wrap(f"{change.sentence}."))
    rows = [
        [
            one.function,
            _shorten(one.file) + ("" if one.in_main else ", CPU time"),
            format_duration(one.before_s) if one.before_s else "–",
            format_duration(one.after_s) if one.after_s else "–",
            one.text,
        ]
        for one in change.functions[:_ROWS_MAX]
    ]
    click.echo()
    _tables.table(["function", "file", "before", "after", "change"], rows, right=3)
