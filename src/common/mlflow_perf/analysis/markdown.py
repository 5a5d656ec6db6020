"""Text and tables as Markdown in which no character of the text has a meaning."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

# An underscore inside a word means nothing; one at its edge starts emphasis.
_SPECIAL = re.compile(r"[\\`*\[\]<>|#~&]|(?<![0-9A-Za-z])_|_(?![0-9A-Za-z])")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")


def escape(text: str) -> str:
    """Return a text on one line, escaped for Markdown and HTML."""
    return _SPECIAL.sub(lambda found: "\\" + found[0], _CONTROL.sub(" ", text))


def format_code(text: str) -> str:
    """Return a text on one line as a code span that may stand in a table's cell."""
    plain = _CONTROL.sub(" ", text)
    longest = max((len(run) for run in re.findall("`+", plain)), default=0)
    fence = "`" * (longest + 1)
    # Markdown strips one space from each end of a code span, and a bare bar would end the cell.
    pad = " " if longest or plain != plain.strip() or not plain else ""
    return f"{fence}{pad}{plain}{pad}{fence}".replace("|", "\\|")


def escape_sentence(text: str) -> str:
    """Return a sentence of ours, escaped but for the code spans in it."""
    parts = enumerate(text.split("`"))
    return "".join(format_code(part) if i % 2 else escape(part) for i, part in parts)


def format_table(header: Sequence[str], rows: Iterable[Sequence[str]], *, right: int = 0) -> str:
    """Return a table.

    Args:
        header: Names of the columns, as Markdown.
        rows: Cells of each row, as Markdown.
        right: How many of the last columns are aligned to the right.
    """
    rule = [":--"] * (len(header) - right) + ["--:"] * right
    return "\n".join("| " + " | ".join(line) + " |" for line in (header, rule, *rows))
