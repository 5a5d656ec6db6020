"""Text as Markdown that shows it as it is."""

from __future__ import annotations

import pytest

from mlflow_perf.analysis import markdown


@pytest.mark.parametrize(
    ("text", "escaped"),
    [
        ("train_model", "train_model"),
        ("_x_ *y*", r"\_x\_ \*y\*"),
        ("a|b\nc\x1b[1m", r"a\|b c \[1m"),
        ("<script>&", r"\<script\>\&"),
    ],
)
def test_markdown_shows_text_as_it_is(text: str, escaped: str) -> None:
    """Special characters are escaped; an underscore inside a word is none."""
    assert markdown.escape(text) == escaped


@pytest.mark.parametrize(
    ("text", "code"),
    [("a_b", "`a_b`"), ("a`b", "`` a`b ``"), ("a|b", r"`a\|b`"), ("", "`  `"), (" x", "`  x `")],
)
def test_code_is_fenced_by_more_than_it_holds(text: str, code: str) -> None:
    """A code span ends where it should, also in a table."""
    assert markdown.format_code(text) == code
