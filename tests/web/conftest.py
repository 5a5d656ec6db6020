"""The browser and the samples of the reports' tests, and MLflow servers with the page."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "reports"))
sys.path.insert(0, str(Path(__file__).parent))

from html_browser import Browser, axe_source, open_browser
from web_store import Filled, fill


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """A headless Chromium that notes every request and every message on its console."""
    with open_browser(tmp_path_factory.mktemp("chromium")) as one:
        yield one


@pytest.fixture(scope="session")
def axe(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The source of axe-core; skips where it can be had from nowhere."""
    return axe_source(tmp_path_factory.mktemp("axe"))


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory) -> Filled:
    """A sqlite store with a workflow, a hostile run and one in another experiment."""
    folder = tmp_path_factory.mktemp("store")
    return fill(f"sqlite:///{folder / 'mlflow.db'}", folder / "artifacts", more=20)
