"""How the spans commands show rows: a table for people, CSV or JSON for programs."""

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
    "to_csv",
    "to_table",
]

_Command = TypeVar("_Command", bound=Callable[..., Any])

db_option: Callable[[_Command], _Command] = click.option(
    "--db", metavar="FILE", default="spans.sqlite3", show_default=True, help="The spans database."
)
json_option: Callable[[_Command], _Command] = click.option(
    "--json", "as_json", is_flag=True, help="Print JSON."
)
plot_option: Callable[[_Command], _Command] = click.option(
    "--plot", "picture", metavar="FILE", help="Draw it too: a .png, .svg or .pdf file."
)

_SHOW_AFTER_SEC = 2.0
_BAR_WIDTH = 30


class ProgressBar:
    """A bar on the terminal for what takes longer than two seconds; elsewhere nothing."""

    def __init__(self) -> None:
        self._started = time.monotonic()
        self._shown = False

    def __call__(self, what: str, share: float) -> None:
        """Show what is being done and what share of it is."""
        if not sys.stderr.isatty() or time.monotonic() - self._started < _SHOW_AFTER_SEC:
            return
        self._shown = True
        done = round(_BAR_WIDTH * min(1.0, share))
        bar = "█" * done + "·" * (_BAR_WIDTH - done)
        click.echo(f"\r\x1b[K{bar} {share:4.0%} {printable(what)}", err=True, nl=False)

    def close(self) -> None:
        """Take the bar off the terminal."""
        if self._shown:
            click.echo("\r\x1b[K", err=True, nl=False)


def echo_rows(rows: Sequence[Mapping[str, Any]], *, form: str, empty: str = "No rows.") -> None:
    """Print rows.

    Args:
        rows: What to print; the first row's keys are the columns.
        form: `table`, `csv` or `json`.
        empty: What a table says when there are none.
    """
    if form == "json":
        click.echo(json.dumps(rows, indent=1, allow_nan=False, ensure_ascii=False))
    elif form == "csv":
        click.echo(to_csv(rows), nl=False)
    else:
        click.echo(to_table(rows) if rows else empty)


def to_csv(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return rows as CSV with a head line."""
    text = io.StringIO()
    if rows:
        writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    return text.getvalue()


def to_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return rows as a table with aligned columns, numbers to the right."""
    names = list(rows[0])
    cells = [[_cell(row.get(name)) for name in names] for row in rows]
    widths = [max(len(name), *(len(line[i]) for line in cells)) for i, name in enumerate(names)]
    right = [any(isinstance(row.get(n), int | float) for row in rows) for n in names]
    lines = [[printable(n) for n in names], ["-" * w for w in widths], *cells]
    return "\n".join(
        "  ".join(
            text.rjust(width) if flush else text.ljust(width)
            for text, width, flush in zip(line, widths, right, strict=True)
        ).rstrip()
        for line in lines
    )


def printable(text: str) -> str:
    """Return a text without what would steer the terminal."""
    return "".join(c if unicodedata.category(c)[0] != "C" else f"\\x{ord(c):02x}" for c in text)


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.6f}"
    return printable(str(value))
