"""MLflow servers with the page, and a store for them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from tests.reports.conftest import axe, browser
from tests.web.web_store import Filled, fill

__all__ = ["axe", "browser", "client", "store"]


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory) -> Filled:
    """A sqlite store with a workflow, a hostile run and one in another experiment."""
    folder = tmp_path_factory.mktemp("store")
    return fill(f"sqlite:///{folder / 'mlflow.db'}", folder / "artifacts", more=20)


@pytest.fixture(scope="module")
def client(store: Filled) -> Iterator[Any]:
    """A client of MLflow's app with the page, as a server on `store` has it."""
    from mlflow.server import (  # type: ignore[attr-defined]  # exported by MLflow 3.1, too
        BACKEND_STORE_URI_ENV_VAR,
        handlers,
    )
    from mlflow.server import app as flask_app

    from mlflow_perf.web.app import register

    patch = pytest.MonkeyPatch()
    patch.setenv(BACKEND_STORE_URI_ENV_VAR, store.uri)
    patch.setattr(handlers, "_tracking_store", None)
    register(flask_app)
    import mlflow

    yield flask_app.test_client()
    patch.undo()
    mlflow.set_tracking_uri(None)  # type: ignore[arg-type]  # it takes None
