"""Logs a workflow's spans to an MLflow run: metrics, pictures, the database."""

from __future__ import annotations

import math
import sqlite3
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from mlflow_perf.core.format import clean_metric_key
from mlflow_perf.core.temporary import temporary_folder
from mlflow_perf.errors import SpansError
from mlflow_perf.spans.analyses.concurrency import concurrency
from mlflow_perf.spans.analyses.sequences import sequences
from mlflow_perf.spans.analyses.state_curves import state_counts
from mlflow_perf.spans.analyses.times import durations, span_durations
from mlflow_perf.spans.database.event_arrays import DEFAULT_ROOT
from mlflow_perf.spans.database.schema import connect
from mlflow_perf.spans.output import plots

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_FOLDER = "spans"
_DATABASE = "spans.sqlite3"
_MAX_METRICS_PER_BATCH = 1000
# About the width of a page in pixels.
_PAGE_POINTS = 300


def headline_figures(db: str | Path, root: str = DEFAULT_ROOT) -> dict[str, float]:
    """Return the metrics that sum up a workflow's spans.

    Args:
        db: The database.
        root: The type of the root spans.

    Returns:
        `spans/count`, `spans/orderings`, `spans/max_concurrent`, `spans/duration_<mean|p50|p95|
        max>_sec`, and for each event of the most frequent sequence the mean seconds since the
        previous event, `spans/step_<nn>_<event>_mean_sec`.

    Raises:
        SpansError: There are no spans of type `root`.
    """
    found = sequences(db, root)
    (summary,) = durations(db, root) or [{"count": 0}]
    figures: dict[str, float] = {
        "count": sum(sequence["count"] for sequence in found),
        "orderings": len(found),
        "max_concurrent": max((row["spans"] for row in concurrency(db, root)), default=0),
        **{f"duration_{key}ec": value for key, value in summary.items() if key.endswith("_s")},
    }
    for number, event in enumerate(found[0]["events"] if found else ()):
        figures[f"step_{number:02}_{event['event_type']}_mean_sec"] = event["mean_s"]
    return {
        # Some stores refuse colons.
        clean_metric_key(f"{_FOLDER}/{name}".replace(":", "_")): float(value)
        for name, value in figures.items()
        if math.isfinite(value)
    }


def log_to_run(run_id: str, db: str | Path, root: str = DEFAULT_ROOT) -> list[str]:
    """Log the headline figures to a run as metrics, and the pictures and database as artifacts.

    Args:
        run_id: An existing run; its status is left as it is.
        db: The database.
        root: The type of the root spans.

    Returns:
        The paths of the artifacts.

    Raises:
        RunNotFoundError: There is no such run.
        SpansError: There are no spans of type `root`, or MLflow refused.
        MissingDependencyError: matplotlib is not installed.
    """
    import mlflow
    from mlflow.exceptions import MlflowException

    from mlflow_perf.publish.workflow_writer import Place, Tracking
    from mlflow_perf.tracking.load import fetch_run, make_client

    run_id = fetch_run(make_client(), run_id).info.run_id
    figures = iter(headline_figures(db, root).items())
    tracking = Tracking(Place(mlflow.get_tracking_uri()))
    try:
        while batch := dict(islice(figures, _MAX_METRICS_PER_BATCH)):
            tracking.metrics(run_id, batch)
        with temporary_folder() as folder:
            # A backup is consistent even while another process writes to the database.
            with (
                closing(connect(db)) as source,
                closing(sqlite3.connect(folder / _DATABASE)) as copy,
            ):
                source.backup(copy)
            running = plots.plot_concurrency(concurrency(db, root), f"{root}: under way at once")
            pictures = {
                "states.png": plots.plot_states(state_counts(db, root), root),
                "durations.png": _plot_durations(db, root),
                "concurrency.png": running,
            }
            for file, figure in pictures.items():
                plots.save(figure, folder / file)
            tracking.artifacts(run_id, folder, _FOLDER)
    except MlflowException as error:
        raise SpansError(f"MLflow did not take it: {error.message}") from error
    return [f"{_FOLDER}/{file}" for file in (_DATABASE, *pictures)]


def report_pictures(db: str | Path, root: str = DEFAULT_ROOT) -> dict[str, str]:
    """Return the pictures of the spans for a workflow's page: SVG elements by their headings.

    Raises:
        SpansError: There are no spans of type `root`.
        MissingDependencyError: matplotlib is not installed.
    """
    states = state_counts(db, root, points=_PAGE_POINTS)
    return {
        "States over time": plots.to_svg(plots.plot_states(states, root)),
        "Durations": plots.to_svg(_plot_durations(db, root)),
    }


def _plot_durations(db: str | Path, root: str) -> Figure:
    return plots.plot_times(span_durations(db, root), f"{root}: duration")
