"""The weekly digest of a fleet, as Markdown for a chat and as a page for a mail."""

from __future__ import annotations

from collections.abc import Sequence

from mlflow_perf.analysis import markdown
from mlflow_perf.analysis.fleet import Digest, FleetRow, add_rows
from mlflow_perf.core.format import MISSING, format_count
from mlflow_perf.reports.html import load_templates

ROWS_MAX = 15
_NAME_MAX = 60

FIGURE_HEADS = {
    "cpu_hours": "CPU h held",
    "unused_cpu_hours": "unused",
    "gpu_hours": "GPU h held",
    "unused_gpu_hours": "unused",
    "cost": "cost",
    "unused_cost": "unused",
}
"""Figure of a row → its heading in a table of the fleet."""


def list_known_figures(rows: Sequence[FleetRow]) -> list[str]:
    """Return the figures that some row has, in the order of the table."""
    return [key for key in FIGURE_HEADS if any(row.figures[key] is not None for row in rows)]


def build_table(by: str, rows: Sequence[FleetRow]) -> tuple[list[str], list[list[str]]]:
    """Return the heading and the cells of the rows, with those figures that some row has."""
    keys = list_known_figures(rows)
    header = [by, "runs", "failed", *(FIGURE_HEADS[key] for key in keys)]
    cells = []
    for row in rows:
        values = [row.figures[key] for key in keys]
        texts = [MISSING if value is None else f"{value:,.2f}" for value in values]
        group = row.group if len(row.group) <= _NAME_MAX else f"{row.group[:_NAME_MAX]}…"
        cells.append([group, f"{row.runs:,}", f"{row.failed:,}", *texts])
    return header, cells


def say_totals(rows: Sequence[FleetRow]) -> str:
    """Return the sums of all rows as a sentence."""
    whole = add_rows(rows)
    text = f"{format_count(whole.runs, 'run')}, {whole.failed:,} failed"
    for name, unit in (("cpu_hours", "CPU hours"), ("gpu_hours", "GPU hours"), ("cost", "cost")):
        held, unused = whole.figures[name], whole.figures[f"unused_{name}"]
        if held is not None:
            part = f", {unused:,.1f} of them unused" if unused is not None else ""
            text += f"; {held:,.1f} {unit}{part}"
    return f"{text}."


def to_markdown(digest: Digest) -> str:
    """Return the digest as Markdown."""
    header, cells = build_table(digest.by, digest.rows[:ROWS_MAX])
    parts = ["## The last seven days", markdown.escape(say_totals(digest.rows))]
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
