"""Logging to an MLflow run what its workflow's spans tell: figures, pictures, the database.

May import errors, runs, sinks, spans. A sink does the writing; MLflow is imported when something is
logged.
"""

from __future__ import annotations

import math
import re
import sqlite3
import tempfile
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from mlflow_perf.errors import SpansError
from mlflow_perf.spans.analyses.sequences import sequences
from mlflow_perf.spans.analyses.state_curves import state_counts
from mlflow_perf.spans.analyses.timings import (
    DEFAULT_ROOT,
    Row,
    concurrency,
    durations,
    span_durations,
)
from mlflow_perf.spans.database.schema import connect
from mlflow_perf.spans.output import plots

__all__ = ["headline_figures", "log_to_run", "report_pictures"]

_FOLDER = "spans"
_BATCH = 1000
# As many as a page is wide in pixels, about.
_PAGE_POINTS = 300
_KEY_CHARS = 250
# What MLflow allows in a metric's key, less the colon, which not every store takes.
_NOT_ALLOWED = re.compile(r"[^A-Za-z0-9_\-. /]")


def headline_figures(db: str | Path, root: str = DEFAULT_ROOT) -> dict[str, float]:
    """Return the metrics that sum up a workflow's spans.

    Args:
        db: The database.
        root: The type of the root spans.

    Returns:
        `spans/count`, `spans/orderings`, `spans/max_concurrent`, `spans/duration_<mean|p50|p95|
        max>_sec`, and for each event of the most frequent ordering the mean seconds since the one
        before it, `spans/step_<nn>_<event>_mean_sec`.

    Raises:
        SpansError: There are no spans of type `root`.
    """
    orders = sequences(db, root)
    (summary,) = durations(db, root) or [{"count": 0}]
    figures = {
        "count": sum(order["count"] for order in orders),
        "orderings": len(orders),
        "max_concurrent": max((row["spans"] for row in concurrency(db, root)), default=0),
        **{f"duration_{k}ec": v for k, v in summary.items() if k.endswith("_s")},
        **(_steps(orders[0]) if orders else {}),
    }
    return {
        _key(name): float(value) for name, value in figures.items() if math.isfinite(float(value))
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
    from mlflow_perf.tracking.load import fetch_run, new_client

    run_id = fetch_run(new_client(), run_id).info.run_id
    figures = headline_figures(db, root)
    tracking = Tracking(Place(mlflow.get_tracking_uri()))
    try:
        for batch in _batches(figures):
            tracking.metrics(run_id, batch)
        with tempfile.TemporaryDirectory(prefix="mlflow-perf-spans-") as folder:
            files = [_copy(db, Path(folder)), *_pictures(db, root, Path(folder))]
            tracking.artifacts(run_id, Path(folder), _FOLDER)
    except MlflowException as error:
        raise SpansError(f"MLflow did not take it: {error.message}") from error
    return [f"{_FOLDER}/{file.name}" for file in files]


def report_pictures(db: str | Path, root: str = DEFAULT_ROOT) -> dict[str, str]:
    """Return what a page about a workflow shows of its spans: SVG elements by their headings.

    Raises:
        SpansError: There are no spans of type `root`.
        MissingDependencyError: matplotlib is not installed.
    """
    states = state_counts(db, root, points=_PAGE_POINTS)
    times = plots.plot_times(span_durations(db, root), f"{root}: duration")
    return {
        "States over time": plots.to_svg(plots.plot_states(states, root)),
        "Durations": plots.to_svg(times),
    }


def _batches(figures: dict[str, float]) -> Iterator[dict[str, float]]:
    """Yield the figures by as many as MLflow takes at once."""
    rest = iter(figures.items())
    while batch := dict(islice(rest, _BATCH)):
        yield batch


def _steps(order: Row) -> dict[str, float]:
    events = enumerate(order["events"])
    return {f"step_{n:02}_{event['event_type']}_mean_sec": event["mean_s"] for n, event in events}


def _pictures(db: str | Path, root: str, folder: Path) -> Iterator[Path]:
    times = span_durations(db, root)
    yield plots.save(plots.plot_states(state_counts(db, root), root), folder / "states.png")
    yield plots.save(plots.plot_times(times, f"{root}: duration"), folder / "durations.png")
    running = plots.plot_concurrency(concurrency(db, root), f"{root}: under way at once")
    yield plots.save(running, folder / "concurrency.png")


def _copy(db: str | Path, folder: Path) -> Path:
    """Return a copy of the database that is whole, whoever writes to it meanwhile."""
    target = folder / "spans.sqlite3"
    source = connect(db)
    copy = sqlite3.connect(target)
    try:
        source.backup(copy)
    finally:
        copy.close()
        source.close()
    return target


def _key(name: str) -> str:
    return _NOT_ALLOWED.sub("_", f"{_FOLDER}/{name}")[:_KEY_CHARS]
