"""Makes the samples and the browser of this folder importable and gives the tests one browser."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from html_browser import Browser, axe_source, open_browser


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """A headless Chromium that notes every request and every message on its console."""
    with open_browser(tmp_path_factory.mktemp("chromium")) as one:
        yield one


@pytest.fixture(scope="session")
def axe(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The source of axe-core; skips where it can be had from nowhere."""
    return axe_source(tmp_path_factory.mktemp("axe"))
