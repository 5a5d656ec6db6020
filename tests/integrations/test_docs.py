"""The examples of the pages on operations and transfers run as they stand."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parents[2] / "docs"
EXAMPLES = [
    pytest.param(code, id=f"{page}: {name}")
    for page in ("operations.md", "transfers.md")
    for name, code in re.findall(
        r"<!-- example: (\w+) -->\n```python\n(.*?)```",
        (DOCS / page).read_text(encoding="utf-8"),
        re.DOTALL,
    )
]


@pytest.mark.parametrize("code", EXAMPLES)
def test_example_runs(code: str) -> None:
    """A marked example runs by itself, and its assertions hold."""
    exec(compile(code, "example", "exec"), {"__name__": "example"})


def test_there_are_examples() -> None:
    """Each page has an example that is run."""
    assert len(EXAMPLES) >= 3
