"""The memory of several processes, with shared pages counted once."""

from __future__ import annotations

import mmap
import os
import time
from collections.abc import Collection
from dataclasses import dataclass, field

import pytest
from tests.alone import alone
from tests.readers.trees import read

from mlflow_perf.readers.process.process import Process, ProcessTable
from mlflow_perf.readers.process.shares import Shares
from mlflow_perf.readers.process.tree import ProcessTreeReader
from mlflow_perf.readers.process.tree_memory import TreeMemory

MB = 1 << 20
PARENT = 10


@dataclass
class Machine:
    """A table of given processes, of which each question for shares takes some CPU time."""

    cost_sec: float = 0.0
    shares: dict[int, Shares] = field(default_factory=dict)
    mapped: dict[int, int] = field(default_factory=dict)
    faults: dict[int, int] = field(default_factory=dict)
    spawned: set[int] = field(default_factory=set)
    ended: set[int] = field(default_factory=set)
    ending: set[int] = field(default_factory=set)  # while shares are asked
    executed_mb: dict[int, float] = field(default_factory=dict)  # of those that did so a moment ago
    asked: list[int] = field(default_factory=list)
    touched: dict[int, int] = field(default_factory=dict)  # mapped while shares are asked
    left_mb: dict[int, int] = field(default_factory=dict)  # of those that free while they are asked
    now: float = 0.0

    def memory(self) -> TreeMemory:
        return TreeMemory(
            self, clock=lambda: self.now, cpu_clock=lambda: len(self.asked) * self.cost_sec
        )

    def share(self, pids: Collection[int], shared_mb: int, own_mb: int = 0) -> None:
        """Let processes share anonymous memory, and have as much of their own each."""
        portion = shared_mb * MB // len(pids)
        for pid in pids:
            self.shares[pid] = Shares(portion + own_mb * MB, own_mb * MB, (shared_mb + own_mb) * MB)

    def read_resident(self, pid: int) -> tuple[int, int]:
        if pid in self.ended:
            return 0, 0
        return int(self.executed_mb.get(pid, 10**6) * MB), self.mapped.get(pid, 0)

    def is_fork(self, pid: int, parent: int) -> bool:
        return parent == PARENT and pid not in self.spawned

    def fault_bytes(self, process: Process) -> int:
        return self.faults.get(process.pid, 0)

    def read_shares(self, pid: int) -> Shares | None:
        self.asked.append(pid)
        self.mapped.update(self.touched)
        self.executed_mb.update(self.left_mb)
        self.ended |= self.ending
        return self.shares.get(pid)


def make_tree(parent_mb: int, *children_mb: int) -> list[Process]:
    """Return a parent and its children, of given resident memory."""
    sizes = enumerate((parent_mb, *children_mb), PARENT)
    return [Process(pid, 1, PARENT if pid > PARENT else 1, rss_bytes=mb * MB) for pid, mb in sizes]


def test_shared_pages_count_once() -> None:
    """A parent of 800 MB and four forks of it that share all of that are 800 MB, not 4,000."""
    machine, members = Machine(), make_tree(800, *[800] * 4)
    machine.share(range(10, 15), 800)
    memory = machine.memory()
    assert memory.total(members) == 800 * MB
    assert memory.total(members[:1]) == 800 * MB


def test_shares_are_asked_again_only_when_sharing_changed() -> None:
    """What a process gets for itself needs no question; files that another one maps do."""
    machine, members = Machine(), make_tree(100, 100)
    machine.share((10, 11), 50, own_mb=50)
    memory = machine.memory()
    assert [memory.total(members) for _ in range(5)] == [150 * MB] * 5
    members[1].rss_bytes = 200 * MB
    assert memory.total(members) == 250 * MB
    assert len(machine.asked) == 2
    machine.mapped = {10: 100 * MB, 11: 100 * MB}
    for process in members:
        process.rss_bytes += 100 * MB
    memory.total(members)
    assert len(machine.asked) == 4


def test_forks_count_with_what_they_added_until_they_are_asked() -> None:
    """Beyond the budget, eight forks of 1 GB with 10 MB of their own each are 1,080 MB."""
    machine, members = Machine(cost_sec=0.1), make_tree(1000, *[1010] * 8)
    machine.shares[10] = Shares(1000 * MB // 9, 0, 1000 * MB)
    memory = machine.memory()
    memory.total(members[:2])  # one question spends the budget
    assert memory.total(members) == 1080 * MB
    assert len(machine.asked) == 1


def test_a_parent_that_was_not_asked_shares_what_its_forks_share() -> None:
    """Its memory counts once too where the budget has room for its forks' answers alone."""
    machine, members = Machine(cost_sec=0.02), make_tree(400, 60, *[430] * 3)
    machine.spawned, machine.mapped = {11}, {10: 50 * MB, 11: 50 * MB}
    machine.shares = {10: Shares(375 * MB, 350 * MB, 350 * MB), 11: Shares(35 * MB, 0, 10 * MB)}
    memory = machine.memory()
    memory.total(members[:2])
    assert machine.asked == [10, 11]
    machine.share((10, 12, 13, 14), 350, own_mb=30)
    machine.mapped = dict.fromkeys(range(10, 15), 50 * MB)
    machine.now = 60.0
    assert 440 * MB < memory.total(members) < 500 * MB  # 350 more where it counts twice
    assert machine.asked[2:] == [12, 13, 14]


def test_what_one_frees_and_another_keeps_counts_once() -> None:
    """The parent frees 400 MB between its reading and its fork's, whose own they are then."""
    machine, members = Machine(left_mb={10: 1}), make_tree(400, 700)
    machine.shares = {10: Shares(MB, MB, MB), 11: Shares(700 * MB, 700 * MB, 700 * MB)}
    memory = machine.memory()
    assert memory.total(members) == 700 * MB
    assert memory.total(make_tree(1, 700)) == 701 * MB


def test_what_the_kernel_has_not_counted_yet_is_a_small_process_own() -> None:
    """Of 300 `sleep` of 2 MB in files and 128 kB of their own, `stat` tells the files alone."""
    machine, members = Machine(), make_tree(4, *[2] * 300)
    children = [process.pid for process in members[1:]]
    machine.spawned, machine.executed_mb = set(children), dict.fromkeys(children, 2.125)
    machine.mapped = dict.fromkeys(children, 2 * MB)
    each = Shares(MB // 8 + 4096, MB // 8, MB // 8, 4096)
    machine.shares = {PARENT: Shares(4 * MB, 4 * MB, 4 * MB, 0), **dict.fromkeys(children, each)}
    memory = machine.memory()
    assert memory.total(members) == pytest.approx((4 + 300 / 8 + 2) * MB, abs=MB)


def test_the_size_that_a_child_had_as_a_copy_does_not_count() -> None:
    """It was read just before the child executed a small program, or ended."""
    machine, members = Machine(), make_tree(400, 390, 390)
    machine.spawned, machine.executed_mb, machine.ended = {11, 12}, {11: 5}, {12}
    assert machine.memory().total(members) == 405 * MB


def test_files_that_others_use_too_count_in_full() -> None:
    """A server of the same program beside the job halves the kernel's share of them, not ours."""
    machine, members = Machine(), make_tree(400, 130)
    machine.mapped = {10: 100 * MB, 11: 20 * MB}
    for of_others in (1, 2):  # of the 80 MB that the parent has by itself
        own, mapped = (80, 90) if of_others == 1 else (0, 50)
        machine.shares[10] = Shares((150 + mapped) * MB, own * MB, 300 * MB, mapped * MB)
        machine.shares[11] = Shares((170 - of_others * 5) * MB, 10 * MB, 110 * MB, 10 * MB)
        assert machine.memory().total(members) == pytest.approx(410 * MB, rel=0.03), of_others


def test_workers_with_memory_of_their_own_count_in_full() -> None:
    """Without a question: 200 MB that each fork got later, all of an own program's, files once."""
    machine, members = Machine(), make_tree(100, 100, 100, 260)
    machine.spawned, machine.mapped = {13}, {10: 40 * MB, 11: 40 * MB, 12: 40 * MB, 13: 60 * MB}
    memory = machine.memory()
    memory.total(members)
    for process in members[1:3]:
        process.rss_bytes += 200 * MB
    assert memory.total(members) == (60 + 200 + 200 + 200 + 60) * MB


def test_shared_memory_that_children_touch_does_not_add_up() -> None:
    """400 MB of shared memory stay 400 while each of four children touches them."""
    machine, members = Machine(cost_sec=0.1), make_tree(410, *[10] * 4)
    machine.mapped[10] = 400 * MB
    machine.shares[10] = Shares(402 * MB, 400 * MB, 10 * MB)
    memory = machine.memory()
    assert memory.total(members) == 410 * MB
    for process in members[1:]:
        process.rss_bytes, machine.mapped[process.pid] = 410 * MB, 400 * MB
    assert memory.total(members) == 410 * MB


def test_pages_that_forks_copy_are_noticed_by_their_faults() -> None:
    """Forks that write to inherited memory grow, though their resident memory does not."""
    machine, members = Machine(), make_tree(100, 100, 100)
    machine.share((10, 11, 12), 100)
    memory = machine.memory()
    assert memory.total(members) == 100 * MB
    machine.share((10, 11, 12), 0, own_mb=100)
    machine.faults = {11: 100 * MB, 12: 100 * MB}
    assert memory.total(members) == 300 * MB
    assert memory.total(members) == 300 * MB
    assert len(machine.asked) == 6


def test_what_ended_processes_shared_has_ended() -> None:
    """Memory that only ended forks shared does not add to what others have."""
    machine, members = Machine(cost_sec=0.1), make_tree(1000, 1000, 1000)
    machine.share((10, 11, 12), 1000)
    memory = machine.memory()
    assert memory.total(members) == 1000 * MB
    members[0].rss_bytes = 20 * MB  # it let go of all, and the forks end
    spawned = Process(13, 1, PARENT, rss_bytes=500 * MB)
    machine.spawned = {13}
    assert memory.total([members[0], spawned]) <= 520 * MB


def test_answers_of_several_instants_are_not_used() -> None:
    """Where a process ends while they are asked, the shares of the others have grown."""
    machine, members = Machine(), make_tree(300, 300, 300)
    machine.shares = {
        pid: Shares(300 * MB // n, 0, 300 * MB)
        for pid, n in zip(range(10, 13), (3, 2, 1), strict=True)
    }
    machine.ending = {11}
    memory = machine.memory()
    assert memory.total(members) == 300 * MB


def test_memory_that_is_touched_while_shares_are_asked_does_not_add_up() -> None:
    """The parent had 340 MB for itself when it was asked, and none when its child was."""
    machine, members = Machine(), make_tree(410, 70)
    machine.mapped, machine.touched = {10: 400 * MB, 11: 60 * MB}, {11: 400 * MB}
    machine.shares[10] = Shares(370 * MB, 340 * MB, 10 * MB)
    machine.shares[11] = Shares(200 * MB, 0, 10 * MB)
    assert machine.memory().total(members) == 410 * MB
    assert machine.asked == [10, 11]


def test_asking_for_shares_keeps_to_its_budget() -> None:
    """Of 500 forks of 1 ms each, a read asks some, and each later one asks others."""
    machine, members = Machine(cost_sec=0.001), make_tree(10, *[10] * 499)
    pids = range(PARENT, PARENT + 500)
    machine.share(pids, 5, own_mb=5)
    memory = machine.memory()
    memory.total(members)
    assert len(machine.asked) == 50
    machine.faults = dict.fromkeys(pids, 10 * MB)
    for second in range(1, 61):
        machine.now = second
        memory.total(members)
    assert len(set(machine.asked)) == len(machine.asked)
    assert 0.2 <= len(machine.asked) * machine.cost_sec <= 0.05 + 0.05 + 0.005 * 60


def test_without_shares_the_sum_is_of_resident_memory() -> None:
    """Without proportional shares, the sum is that of the resident memory."""
    members = [Process(pid, 1, 1, rss_bytes=10 * MB) for pid in range(3)]
    assert Machine().memory().total(members) == 30 * MB


@pytest.mark.e2e
@alone
def test_the_peak_of_real_forks_is_what_they_use_together() -> None:
    """Four forks of 200 MB that touch 200 MB of shared memory and get 30 MB each are 520 MB."""
    inherited = bytearray(b"x") * (200 * MB)
    shared = mmap.mmap(-1, 200 * MB)
    shared[:] = bytes(inherited)
    reader, table = ProcessTreeReader(), ProcessTable()
    children = []
    for _ in range(4):
        pid = os.fork()
        if pid == 0:
            own = bytearray(b"y") * (30 * MB)
            for begin in range(0, len(shared), 10 * MB):
                assert own.count(b"y", 0, 1)
                assert shared[begin : begin + 10 * MB : 4096].count(b"x")
                time.sleep(0.05)
            time.sleep(60)
        children.append(pid)
    peak = 0.0
    for _ in range(40):
        time.sleep(0.05)
        peak = max(peak, read(reader)["job_mem_mb"])
    found = [table.read_shares(pid) for pid in (os.getpid(), *children)]
    together = sum(shares.proportional_bytes for shares in found if shares) / MB
    for pid in children:
        os.kill(pid, 9)
        os.waitpid(pid, 0)
    reader.close()
    assert 0.9 * together <= peak <= 1.2 * together
