"""The memory of several processes, with shared pages counted once."""

from __future__ import annotations

from mlflow_perf.readers.process.process import Process
from mlflow_perf.readers.process.tree_memory import TreeMemory

MB = 1 << 20


class Shares:
    """A table of given proportional shares that counts the questions."""

    def __init__(self, shares: dict[int, int | None]) -> None:
        self.shares, self.asked = shares, 0

    def proportional_bytes(self, pid: int) -> int | None:
        self.asked += 1
        return self.shares[pid]


def test_shared_pages_count_once() -> None:
    """A parent of 800 MB and four forks of it that share all of that are 800 MB, not 4,000."""
    members = [Process(pid, 1, 1, rss_bytes=800 * MB) for pid in range(10, 15)]
    table = Shares(dict.fromkeys(range(10, 15), 160 * MB))
    memory = TreeMemory(table, clock=lambda: 0.0, cpu_clock=lambda: 0.0)
    assert memory.total(members) == 800 * MB
    assert memory.total(members[:1]) == 800 * MB


def test_shares_are_asked_again_only_when_something_changed() -> None:
    """A process's ratio is kept until its memory or the number of processes changes."""
    members = [Process(pid, 1, 1, rss_bytes=100 * MB) for pid in (10, 11)]
    table = Shares({10: 100 * MB, 11: 50 * MB})
    memory = TreeMemory(table, clock=lambda: 0.0, cpu_clock=lambda: 0.0)
    assert [memory.total(members) for _ in range(5)] == [150 * MB] * 5
    assert table.asked == 2
    members[1].rss_bytes = 200 * MB
    table.shares[11] = 200 * MB
    assert memory.total(members) == 300 * MB
    assert table.asked == 3


def test_asking_for_shares_keeps_to_its_budget() -> None:
    """With 500 processes of 1 ms each, a read asks a few; the others are taken for their like."""
    members = [Process(pid, 1, 1, rss_bytes=10 * MB) for pid in range(500)]
    table = Shares(dict.fromkeys(range(500), 5 * MB))
    ticks = iter(range(10**6))
    memory = TreeMemory(table, clock=lambda: 0.0, cpu_clock=lambda: next(ticks) / 1000)
    assert memory.total(members) == 2500 * MB
    assert table.asked <= 6
    memory.total(members)
    assert table.asked <= 6


def test_without_shares_the_sum_is_of_resident_memory() -> None:
    """Without proportional shares, the sum is that of the resident memory."""
    members = [Process(pid, 1, 1, rss_bytes=10 * MB) for pid in range(3)]
    memory = TreeMemory(Shares(dict.fromkeys(range(3))))
    assert memory.total(members) == 30 * MB
