"""Looks at whether the kernel blocks a thread of the job."""

from __future__ import annotations

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
