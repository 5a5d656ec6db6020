"""Quotas of groups into which a job put its own processes."""

from __future__ import annotations

from pathlib import Path

from tests.readers.trees import put

from mlflow_perf.readers.cgroup.group_quotas import GroupQuotas


def place(tmp_path: Path, pid: int | str, group: str) -> None:
    """Put a process into a group of the second version."""
    put(tmp_path / f"proc/{pid}/cgroup", f"0::{group}\n")
    put(tmp_path / f"proc/{pid}/mountinfo", "1 1 0:1 / /cg rw - cgroup2 cgroup2 rw\n")


def test_only_a_quota_that_all_of_them_joined_holds_them(tmp_path: Path) -> None:
    """One process is looked up at each call; groups count once; our own group is no new limit."""
    put(tmp_path / "cg/home/cpu.max", "100000 100000\n")
    put(tmp_path / "cg/joined/cpu.max", "50000 100000\n")
    for pid, group in (("self", "/home"), (10, "/joined"), (11, "/joined"), (12, "/home")):
        place(tmp_path, pid, group)
    now = [0.0]
    quotas = GroupQuotas(proc=tmp_path / "proc", root=tmp_path, clock=lambda: now[0])
    assert quotas.count_cpus([12]) is None
    assert [quotas.count_cpus([10, 11]) for _ in range(2)] == [0.5, 0.5]
    assert quotas.count_cpus([10, 11, 12]) is None
    place(tmp_path, 12, "/joined")
    assert quotas.count_cpus([12]) is None
    now[0] = 11.0
    assert quotas.count_cpus([12]) == 0.5
    assert quotas.count_cpus([99]) is None
