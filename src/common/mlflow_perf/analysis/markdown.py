"""Markdown that shows text as it is. Imports nothing of ours."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

__all__ = ["escape", "table"]

_SPECIAL = re.compile(r"([\\`*_\[\]<>|#~&])")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")


def escape(text: str) -> str:
    """Return a text on one line in which nothing has a meaning in Markdown or in HTML."""
    return _SPECIAL.sub(r"\\\1", _CONTROL.sub(" ", text))


def table(header: Sequence[str], rows: Iterable[Sequence[str]], *, right: int = 0) -> str:
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
