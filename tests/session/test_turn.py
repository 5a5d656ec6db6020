"""When a block takes the blocks of other threads in."""

from __future__ import annotations

import threading

import pytest

from mlflow_perf.session.turn import Turn


@pytest.mark.parametrize("has_ended", [False, True])
def test_another_thread_waits_for_the_beginning_or_for_room(*, has_ended: bool) -> None:
    """A block that has ended takes none in any more, once the next one has room."""
    turn, passed = Turn(60), threading.Event()
    turn.has_ended = has_ended

    def join() -> None:
        turn.wait()
        passed.set()

    thread = threading.Thread(target=join)
    thread.start()
    assert not passed.wait(0.1)
    turn.has_begun.set()
    if has_ended:
        turn.has_room.set()
    assert passed.wait(60)
    thread.join()


def test_its_age_counts_from_its_beginning(monkeypatch: pytest.MonkeyPatch) -> None:
    """So a group knows how long its step waited for a block of ours to begin."""
    monkeypatch.setattr("mlflow_perf.session.turn.read_monotonic", iter((5.0, 7.5)).__next__)
    assert Turn(1.0).age_sec == 2.5


def test_the_thread_that_begins_does_not_wait_for_itself() -> None:
    """A handler of a signal may ask for a block there; and no other waits for ever."""
    turn = Turn(0.01)
    turn.wait()
    thread = threading.Thread(target=turn.wait)
    thread.start()
    thread.join(60)
    assert not thread.is_alive()
    assert not turn.has_begun.is_set()
