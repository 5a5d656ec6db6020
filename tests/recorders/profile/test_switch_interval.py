"""The switch interval is short while one thread works, and the job's again afterwards."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from mlflow_perf.recorders.profile.switch_interval import SwitchInterval


@pytest.fixture(autouse=True)
def before() -> Iterator[float]:
    """A job that has set an interval of its own."""
    usual = sys.getswitchinterval()
    sys.setswitchinterval(0.004)
    yield sys.getswitchinterval()
    sys.setswitchinterval(usual)


def _milliseconds() -> float:
    return round(1000 * sys.getswitchinterval(), 3)


def test_it_is_short_while_one_thread_works_and_calm_after_a_wait() -> None:
    """A sample would be interrupted after 0.1 ms."""
    interval = SwitchInterval()
    interval.choose(1)
    assert (_milliseconds(), interval.is_set) == (0.103, True)
    sys.setswitchinterval(interval.CALM_SEC)
    assert _milliseconds() == 5.003
    interval.choose(0)
    assert _milliseconds() == 0.103
    interval.restore()
    assert (_milliseconds(), interval.is_set) == (4.0, False)


def test_it_is_longer_after_a_wait_for_a_call_into_c() -> None:
    """The sampler would wake up 10,000 times a second."""
    interval = SwitchInterval()
    found = []
    for wakes in (2, 5000, 500, 10, 2):
        interval.choose(1, wakes)
        found.append(_milliseconds())
    assert found == [0.103, 1.003, 5.003, 5.003, 0.103]
    interval.restore()
    assert _milliseconds() == 4.0


def test_with_several_threads_it_is_the_jobs() -> None:
    """They wait for the lock themselves, and each switch costs them."""
    interval = SwitchInterval()
    interval.choose(1)
    interval.choose(2)
    assert (_milliseconds(), interval.is_set) == (4.0, False)


def test_what_the_job_sets_meanwhile_stays() -> None:
    """Also what it sets between the sampler's look at the interval and the end of its wait."""
    interval = SwitchInterval()
    interval.choose(1)
    asked = 0.007  # what the sampler found at the end of its wait, and replaced
    sys.setswitchinterval(interval.CALM_SEC)
    interval.note(asked)
    assert _milliseconds() == 7.0
    interval.choose(1)
    interval.restore()
    assert _milliseconds() == 7.0


def test_what_the_job_sets_before_it_computes_stays() -> None:
    """The sampler has not set one yet."""
    interval = SwitchInterval()
    sys.setswitchinterval(0.02)
    interval.choose(1)
    interval.choose(2)
    interval.choose(1)
    interval.restore()
    assert _milliseconds() == 20.0


def test_an_interval_that_another_sampler_left_is_not_taken_for_the_jobs() -> None:
    """A child that was forked in the midst of a sample begins with it."""
    sys.setswitchinterval(5.003e-3)
    interval = SwitchInterval()
    interval.restore()
    assert _milliseconds() == 5.0
