"""Print tables and sentences: 80 columns wide, in colour on a terminal only.

Control characters in text from runs are spelled out, so that a name cannot move the cursor, change
colours or reorder the text around it.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import shutil
import sys
from collections.abc import Iterable, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

import click

from mlflow_perf.core.clean_text import clean as clean  # noqa: PLC0414 - the commands use it, too

_WIDTH_MAX = 120
_COLUMN_MIN = 8
_GAP = 2

_PARTS = re.compile(r"[^./_-]*[./_-]|[^./_-]+")
_STYLES: dict[str, dict[str, Any]] = {
    "worse": {"fg": "red"},
    "better": {"fg": "green"},
    "failed": {"fg": "red", "bold": True},
    "passed": {"fg": "green"},
    "bold": {"bold": True},
    "dim": {"dim": True},
}


def paint(text: str, style: str) -> str:
    """Return a text in one of our styles; without a terminal, `click.echo` removes the style."""
    return click.style(text, **_STYLES[style])


def drop_output(*streams: Any) -> None:
    """Let Python end without an error for what a stream did not take.

    Args:
        streams: The streams; default: standard output.
    """
    for stream in streams or (sys.stdout,):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def open_closed_streams() -> None:
    """Open the standard streams that are closed, on the null device.

    Other libraries and programs write to them, and the next file would have their numbers.
    """
    while (number := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(number, True)
    os.close(number)
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115 - to stay


def print_what_the_locale_has() -> None:
    """Print `?` for a character that the locale's encoding lacks: Latin-1 has no dash, for one."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
            stream.reconfigure(errors="replace")


def echo_json(data: Any) -> None:
    """Print plain data as strict JSON."""
    encoding = (getattr(sys.stdout, "encoding", None) or "").lower().replace("-", "")
    click.echo(json.dumps(data, indent=2, allow_nan=False, ensure_ascii=encoding != "utf8"))


def width() -> int:
    """Return the number of columns of the terminal; 80 if there is no terminal."""
    if sys.stdout is None or not sys.stdout.isatty():  # `>&-` closes it
        return 80
    return min(_WIDTH_MAX, max(40, shutil.get_terminal_size((80, 24)).columns))


def short(text: object, *, beside: str = "") -> str:
    """Return a name on one line that fits, cut with `…` if necessary.

    Args:
        text: The name.
        beside: The rest of the line.
    """
    from rich.cells import cell_len, set_cell_size

    label, room = clean(text), max(_COLUMN_MIN, width() - cell_len(beside))
    return label if cell_len(label) <= room else set_cell_size(label, room - 1) + "…"


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
    from rich.cells import cell_len

    texts = [[clean(cell) for cell in row] for row in (header, *rows)]
    widths = [max(map(cell_len, column)) for column in zip(*texts, strict=True)]
    left = len(header) - right
    over = sum(widths) + _GAP * (len(widths) - 1) - width()
    while over > 0 and max(widths[:left], default=0) > _COLUMN_MIN:
        widths[widths.index(max(widths[:left]))] -= 1
        over -= 1
    lines = []
    for row, style in zip_longest(texts, ("bold", *styles), fillvalue=""):
        folded = [_fold(text, size) for text, size in zip(row, widths, strict=True)]
        for parts in zip_longest(*folded, fillvalue=""):
            cells = []
            for i, (part, size) in enumerate(zip(parts, widths, strict=True)):
                padding = " " * (size - cell_len(part))
                cells.append(part + padding if i < left else padding + part)
            line = (" " * _GAP).join(cells).rstrip()
            lines.append(paint(line, style) if style in _STYLES else line)
    click.echo("\n".join(lines))


def _fold(text: str, size: int) -> list[str]:
    """Return a text in lines of at most `size` columns, with one indent.

    It is cut between words, and in a word that is too long after `.`, `/`, `_` or `-`.
    """
    from rich.cells import cell_len, chop_cells

    if cell_len(text) <= size:
        return [text]
    words = text.lstrip(" ")
    indent = text[: min(len(text) - len(words), size // 2)]
    room, lines = size - len(indent), list[str]()
    for word in words.split(" "):
        if lines and cell_len(lines[-1]) + 1 + cell_len(word) <= room:
            lines[-1] += f" {word}"
        else:
            cut = [""]
            for part in _PARTS.findall(word):
                if cell_len(cut[-1]) + cell_len(part) <= room:
                    cut[-1] += part
                else:
                    cut += chop_cells(part, room)
            lines += cut if cut[0] else cut[1:] or cut
    return [indent + line for line in lines]
