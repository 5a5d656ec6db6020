"""Parsing local times, compared with datetime."""

from __future__ import annotations

from datetime import datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlflow_perf.spans.importers.local_time import NO_TIME, parse_times

_times = st.datetimes(datetime(1, 1, 1), datetime(9999, 12, 31))


@settings(max_examples=100)
@given(st.lists(_times, max_size=20))
def test_times_are_those_of_datetime(times: list[datetime]) -> None:
    """Every microsecond of the calendar is exact."""
    text = "".join(time.isoformat(sep=" ", timespec="microseconds") for time in times)
    epoch = datetime(1970, 1, 1)
    expected = [
        (t - epoch).days * 86_400_000_000 + (t - epoch).seconds * 1_000_000 + t.microsecond
        for t in times
    ]
    assert parse_times(text).tolist() == expected


@pytest.mark.parametrize(
    "text",
    [
        "2026-13-20 12:00:00.000000", "2026-02-30 12:00:00.000000", "2026-11-20_12:00:00.000000",
        "2026-11-20 12:00:00.00000x", "/026-11-20 12:00:00.000000", "2026-11-20 12:00:00,000000",
        "ä" * 26, "?" * 26,
    ],
)  # fmt: skip
def test_malformed_times_are_not_times(text: str) -> None:
    """A date that does not exist, a letter or another separator gives `NO_TIME`."""
    good = "1970-01-01T00:00:00.000001"
    assert parse_times(good + text + good).tolist() == [1, NO_TIME, 1]


@settings(max_examples=100)
@given(st.text(max_size=60))
def test_no_text_is_an_error(text: str) -> None:
    """Any text gives one answer for each 26 characters, or none."""
    assert len(parse_times(text)) in (0, len(text) // 26)
