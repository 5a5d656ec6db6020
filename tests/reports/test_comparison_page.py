"""The page of a comparison, as data."""

from __future__ import annotations

from tests.reports import html_samples as samples

from mlflow_perf.reports.comparison_page import build_comparison_page


def test_a_comparison_counts_what_changed() -> None:
    """The tally, the texts and the signs come from the rows; a missing value has no change."""
    page = build_comparison_page(samples.COMPARISON)
    assert (page.better, page.worse) == (1, 1)
    assert page.groups[0].rows[0].texts == ["10 min", "8 min"]
    assert page.groups[0].rows[0].change == "-20.0%"
    assert page.groups[1].rows[1].texts == ["0 MB", "–"]
    assert page.groups[1].rows[1].change == "–"
