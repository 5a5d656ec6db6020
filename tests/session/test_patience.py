"""How long runs' ends and the exit wait: one budget while no report is sent."""

from __future__ import annotations

from typing import Any

import pytest

from mlflow_perf.session.patience import Patience


class _Clock:
    """A clock that only waits move; a server that answers after `answer_sec`."""

    def __init__(self, answer_sec: float | None = None) -> None:
        self.now, self.answer_sec = 100.0, answer_sec
        self.done, self.is_sent = self, False

    def __call__(self) -> float:
        return self.now

    def wait(self, timeout: float) -> bool:
        """Wait as an `Event` does."""
        self.is_sent = self.answer_sec is not None and self.answer_sec <= timeout
        self.now += timeout if self.answer_sec is None or not self.is_sent else self.answer_sec
        return self.is_sent


def _wait(patience: Patience, clock: Any, *, run_sec: float) -> float:
    """Return how long the end of a run waited."""
    began: float = clock.now
    patience.await_report(clock, run_sec=run_sec)
    return float(clock.now) - began


@pytest.mark.parametrize(("limit_sec", "at_end_sec"), [(2.0, 2.0), (5.0, 5.0), (30.0, 10.2)])
def test_a_run_s_end_and_the_exit_share_one_limit(limit_sec: float, at_end_sec: float) -> None:
    """A server that hangs from the end of the only run costs `exit_timeout` in all."""
    clock = _Clock()
    patience = Patience(limit_sec, clock)
    waited_sec = _wait(patience, clock, run_sec=2.0)
    assert waited_sec == pytest.approx(at_end_sec)
    assert waited_sec + patience.left_sec() == pytest.approx(limit_sec)


def test_many_runs_wait_no_longer_than_one() -> None:
    """Ten runs without an answer wait as long as one, and a tenth of the time that passes."""
    clock = _Clock()
    patience = Patience(30.0, clock)
    began, waited_sec = clock.now, 0.0
    for _ in range(10):
        clock.now += 5.0
        waited_sec += _wait(patience, clock, run_sec=5.0)
    waited_sec += patience.left_sec()
    assert 30.0 <= waited_sec <= 30.0 + 0.1 * (clock.now - began)


def test_a_server_that_answers_is_waited_for_in_full_again() -> None:
    """A report that is sent, or time that passes, makes up for what was waited in vain."""
    clock = _Clock()
    patience = Patience(5.0, clock)
    _wait(patience, clock, run_sec=1.0)
    assert patience.left_sec() == 0.0
    clock.now += 20.0
    assert patience.left_sec() == pytest.approx(2.0)
    clock.answer_sec = 0.5
    assert _wait(patience, clock, run_sec=20.0) == 0.5
    assert patience.left_sec() == 5.0


def test_blocks_after_a_vain_wait_wait_shortly() -> None:
    """The first takes its whole time, the next ones three seconds until a report is sent."""
    clock = _Clock()
    patience = Patience(0.0, clock)
    allowed = []
    for _ in range(3):
        began, most_sec = clock.now, patience.for_block(30.0)
        clock.now += most_sec
        patience.note(is_sent=False, began=began)
        allowed.append(most_sec)
    assert allowed == [30.0, 3.0, 3.0]
    clock.now += 100.0
    assert patience.for_block(30.0) == pytest.approx(10.0)
    assert patience.for_block(2.0) == 2.0
    patience.note(is_sent=True, began=clock.now)
    assert patience.for_block(30.0) == 30.0


def test_many_short_runs_do_not_wait_for_a_slow_server_one_after_the_other() -> None:
    """Their waits that succeed take ten seconds in all and a tenth of the runs."""
    clock = _Clock(answer_sec=1.0)
    patience = Patience(30.0, clock)
    waited_sec = sum(_wait(patience, clock, run_sec=0.5) for _ in range(100))
    assert waited_sec <= 10.0 + 0.1 * 0.5 * 100
