"""`mlflow-perf selftest`: known loads with their measured and true figures, and our overhead."""

from __future__ import annotations

import sys

import click

from mlflow_perf.cli import _options, _tables
from mlflow_perf.selftest import Check, measure_overhead, passed, run_checks

_OVERHEAD = {
    "cpu_per_sample_us": "CPU per sample, µs",
    "core_share_pct": "share of a core at 1 sample/s, %",
    "start_ms": "start, CPU ms",
    "stop_ms": "stop, CPU ms",
    "slowdown_pct": "slowdown of a Python loop at 20 samples/s, %",
    "memory_mb": "memory added, MB",
}


@click.command()
@_options.as_json
@click.option("--markdown", is_flag=True, help="Print tables for a document.")
def command(*, as_json: bool, markdown: bool) -> None:
    """Run known loads, and compare the measured figures with the true ones.

    Takes about half a minute and 64 MB of disk. Ends with 1 when an error is beyond its bound.
    """
    checks = list(run_checks())
    overhead = measure_overhead()
    ok = passed(checks)
    rows = [_format_row(check) for check in checks if not check.skipped]
    costs = [(_OVERHEAD[name], f"{value:.3g}") for name, value in overhead.items()]
    if as_json:
        _tables.echo_json(
            {
                "passed": ok,
                "checks": [check.as_dict() for check in checks if not check.skipped],
                "skipped": [{"name": c.name, "why": c.skipped} for c in checks if c.skipped],
                "overhead": overhead,
            }
        )
    elif markdown:
        click.echo("| load | true | measured | error | bound | |")
        click.echo("| --- | ---: | ---: | ---: | ---: | --- |")
        for check in checks:
            skipped = (check.name, "", "", "", "", "not run")
            click.echo(f"| {' | '.join(skipped if check.skipped else _format_row(check))} |")
        click.echo("\n| our own cost | |\n| --- | ---: |")
        for name, value in costs:
            click.echo(f"| {name} | {value} |")
    else:
        styles = [row[-1].lower() for row in rows]
        header = ("Check", "true", "measured", "error", "bound", "")
        _tables.table(header, rows, right=5, styles=styles)
        for check in checks:
            if check.skipped:
                click.echo(_tables.clean(f"Not run: {check.name}: {check.skipped}"))
        click.echo()
        _tables.table(("Overhead", "now"), costs, right=1)
    sys.exit(0 if ok else 1)


def _format_row(check: Check) -> tuple[str, ...]:
    figures = (f"{value:.4g} {check.unit}" for value in (check.true or 0.0, check.measured or 0.0))
    return (
        check.name,
        *figures,
        f"{check.error_pct or 0.0:+.2f}%",
        f"±{check.bound_pct:.2g}%",
        "passed" if check.passed else "FAILED",
    )
