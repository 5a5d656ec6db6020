"""The page's paths and their views."""

from __future__ import annotations

from collections.abc import Callable

from flask import Response

from mlflow_perf.tracking.page_probe import PAGE_PATH
from mlflow_perf.web import fleet_views, list_views, run_views
from mlflow_perf.web.answers import COMPARE_PATH, RUN_PATH

ROUTES: dict[str, Callable[[], Response]] = {
    PAGE_PATH: list_views.runs,
    f"{PAGE_PATH}/runs.csv": list_views.runs_csv,
    f"{PAGE_PATH}/scatter": list_views.scatter,
    f"{PAGE_PATH}/fleet": fleet_views.fleet,
    f"{PAGE_PATH}/trend": fleet_views.trend,
    RUN_PATH: run_views.run,
    COMPARE_PATH: run_views.compare,
}
"""Path below the static prefix → view. MLflow's basic-auth needs fixed paths."""
