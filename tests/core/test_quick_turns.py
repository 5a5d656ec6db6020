"""The interval of the interpreter's lock while the job waits for us."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from mlflow_perf.core.quick_turns import quick_turns


@pytest.fixture(autouse=True)
def _interval() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(0.005)
    yield
    sys.setswitchinterval(before)


def test_turns_are_short_within_the_block_alone() -> None:
    with quick_turns():
        assert sys.getswitchinterval() < 0.001
        with quick_turns():
            assert sys.getswitchinterval() < 0.001
        assert sys.getswitchinterval() < 0.001
    assert sys.getswitchinterval() == pytest.approx(0.005)


@pytest.mark.parametrize("when", ["before", "within"])
def test_an_interval_of_the_jobs_stays(when: str) -> None:
    if when == "before":
        sys.setswitchinterval(0.02)
    with quick_turns():
        if when == "within":
            sys.setswitchinterval(0.02)
        assert sys.getswitchinterval() == pytest.approx(0.02)
    assert sys.getswitchinterval() == pytest.approx(0.02)
