"""The page `/perf` beside the MLflow UI: `mlflow server --app-name mlflow-perf`.

MLflow imports this module to check whether its names are factories; everything else is loaded when
the server calls one of them.
"""

from __future__ import annotations

from typing import Any

__all__ = ["create_app", "create_app_with_basic_auth"]


def create_app() -> Any:
    """Return MLflow's app with the page `/perf`; with its basic-auth if that is set up."""
    from mlflow_perf.web import app

    return app.create_app()


def create_app_with_basic_auth() -> Any:
    """Return MLflow's basic-auth app with the page `/perf`."""
    from mlflow_perf.web import app

    return app.create_app(basic_auth=True)
