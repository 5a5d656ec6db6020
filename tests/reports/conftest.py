"""One browser for all tests of the pages."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.reports.html_browser import Browser, axe_source, open_browser


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """A headless Chromium that notes every request and every message on its console."""
    with open_browser(tmp_path_factory.mktemp("chromium")) as one:
        yield one


@pytest.fixture(scope="session")
def axe(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The source of axe-core; skips if it is not available."""
    return axe_source(tmp_path_factory.mktemp("axe"))
