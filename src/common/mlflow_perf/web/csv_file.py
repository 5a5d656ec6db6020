"""The list of runs as CSV: plain numbers in the metrics' own units, for other tools."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from datetime import datetime, timezone

from mlflow_perf.tracking.perf_run import TAG
from mlflow_perf.web.choice import Choice
from mlflow_perf.web.listing import list_columns, prepare_runs
from mlflow_perf.web.table import Found

MOST_ROWS = 10_000
_FIRST = ("run_id", "name", "component", "started", "status", "verdict", "experiment")
# A spreadsheet takes a cell that begins so for a formula, in some languages also full-width signs.
_FORMULA = tuple("=+-@\t\r\n\uff1d\uff0b\uff0d\uff20")


def write_csv(found: Found, choice: Choice, experiments: Mapping[str, str]) -> str:
    """Return the runs as CSV with a heading; the columns are those of the list.

    Args:
        found: The runs.
        choice: The user's choice.
        experiments: The experiments that the user may read: id → name.
    """
    runs = prepare_runs(found)
    fields = list_columns(found, choice, runs)
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow([*_FIRST, *(_guard(field.name) for field in fields)])
    for run in runs:
        started = ""
        if run.started is not None:
            start = datetime.fromtimestamp(run.started, tz=timezone.utc)
            started = start.isoformat("T", "seconds")
        first = (
            run.run_id,
            run.name,
            run.component or run.tags.get(f"{TAG}pipeline"),
            started,
            run.status,
            run.verdict,
            experiments.get(str(run.experiment_id), run.experiment_id),
        )
        values = [field.read(run) for field in fields]
        writer.writerow([_guard(cell) for cell in (*first, *values)])
    return text.getvalue()


def _guard(cell: float | str | None) -> float | str:
    """Return a cell that no spreadsheet runs as a formula; numbers have 15 digits."""
    if cell is None:
        return ""
    if not isinstance(cell, str):
        return float(f"{cell:.15g}")  # sums of the steps' decimals leave a rest in the 17th digit
    try:
        float(cell)
    except ValueError:
        return f"'{cell}" if cell.startswith(_FORMULA) else cell
    return cell
