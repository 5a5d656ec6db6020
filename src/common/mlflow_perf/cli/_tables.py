"""Print tables and sentences: 80 columns wide, in colour on a terminal only.

Control characters in text from runs are spelled out, so that a name cannot move the cursor, change
colours or reorder the text around it.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Iterable, Sequence
from typing import Any

import click

_WIDTH_MAX = 120
_COLUMN_MIN = 8
_GAP = 2

# Control characters, those that change the direction of the text around them, and lone surrogates,
# which cannot be encoded.
_UNSAFE = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)
_LINE_END = re.compile(r"(?: |\x1b\[[\d;]*m)+$", re.MULTILINE)
_STYLES: dict[str, dict[str, Any]] = {
    "worse": {"fg": "red"},
    "better": {"fg": "green"},
    "failed": {"fg": "red", "bold": True},
    "passed": {"fg": "green"},
    "bold": {"bold": True},
    "dim": {"dim": True},
}


def clean(text: object) -> str:
    """Return a text on one line with its control characters spelled out."""

    def spell(found: re.Match[str]) -> str:
        code = ord(found[0])
        return f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}"

    return _UNSAFE.sub(spell, str(text))


def paint(text: str, style: str) -> str:
    """Return a text in one of our styles; without a terminal, `click.echo` removes the style."""
    return click.style(text, **_STYLES[style])


def echo_json(data: Any) -> None:
    """Print plain data as strict JSON."""
    encoding = (getattr(sys.stdout, "encoding", None) or "").lower().replace("-", "")
    click.echo(json.dumps(data, indent=2, allow_nan=False, ensure_ascii=encoding != "utf8"))


def width() -> int:
    """Return the number of columns of the terminal; 80 if there is no terminal."""
    if not sys.stdout.isatty():
        return 80
    return min(_WIDTH_MAX, max(40, shutil.get_terminal_size((80, 24)).columns))


def short(text: object, *, beside: str = "") -> str:
    """Return a name on one line that fits, cut with `…` if necessary.

    Args:
        text: The name.
        beside: The rest of the line.
    """
    from rich.cells import cell_len
    from rich.text import Text

    label = Text(clean(text))
    label.truncate(max(_COLUMN_MIN, width() - cell_len(beside)), overflow="ellipsis")
    return label.plain


def wrap(text: str, *, first: str = "", indent: str = "") -> str:
    """Return a sentence in lines that fit.

    Args:
        text: The sentence.
        first: Beginning of the first line.
        indent: Beginning of each further line.
    """
    return click.wrap_text(clean(text), width(), initial_indent=first, subsequent_indent=indent)


def paragraph(title: str, lines: Iterable[str]) -> None:
    """Print a heading and a list of sentences; print nothing if there are none."""
    sentences = list(lines)
    if sentences:
        click.echo("\n" + paint(title, "bold"))
        for sentence in sentences:
            click.echo(wrap(sentence, first="- ", indent="  "))


def table(
    header: Sequence[str],
    rows: Iterable[Sequence[object]],
    *,
    right: int = 0,
    styles: Sequence[str] = (),
) -> None:
    """Print a table that fits; text that is too long continues on the next line.

    Args:
        header: Names of the columns.
        rows: One cell per column.
        right: Number of columns at the right that are right-aligned; these are never folded.
        styles: One style per row.
    """
    from io import StringIO

    from rich.cells import cell_len
    from rich.console import Console
    from rich.style import Style
    from rich.table import Table
    from rich.text import Text

    cells = [[Text(clean(cell)) for cell in row] for row in rows]
    grid = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), header_style="bold")
    needed = -_GAP
    for i, name in enumerate(header):
        to_right = i >= len(header) - right
        size = max([cell_len(name), *(row[i].cell_len for row in cells)])
        least = size if to_right else min(size, _COLUMN_MIN)
        needed += least + _GAP
        grid.add_column(
            Text(name),
            justify="right" if to_right else "left",
            no_wrap=to_right,
            min_width=least,
            overflow="fold",
        )
    for i, row in enumerate(cells):
        style = _STYLES.get(styles[i], {}) if i < len(styles) else {}
        grid.add_row(*row, style=Style(color=style.get("fg"), bold=style.get("bold")))
    text = StringIO()
    # Always with colours: `click.echo` removes them if there is no terminal.
    console = Console(
        file=text, width=max(width(), needed), force_terminal=True, color_system="standard"
    )
    console.print(grid)
    click.echo(
        _LINE_END.sub(lambda m: "\x1b[0m" if "\x1b" in m[0] else "", text.getvalue()), nl=False
    )
