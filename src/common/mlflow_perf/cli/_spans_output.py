"""How the spans commands print rows: a table for people, CSV or JSON for programs."""

from __future__ import annotations

import csv
import io
import json
import sys
import time
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import click

__all__ = [
    "ProgressBar",
    "db_option",
    "echo_rows",
    "json_option",
    "plot_option",
    "printable",
]

_Command = TypeVar("_Command", bound=Callable[..., Any])

db_option: Callable[[_Command], _Command] = click.option(
    "--db", metavar="FILE", default="spans.sqlite3", show_default=True, help="The spans database."
)
json_option: Callable[[_Command], _Command] = click.option(
    "--json", "as_json", is_flag=True, help="Print JSON."
)
plot_option: Callable[[_Command], _Command] = click.option(
    "--plot", "picture", metavar="FILE", help="Also draw it: a .png, .svg or .pdf file."
)

_SHOW_AFTER_SEC = 2.0
_BAR_WIDTH = 30


class ProgressBar:
    """A bar on the terminal for a step that takes longer than two seconds; elsewhere nothing."""

    def __init__(self) -> None:
        self._started = time.monotonic()
        self._shown = False

    def __call__(self, step: str, share: float) -> None:
        """Show the current step and the share of it that is done."""
        if not sys.stderr.isatty() or time.monotonic() - self._started < _SHOW_AFTER_SEC:
            return
        self._shown = True
        done = round(_BAR_WIDTH * min(1.0, share))
        bar = "█" * done + "·" * (_BAR_WIDTH - done)
        click.echo(f"\r\x1b[K{bar} {share:4.0%} {printable(step)}", err=True, nl=False)

    def close(self) -> None:
        """Remove the bar from the terminal."""
        if self._shown:
            click.echo("\r\x1b[K", err=True, nl=False)


def echo_rows(rows: Sequence[Mapping[str, Any]], *, form: str) -> None:
    """Print rows.

    Args:
        rows: The rows; the keys of the first are the columns.
        form: `table`, `csv` or `json`.
    """
    if form == "json":
        click.echo(json.dumps(rows, indent=1, allow_nan=False, ensure_ascii=False))
    elif form == "csv" and rows:
        text = io.StringIO()
        writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        click.echo(text.getvalue(), nl=False)
    elif form == "table":
        click.echo(_to_table(rows) if rows else "No rows.")


def _to_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return rows as a table with aligned columns, numbers to the right."""
    columns = []
    for name in rows[0]:
        values = [row.get(name) for row in rows]
        cells = [f"{v:.6f}" if isinstance(v, float) else printable(str(v)) for v in values]
        cells = ["" if v is None else cell for v, cell in zip(values, cells, strict=True)]
        width = max(len(name), *map(len, cells))
        cells = [printable(name), "-" * width, *cells]
        is_number = any(isinstance(value, int | float) for value in values)
        columns.append([c.rjust(width) if is_number else c.ljust(width) for c in cells])
    return "\n".join("  ".join(line).rstrip() for line in zip(*columns, strict=True))


def printable(text: str) -> str:
    """Return a text with every control character spelled out."""
    return "".join(c if unicodedata.category(c)[0] != "C" else f"\\x{ord(c):02x}" for c in text)
