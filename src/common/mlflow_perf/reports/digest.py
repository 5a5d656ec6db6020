"""The weekly digest of a fleet, as Markdown for a chat and as a page for a mail."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mlflow_perf.analysis import markdown
from mlflow_perf.analysis.fleet import Digest, FleetRow, add_rows
from mlflow_perf.core.format import MISSING, format_count, format_for_people, number
from mlflow_perf.reports.html import load_templates

ROWS_MAX = 15
_NAME_MAX = 60

_SHORT_HOURS = 0.1
_LONG = 1e15
_HEADS = {
    "cpu_hours": "CPU {unit} held",
    "unused_cpu_hours": "used by nobody",
    "gpu_hours": "GPU {unit} held",
    "unused_gpu_hours": "unused",
    "cost": "cost",
    "unused_cost": "unused",
}


@dataclass(frozen=True)
class Column:
    """One figure of the groups' table.

    Attributes:
        key: The figure.
        head: Its heading, with the unit.
        values: Its value in each row, in that unit; None where a row has none.
    """

    key: str
    head: str
    values: Sequence[float | None]


def build_columns(rows: Sequence[FleetRow]) -> list[Column]:
    """Return the figures that some row has; hours too short to show become seconds."""
    columns = []
    for key, head in _HEADS.items():
        values = [row.figures[key] for row in rows]
        held = [row.figures[key.removeprefix("unused_")] or 0.0 for row in rows]
        if all(value is None for value in values):
            continue
        is_short = key.endswith("_hours") and max(held) < _SHORT_HOURS
        factor = 3600.0 if is_short else 1.0
        scaled = [None if value is None else factor * value for value in values]
        columns.append(Column(key, head.format(unit="s" if is_short else "h"), scaled))
    return columns


def build_table(by: str, rows: Sequence[FleetRow]) -> tuple[list[str], list[list[str]]]:
    """Return the heading and the cells of the rows, with those figures that some row has."""
    columns = build_columns(rows)
    header = [by, "runs", "failed", *(column.head for column in columns)]
    cells = []
    for i, row in enumerate(rows):
        values = [column.values[i] for column in columns]
        texts = [
            MISSING if value is None else f"{value:,.2f}" if abs(value) < _LONG else number(value)
            for value in values
        ]
        group = row.group if len(row.group) <= _NAME_MAX else f"{row.group[:_NAME_MAX]}…"
        cells.append([group, f"{row.runs:,}", f"{row.failed:,}", *texts])
    return header, cells


def say_totals(rows: Sequence[FleetRow]) -> str:
    """Return the sums of all rows as a sentence."""
    whole = add_rows(rows)
    text = f"{format_count(whole.runs, 'run')}, {whole.failed:,} failed"
    for name, unit, idle in (
        ("cpu_hours", "CPU h", "used by nobody"),
        ("gpu_hours", "GPU h", "unused"),
        ("cost", "", "unused"),
    ):
        held, unused = whole.figures[name], whole.figures[f"unused_{name}"]
        if held is not None:
            (shown,) = format_for_people([held], unit)
            part = ""
            if unused is not None:
                part = f", {format_for_people([unused], unit, cpu_hours=[held])[0]} of it {idle}"
            text += f"; {shown if unit else f'cost {shown}'}{part}"
    return f"{text}."


def to_markdown(digest: Digest) -> str:
    """Return the digest as Markdown."""
    header, cells = build_table(digest.by, digest.rows[:ROWS_MAX])
    parts = [f"## {digest.title}", markdown.escape(say_totals(digest.rows))]
    for title, lines in (("What got worse", digest.worse), ("What would help", digest.advice)):
        if lines:
            items = "\n".join(f"- {markdown.escape(line)}" for line in lines)
            parts.append(f"### {title}\n\n{items}")
    rows = [[markdown.escape(cell) for cell in row] for row in cells]
    if rows:
        parts.append(markdown.format_table(header, rows, right=len(header) - 1))
    if len(digest.rows) > ROWS_MAX:
        parts.append(f"… and {len(digest.rows) - ROWS_MAX} more.")
    return "\n\n".join(parts) + "\n"


def to_html(digest: Digest) -> str:
    """Return the digest as a page of its own."""
    header, cells = build_table(digest.by, digest.rows[:ROWS_MAX])
    template = load_templates().get_template("digest.html")
    return template.render(
        digest=digest,
        totals=say_totals(digest.rows),
        header=header,
        cells=cells,
        more=max(0, len(digest.rows) - ROWS_MAX),
    )
