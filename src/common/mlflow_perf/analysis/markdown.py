"""Markdown that shows text as it is. Imports nothing of ours."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

__all__ = ["escape", "format_code", "format_table"]

# An underscore inside a word means nothing; one at its edge starts emphasis.
_SPECIAL = re.compile(r"[\\`*\[\]<>|#~&]|(?<![0-9A-Za-z])_|_(?![0-9A-Za-z])")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")


def escape(text: str) -> str:
    """Return a text on one line in which nothing has a meaning in Markdown or in HTML."""
    return _SPECIAL.sub(lambda found: "\\" + found[0], _CONTROL.sub(" ", text))


def format_code(text: str) -> str:
    """Return a text on one line as code, for a cell of a table too."""
    plain = _CONTROL.sub(" ", text)
    longest = max((len(run) for run in re.findall("`+", plain)), default=0)
    fence = "`" * (longest + 1)
    # A code span takes one space off each end, and a table reads a bare bar as its own.
    pad = " " if longest or plain != plain.strip() or not plain else ""
    return f"{fence}{pad}{plain}{pad}{fence}".replace("|", "\\|")


def format_table(header: Sequence[str], rows: Iterable[Sequence[str]], *, right: int = 0) -> str:
    """Return a table; its cells are Markdown already.

    Args:
        header: Names of the columns.
        rows: Cells, as many as columns.
        right: How many of the last columns stand to the right.
    """
    left = len(header) - right
    rule = [":--"] * left + ["--:"] * right
    lines = [header, rule, *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
