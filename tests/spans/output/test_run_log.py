"""The pictures of spans in reports; `test_mlflow_runs.py` logs to a real run."""

from __future__ import annotations

from pathlib import Path

from tests.spans.conftest import HOSTILE

from mlflow_perf import spans


def test_pictures_for_a_page_are_svg_elements(real: Path, hostile: Path) -> None:
    """The SVG elements are small, their words are text, and names are escaped."""
    pictures = spans.report_pictures(real)
    assert list(pictures) == ["States over time", "Durations"]
    for svg in pictures.values():
        assert svg.startswith("<svg")
        assert svg.rstrip().endswith("</svg>")
        assert len(svg) < 400_000
    assert "parsl.monitoring.try/running" in pictures["States over time"]
    assert "<img" not in "".join(spans.report_pictures(hostile, HOSTILE).values())
