"""Looks at whether the kernel blocks a thread of the job."""

from __future__ import annotations

import pytest

from mlflow_perf.readers.process.blocked import BlockedLooks


def test_a_look_finds_a_blocked_thread_of_any_process() -> None:
    """Looks that find none count too; one at no thread does not."""
    blocked: set[tuple[int, int]] = set()
    looks = BlockedLooks(lambda pid, thread: (pid, thread) in blocked)
    threads = [(1, 1), (1, 2), (5, 5)]
    looks.look(threads)
    blocked.add((5, 5))
    looks.look(threads)
    blocked.clear()
    looks.look(threads)
    looks.look([])
    assert (looks.looks, looks.blocked) == (3, 1)


@pytest.mark.parametrize(
    ("figures", "within", "is_time"),
    [
        ({}, False, True),
        ({}, True, True),
        ({"job_cpu_cores": 0.96}, False, False),
        ({"job_io_write_mb": 0.01}, False, False),
        ({"job_voluntary_switches": 900.0}, False, True),
        ({"job_voluntary_switches": 900.0}, True, False),
    ],
)
def test_a_look_is_made_where_it_can_tell_something(
    figures: dict[str, float], within: bool, is_time: bool
) -> None:
    """Short waits of a thread are over before another one of its process can look at it."""
    looks = BlockedLooks(lambda *_: False)
    report = {"job_cpu_cores": 0.5, "job_io_read_mb": 0.0, "job_io_write_mb": 1.0}
    assert looks.is_time(report, 10.0, within=within) == (not within)
    assert looks.is_time(report | figures, 12.0, within=within) == is_time
    later = {"job_voluntary_switches": 900.0 + 300.0}
    assert looks.is_time(report | later, 14.0, within=within) == (
        not within or "job_voluntary_switches" in figures
    )


def test_of_many_threads_each_look_sees_others() -> None:
    """A part of them in which none is blocked says nothing of the rest."""
    seen: list[int] = []

    def is_blocked(pid: int, thread: int) -> bool:
        seen.append(thread)
        return thread == 39

    looks = BlockedLooks(is_blocked)
    for _ in range(3):
        looks.look([(1, thread) for thread in range(40)])
    assert seen[:40] == [*range(40)]
    assert (looks.looks, looks.blocked) == (1, 1)
