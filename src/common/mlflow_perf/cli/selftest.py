"""`mlflow-perf selftest`: known loads, measured against true, and our own overhead."""

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
    """Run known loads, and compare what is measured with what is true.

    Takes about half a minute and 64 MB of disk. Ends with 1 when an error is beyond its bound.
    """
    checks = list(run_checks())
    overhead = measure_overhead()
    ok = passed(checks)
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
        _show_markdown(checks, overhead)
    else:
        _show(checks, overhead)
    sys.exit(0 if ok else 1)


def _show(checks: list[Check], overhead: dict[str, float]) -> None:
    ran = [check for check in checks if not check.skipped]
    styles = ["passed" if check.passed else "failed" for check in ran]
    header = ("Check", "true", "measured", "error", "bound", "")
    _tables.table(header, [_row(check) for check in ran], right=5, styles=styles)
    for check in checks:
        if check.skipped:
            click.echo(_tables.clean(f"Not run: {check.name}: {check.skipped}"))
    click.echo()
    rows = [(_OVERHEAD[name], f"{value:.3g}") for name, value in overhead.items()]
    _tables.table(("Overhead", "now"), rows, right=1)


def _show_markdown(checks: list[Check], overhead: dict[str, float]) -> None:
    click.echo(
        "| load | true | measured | error | bound | |\n| --- | ---: | ---: | ---: | ---: | --- |"
    )
    for check in checks:
        cells = (check.name, "", "", "", "", "not run") if check.skipped else _row(check)
        click.echo(f"| {' | '.join(cells)} |")
    click.echo("\n| our own cost | |\n| --- | ---: |")
    for name, value in overhead.items():
        click.echo(f"| {_OVERHEAD[name]} | {value:.3g} |")


def _row(check: Check) -> tuple[str, ...]:
    figures = (f"{value:.4g} {check.unit}" for value in (check.true or 0.0, check.measured or 0.0))
    return (
        check.name,
        *figures,
        f"{check.error_pct or 0.0:+.2f}%",
        f"±{check.bound_pct:g}%",
        "passed" if check.passed else "FAILED",
    )
