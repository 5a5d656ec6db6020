"""Units, directions and figures for people."""

from __future__ import annotations

import pytest

from mlflow_perf.analysis import markdown, metric_text


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (None, "s", "–"),
        (float("nan"), "s", "–"),
        (0.0, "MB", "0 MB"),
        (1537.2, "MB", "1,537 MB"),
        (39.96, "%", "40%"),
        (12.34, "s", "12.3 s"),
        (0.4217, "s", "0.422 s"),
        (3.0, "", "3"),
        (-5.25, "cores", "-5.25 cores"),
        (0.00001, "h", "1.00e-05 h"),
        (2.5e12, "", "2.50e+12"),
    ],
)
def test_a_value_has_three_figures_and_its_unit(value: float | None, unit: str, text: str) -> None:
    """No more figures than a person compares, none lost of a whole number."""
    assert metric_text.format_value(value, unit) == text


@pytest.mark.parametrize(
    ("key", "unit", "better"),
    [
        ("duration_sec", "s", "lower"),
        ("cpu_avg_utilization_pct", "%", "higher"),
        ("ops/load/p95_ms", "ms", "lower"),
        ("ops/load/count", "", ""),
        ("ops/load/total_ms", "ms", ""),
        ("transfers/nixl/throughput_mb_s", "MB/s", "higher"),
        ("transfers/nixl/num_failed_transfers", "", "lower"),
        ("gpu3_avg_utilization_pct", "%", "higher"),
        ("accuracy", "", ""),
    ],
)
def test_a_key_says_its_unit_and_direction(key: str, unit: str, better: str) -> None:
    """Keys of the table answer from it, the others by their ending."""
    assert (metric_text.find_unit(key), metric_text.find_direction(key)) == (unit, better)


def test_changes_have_a_sign() -> None:
    """A change is read at a glance; none is a dash."""
    changes = [12.34, -3.0, None, 4321.0, -1e-9]
    assert [metric_text.format_change(c) for c in changes] == [
        "+12.3%",
        "-3.0%",
        "–",
        "+4,321%",
        "+0.0%",
    ]


@pytest.mark.parametrize(
    ("text", "escaped"),
    [
        ("train_model", "train_model"),
        ("_x_ *y*", r"\_x\_ \*y\*"),
        ("a|b\nc\x1b[1m", r"a\|b c \[1m"),
        ("<script>&", r"\<script\>\&"),
    ],
)
def test_markdown_shows_text_as_it_is(text: str, escaped: str) -> None:
    """What has a meaning is escaped; an underscore inside a word has none."""
    assert markdown.escape(text) == escaped


@pytest.mark.parametrize(
    ("text", "code"),
    [("a_b", "`a_b`"), ("a`b", "`` a`b ``"), ("a|b", r"`a\|b`"), ("", "`  `"), (" x", "`  x `")],
)
def test_code_is_fenced_by_more_than_it_holds(text: str, code: str) -> None:
    """A code span ends where it should, also in a table."""
    assert markdown.format_code(text) == code
