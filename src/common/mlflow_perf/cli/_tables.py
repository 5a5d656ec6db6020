"""Tables and lines for a terminal: 80 columns, colour only on a terminal, nothing that acts on it.

Text that comes from runs is shown with its control characters spelled out, so that a name
cannot move the cursor, change colours or reorder what stands around it.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
import unicodedata
from collections.abc import Iterable, Sequence
from typing import Any

import click

__all__ = ["clean", "echo_json", "paint", "paragraph", "short", "table", "wrap"]

_WIDTH_MAX = 120
_COLUMN_MIN = 8
_GAP = "  "

# Control characters, and those that change the direction of the text around them.
_UNSAFE = re.compile("[\x00-\x1f\x7f-\x9f\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
_STYLES = {
    "worse": {"fg": "red"},
    "better": {"fg": "green"},
    "failed": {"fg": "red", "bold": True},
    "passed": {"fg": "green"},
    "bold": {"bold": True},
    "dim": {"dim": True},
}


def clean(text: object) -> str:
    """Return a text on one line whose control characters are spelled out."""
    return _UNSAFE.sub(lambda found: _spelled(found[0]), str(text))


def _spelled(character: str) -> str:
    code = ord(character)
    return f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}"


def paint(text: str, style: str) -> str:
    """Return a text in one of our styles; `click.echo` takes it off where there is no terminal."""
    return click.style(text, **_STYLES[style]) if style in _STYLES else text  # type: ignore[arg-type] # the table holds options of click.style


def echo_json(data: Any) -> None:
    """Print plain data as strict JSON."""
    click.echo(json.dumps(data, indent=2, allow_nan=False, ensure_ascii=not _speaks_utf8()))


def _speaks_utf8() -> bool:
    return (getattr(sys.stdout, "encoding", None) or "").lower().replace("-", "") == "utf8"


def width() -> int:
    """Return how many columns there are: the terminal's, 80 where there is none."""
    if not sys.stdout.isatty():
        return 80
    return min(_WIDTH_MAX, max(40, shutil.get_terminal_size((80, 24)).columns))


def short(text: object, *, beside: str = "") -> str:
    """Return a name on one line that fits, cut with `…` where it has to be.

    Args:
        text: The name.
        beside: What else stands on the line.
    """
    return _cut(clean(text), max(_COLUMN_MIN, width() - _columns(beside)))


def wrap(text: str, *, first: str = "", indent: str = "") -> str:
    """Return a sentence in lines that fit.

    Args:
        text: The sentence.
        first: What its first line begins with.
        indent: What each further line begins with.
    """
    return click.wrap_text(clean(text), width(), initial_indent=first, subsequent_indent=indent)


def paragraph(title: str, lines: Iterable[str]) -> None:
    """Print a heading and sentences under it; nothing where there are none."""
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
    """Print a table that fits; text columns lose their middle to `…` where they have to.

    Args:
        header: Names of the columns.
        rows: Cells, as many as columns.
        right: How many of the last columns stand to the right; these are never cut.
        styles: One style per row.
    """
    cells = [[clean(cell) for cell in row] for row in rows]
    widths = _widths([list(header), *cells], right)
    click.echo(paint(_line(header, widths, right), "bold"))
    for i, row in enumerate(cells):
        click.echo(paint(_line(row, widths, right), styles[i] if i < len(styles) else ""))


def _widths(cells: Sequence[Sequence[str]], right: int) -> list[int]:
    widths = [max(map(_columns, column)) for column in zip(*cells, strict=True)]
    left = range(len(widths) - right)
    while sum(widths) + len(_GAP) * (len(widths) - 1) > width():
        widest = max(left, key=lambda i: widths[i], default=None)
        if widest is None or widths[widest] <= _COLUMN_MIN:
            break
        widths[widest] -= 1
    return widths


def _line(row: Sequence[str], widths: Sequence[int], right: int) -> str:
    first_right = len(widths) - right
    cells = [
        _padded(_squeezed(cell, size), size, to_right=i >= first_right)
        for i, (cell, size) in enumerate(zip(row, widths, strict=True))
    ]
    return _GAP.join(cells).rstrip()


def _columns(text: str) -> int:
    """Return how many columns a text takes: some characters take two, some none."""
    return sum(map(_character_columns, text))


def _character_columns(character: str) -> int:
    if unicodedata.combining(character):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def _cut(text: str, size: int) -> str:
    if _columns(text) <= size:
        return text
    kept = ""
    for character in text:
        if _columns(kept + character) > size - 1:
            break
        kept += character
    return kept + "…"


def _squeezed(text: str, size: int) -> str:
    # Not cut at its end: that is where keys such as `cpu_avg_utilization_over20_pct` differ.
    if _columns(text) <= size:
        return text
    end = ""
    for character in reversed(text):
        if _columns(character + end) > (size - 1) // 2:
            break
        end = character + end
    return _cut(text, size - _columns(end)) + end


def _padded(text: str, size: int, *, to_right: bool) -> str:
    space = " " * max(0, size - _columns(text))
    return space + text if to_right else text + space
