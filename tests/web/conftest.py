"""MLflow servers with the page, and a store for them."""

from __future__ import annotations

import pytest
from tests.reports.conftest import axe, browser
from tests.web.web_store import Filled, fill

__all__ = ["axe", "browser", "store"]


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory) -> Filled:
    """A sqlite store with a workflow, a hostile run and one in another experiment."""
    folder = tmp_path_factory.mktemp("store")
    return fill(f"sqlite:///{folder / 'mlflow.db'}", folder / "artifacts", more=20)
