"""The list of runs as CSV."""

from __future__ import annotations

import pytest

from mlflow_perf.web.csv_file import _guard


@pytest.mark.parametrize("begin", [*"=+-@\t\r\n", "\uff1d", "\uff0b", "\uff0d", "\uff20"])
def test_no_name_is_a_formula(begin: str) -> None:
    """A spreadsheet gets a quote before text that it would take for a formula."""
    assert _guard(f"{begin}cmd") == f"'{begin}cmd"


@pytest.mark.parametrize("cell", ["-1.5", "fit", "", 2.0])
def test_figures_and_plain_names_stay(cell: float | str) -> None:
    """A negative number is no formula."""
    assert _guard(cell) == cell


def test_a_sum_of_decimals_has_no_rest() -> None:
    """The 17th digit is that of the binary number, not of the figure."""
    assert _guard(0.1 + 0.2) == 0.3
