"""`mlflow-perf watch`: judge a component's newest run, for cron."""

from __future__ import annotations

import json
import math
import sys
import time
import urllib.error
import urllib.request
from typing import Any
from urllib.parse import urlsplit

import click

from mlflow_perf.analysis.component_history import find_component_runs, find_past
from mlflow_perf.analysis.explanations import hide_private
from mlflow_perf.analysis.gate import GateResult, check
from mlflow_perf.analysis.gate_reports import to_markdown
from mlflow_perf.cli import _options, _tables
from mlflow_perf.core.format import parse_age
from mlflow_perf.core.no_redirect import NoRedirect
from mlflow_perf.errors import RunNotFoundError, SettingError
from mlflow_perf.tracking.perf_run import PerfRun

_PAST_MAX = 200
_JUDGED_MAX = 50
_POST_SEC = 10.0


@click.command()
@click.option("--component", required=True, metavar="NAME", help="The component.")
@click.option(
    "--limit",
    "limits",
    multiple=True,
    required=True,
    metavar="KEY=+10%",
    help="As in `check`; KEY=auto allows the component's own noise. Repeatable.",
)
@click.option(
    "--since", metavar="AGE", help="Judge each run of the last 90min, 24h, 7d, not the newest only."
)
@click.option(
    "--last",
    default=10,
    show_default=True,
    type=click.IntRange(1, _PAST_MAX),
    metavar="N",
    help="Compare with the newest N finished runs before it.",
)
@click.option("--any-hardware", is_flag=True, help="Compare with runs on other hardware too.")
@click.option("--post", metavar="URL", help="Send a JSON body to this webhook if a limit fails.")
@_options.as_json
def command(
    *,
    component: str,
    limits: tuple[str, ...],
    since: str | None,
    last: int,
    any_hardware: bool,
    post: str | None,
    as_json: bool,
) -> None:
    """Judge a component's newest run against the runs before it; end with 1 if a limit fails.

    For cron: it prints only the decision, and needs no service. It ends with 2 if no limit fails
    but one cannot be judged, as after the first run.
    """
    _options.prepare()
    if post is not None:
        _check_address(post)
    newest = find_component_runs(component, last=1 if since is None else _JUDGED_MAX)
    begin = -math.inf if since is None else time.time() - parse_age(since)
    new = [run for run in newest if (run.started or 0.0) >= begin]
    if not new:
        text = f"No run of {component} in the last {since}."
        if as_json:
            _tables.echo_json(_describe(component, None, GateResult((), (), ())) | {"text": text})
        else:
            click.echo(_tables.clean(text))
        return
    bodies, codes = [], set()
    for run in new:
        result = check(_find_before(run, component, last, any_hardware), [run], limits)
        bodies.append(_describe(component, run.run_id, result))
        codes.add(result.exit_code)
        # Of earlier runs only the bad ones are news.
        if not as_json and (run is new[0] or not result.passed):
            click.echo(to_markdown(result), nl=False)
        if post is not None and result.exit_code == 1:
            _post(post, bodies[-1])
    if as_json:
        _tables.echo_json(bodies[0] if since is None else {**bodies[0], "earlier": bodies[1:]})
    sys.exit(1 if 1 in codes else max(codes))


def _find_before(run: PerfRun, component: str, last: int, any_hardware: bool) -> list[PerfRun]:
    """Return the newest finished runs before a run; none before the first run of all."""
    try:
        past = find_past([run], component, "", most=_PAST_MAX, any_hardware=any_hardware)
    except RunNotFoundError:  # absolute limits still hold
        return []
    return [one for one in past if (one.started or 0.0) <= (run.started or 0.0)][:last]


def _describe(component: str, run_id: str | None, result: GateResult) -> dict[str, Any]:
    """Return what is sent: `text` is what chat services show."""
    failed = [check for check in result.checks if not check.passed]
    reasons = [f"{check.limit.text}: {check.how}" for check in failed]
    reasons += [*result.failures, *result.unjudged]
    state = ("is within its limits", "exceeds its limits", "cannot be judged")[result.exit_code]
    text = " ".join([f"mlflow-perf: {component} {state} (run {run_id}).", *reasons])
    fields = ("base_median", "new_median", "change_pct", "outcome", "more_runs", "how")
    body: dict[str, Any] = hide_private(
        {
            "text": text,
            "component": component,
            "run_id": run_id,
            "passed": result.passed,
            "checks": [
                {"step": check.step, "metric": check.limit.key, "limit": check.limit.text}
                | {name: getattr(check, name) for name in fields}
                for check in result.checks
            ],
            "failures": list(result.failures),
            "unjudged": list(result.unjudged),
        }
    )
    return body


def _check_address(url: str) -> None:
    """Raise a SettingError if a webhook cannot be reached by this address, which is not shown."""
    try:
        parts = urlsplit(url)
        is_usable = parts.scheme in ("http", "https") and bool(parts.hostname)
    except ValueError:
        is_usable = False
    if not is_usable:
        raise SettingError("--post takes an address such as https://HOST/PATH.")
    if "@" in parts.netloc:
        raise SettingError("--post takes an address without a user and a password before the host.")


def _post(url: str, body: dict[str, Any]) -> None:
    """Send the body; a webhook that does not answer costs one line, as the exit code is 1 anyway.

    The address of a webhook is a secret: only its host is named.
    """
    data = json.dumps(body).encode()
    headers = {"Content-Type": "application/json"}
    try:
        request = urllib.request.Request(url, data, headers)  # noqa: S310 - http(s), see above
        # A redirect would be followed by a GET, which loses the body.
        with urllib.request.build_opener(NoRedirect).open(request, timeout=_POST_SEC):
            pass
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", None) or type(error).__name__
        if isinstance(error, urllib.error.HTTPError):
            reason = f"HTTP {error.code}"
        click.echo(f"mlflow-perf: {urlsplit(url).hostname} did not take it: {reason}.", err=True)
