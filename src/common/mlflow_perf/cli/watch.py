"""`mlflow-perf watch`: judge a component's newest run, for cron."""

from __future__ import annotations

import json
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

_PAST_MAX = 200
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
@click.option("--since", metavar="AGE", help="Only a run of the last 90min, 24h, 7d.")
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
    """Judge the newest run of a component against the runs before it; end with 1 if a limit fails.

    For cron: it prints only the decision, and needs no service.
    """
    _options.prepare()
    if post is not None:
        _check_address(post)
    new = find_component_runs(component, last=1)
    if since is not None and (new[0].started or 0.0) < time.time() - parse_age(since):
        text = f"No run of {component} in the last {since}."
        if as_json:
            _tables.echo_json(_describe(component, None, GateResult((), (), ())) | {"text": text})
        else:
            click.echo(_tables.clean(text))
        return
    try:
        past = find_past(new, component, "", most=_PAST_MAX, any_hardware=any_hardware)[:last]
    except RunNotFoundError:  # the first run of all: absolute limits still hold
        past = []
    result = check(past, new, limits)
    body = _describe(component, new[0].run_id, result)
    if as_json:
        _tables.echo_json(body)
    else:
        click.echo(to_markdown(result), nl=False)
    if not result.passed:
        if post is not None:
            _post(post, body)
        sys.exit(1)


def _describe(component: str, run_id: str | None, result: GateResult) -> dict[str, Any]:
    """Return what is sent: `text` is what chat services show."""
    failed = [check for check in result.checks if not check.passed]
    reasons = [f"{check.limit.text}: {check.how}" for check in failed] + list(result.failures)
    state = "is within its limits" if result.passed else "exceeds its limits"
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
