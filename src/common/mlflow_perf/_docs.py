"""The generated parts of README: `python -m mlflow_perf._docs [FILE]` writes them anew.

Imports the tables that it prints.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

from mlflow_perf.metric_table import METRICS, RUN_METRICS
from mlflow_perf.settings import ENVIRONMENT

__all__ = ["metrics_table", "settings_table", "with_tables"]


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [head, tuple("---" for _ in head), *rows]
    return "\n".join("| " + " | ".join(_cell(text) for text in line) + " |" for line in lines)


def _cell(text: str) -> str:
    return text.replace("|", "\\|") or " "


def metrics_table() -> str:
    """Return the table of metrics as Markdown, from `metric_table`."""
    rows = [(f"`{m.key}`", m.unit, m.source, m.formula, m.meaning) for m in METRICS]
    rows += [(f"`{m.key}`", m.unit, "all nodes", m.formula, m.meaning) for m in RUN_METRICS]
    return _table(("key", "unit", "source", "formula", "meaning"), rows)


def settings_table() -> str:
    """Return the table of settings as Markdown, from `settings`."""
    rows = [
        (f"`{s.variable}`", "" if s.default in (None, "", ()) else f"`{s.default}`", s.meaning)
        for s in ENVIRONMENT.values()
    ]
    return _table(("variable", "default", "meaning"), rows)


def with_tables(text: str) -> str:
    """Return a Markdown text with its marked parts made anew."""
    for name, table in (("metrics", metrics_table()), ("settings", settings_table())):
        begin, end = f"<!-- {name}: begin -->\n", f"<!-- {name}: end -->"
        before, found, rest = text.partition(begin)
        if found:
            text = f"{before}{begin}{table}\n{end}{rest.partition(end)[2]}"
    return text


def _main() -> None:
    path = Path(sys.argv[1] if len(sys.argv) > 1 else "README.md")
    path.write_text(with_tables(path.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    _main()
