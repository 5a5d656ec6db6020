"""Ready-made pictures in a report."""

from __future__ import annotations

import base64
import re

from tests.reports import html_samples as samples

from mlflow_perf.reports.html import render

SVG = '<svg viewBox="0 0 10 10"><text>a&amp;b</text><script>alert(1)</script></svg>'


def _images(page: str) -> list[str]:
    found = re.findall(r'<img src="data:image/svg\+xml;base64,([^"]+)"', page)
    return [base64.b64decode(data).decode() for data in found]


def test_pictures_stand_as_images() -> None:
    """A picture is the data of an image, never markup of the page."""
    page = render(samples.document(1, rows=5), pictures={samples.HOSTILE: SVG})
    assert _images(page) == [SVG.replace("<svg", '<svg xmlns="http://www.w3.org/2000/svg"')]
    assert "<script>alert" not in page
    assert samples.HOSTILE not in page
    assert "<img src=" not in render(samples.document(1, rows=5))


def test_a_picture_that_is_too_large_is_named() -> None:
    """The page stays small even with a huge picture, and says what was left out."""
    svg = f"<svg>{'x' * 400_000}</svg>"
    page = render(samples.document(1, rows=5), pictures={"Huge": svg, "Small": SVG})
    assert len(_images(page)) == 1
    assert "The picture “Huge” is left out" in page
