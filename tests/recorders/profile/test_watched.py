"""The time between two samples goes to the stack of then and to that of now."""

from __future__ import annotations

import random
import threading
import weakref

import pytest

from mlflow_perf.recorders.profile.watched import Watched


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Watched:
    """A thread of a known stack that waits for a CPU for 3 s between any two samples."""
    delays = iter(range(0, 10**6, 3))
    monkeypatch.setattr(Watched, "_read", lambda *_: b"9 %d 1" % (next(delays) * 10**9))
    thread = Watched(None, None, "main thread")
    thread.key = (1,)
    for computes in (True, False):  # its delay is counted from the first time that it is asked for
        thread.split(0.0, 0.0, computes=computes, moved=False)
    return thread


def test_a_late_sample_of_a_thread_that_fell_asleep_is_mostly_computing(watched: Watched) -> None:
    """Until it slept it had a CPU for 4 s and waited for one for 3 s: 3 s of 10 s were sleep."""
    watched.split(1.0, 1.0, computes=True, moved=False)
    assert watched.split(10.0, 4.0, computes=False, moved=True) == ((7.0, 4.0), (3.0, 0.0))


def test_of_the_wait_after_a_sleep_half_is_sleep(watched: Watched) -> None:
    """It was woken and waited for a CPU, or it computed and lost it: nobody knows."""
    assert watched.split(10.0, 4.0, computes=True, moved=True) == ((4.5, 0.0), (5.5, 4.0))


def test_work_between_two_sleeps_is_where_the_thread_computes_next(watched: Watched) -> None:
    """Work that no sample met has its wall and CPU time nevertheless."""
    assert watched.split(10.0, 0.25, computes=False, moved=False) == ((0.0, 0.0), (9.75, 0.0))
    _, here = watched.split(10.0, 10.0, computes=True, moved=True)
    assert here == (10.25, 10.25)


def test_a_thread_that_computed_all_the_time_moved_half_way(watched: Watched) -> None:
    """When it went from one function to the other is unknown: on average in the middle."""
    watched.split(1.0, 1.0, computes=True, moved=False)
    assert watched.split(10.0, 6.0, computes=True, moved=True) == ((5.0, 3.0), (5.0, 3.0))


def test_what_is_known_to_be_the_new_stacks_is_not_halved(watched: Watched) -> None:
    """A call into C keeps the sampler waiting: it came before the wait."""
    watched.split(1.0, 1.0, computes=True, moved=False)
    parts = watched.split(10.0, 5.0, computes=True, moved=True, here_sec=6.0)
    assert parts == ((2.0, 1.0), (8.0, 4.0))


def test_nothing_is_put_down_to_a_stack_from_before_the_block(watched: Watched) -> None:
    """A block that begins between two samples has only the stacks found within it."""
    watched.split(1.0, 1.0, computes=True, moved=False)
    watched.forget()
    assert watched.split(10.0, 6.0, computes=True, moved=True) == ((0.0, 0.0), (10.0, 6.0))


def test_a_long_job_has_each_gap_whole(watched: Watched) -> None:
    """There, chance meets each function as long as it takes; CPU time waits for computing."""
    nothing = (0.0, 0.0)
    assert watched.split(9.0, 0.2, computes=False, moved=True, whole=True) == (nothing, (9.0, 0.0))
    assert watched.split(9.0, 1.0, computes=True, moved=True, whole=True) == (nothing, (9.0, 1.2))


def test_no_time_is_lost_or_made(watched: Watched) -> None:
    """Whatever a thread does, its parts add up to its wall and CPU time."""
    dice = random.Random(1)
    wall = cpu = 0.0
    for _ in range(500):
        passed = dice.uniform(0.0, 9.0)
        used = passed * dice.choice((0.0, 0.1, 0.95, 1.0))
        computes, moved = dice.random() < 0.5, dice.random() < 0.5
        for part in watched.split(passed, used, computes=computes, moved=moved):
            assert part.wall >= 0.0
            watched.wall += part.wall
            watched.cpu += part.cpu
        wall, cpu = wall + passed, cpu + used
    watched.pay_late()
    assert watched.wall == pytest.approx(wall)
    assert watched.cpu == pytest.approx(cpu)


def test_a_thread_that_has_ended_waits_for_nothing() -> None:
    """Without the kernel's figures, as on another platform, only its CPU time counts."""
    ended = Watched(None, None, "main thread")
    ended.key = (1,)
    ended.split(1.0, 1.0, computes=True, moved=False)
    assert ended.split(10.0, 4.0, computes=False, moved=True) == ((4.0, 4.0), (6.0, 0.0))


def test_a_thread_that_has_ended_goes_with_all_that_it_holds() -> None:
    """Leak tests of other projects ask for that; another thread may get its number."""
    thread = threading.Thread()
    known = Watched(thread, None, "workers")
    assert known.is_of(thread)
    assert not known.is_of(None)
    assert not known.is_of(threading.Thread())
    gone = weakref.ref(thread)
    del thread
    assert gone() is None
    assert not known.is_of(threading.Thread())
    assert Watched(None, None, "native").is_of(None)
