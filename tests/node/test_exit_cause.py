"""Why a process ended: signals and the counters of the kernel's OOM killer."""

from __future__ import annotations

import os
import signal
import socket
from pathlib import Path

import pytest

from mlflow_perf.node.exit_cause import (
    boot_id,
    count_new_oom_kills,
    has_own_procfs,
    machine_id,
    name_signal,
    read_oom_counts,
)


def test_a_signal_has_a_name() -> None:
    """A signal without a name of its own, such as a real-time one, is named by its number."""
    assert name_signal(signal.SIGTERM) == "SIGTERM"
    assert name_signal(200) == "signal 200"


def test_the_id_of_a_boot_stays_until_the_next_boot() -> None:
    """Two readings within one boot are equal."""
    assert boot_id() == boot_id()


def test_two_hosts_have_two_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both may call their namespace of processes `pid:[4026531836]`."""
    here = machine_id()
    assert machine_id() == here
    monkeypatch.setattr(socket, "gethostname", lambda: "elsewhere")
    assert machine_id() != here


@pytest.mark.parametrize(("number", "expected"), [("its own", True), ("1", False), (None, True)])
def test_a_procfs_of_another_pid_namespace_is_known(
    tmp_path: Path, number: str | None, expected: bool
) -> None:
    """It calls this process by another number; a machine without procfs has none that is wrong."""
    if number is not None:
        (tmp_path / "self").symlink_to(str(os.getpid()) if number == "its own" else number)
    assert has_own_procfs(tmp_path) is expected


def test_oom_kills_are_counted_in_both_versions_of_cgroups(tmp_path: Path) -> None:
    """The counters of version 1 and 2 are found, and what they grew by is returned."""
    proc, root = tmp_path / "proc", tmp_path / "cgroup"
    (proc / "7").mkdir(parents=True)
    (proc / "7" / "cgroup").write_text("4:memory:/job\n1:cpu:/x\n0::/two\n")
    one, two = root / "memory" / "job", root / "two"
    one.mkdir(parents=True)
    two.mkdir()
    (one / "memory.oom_control").write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 2\n")
    (two / "memory.events").write_text("low 0\noom 1\noom_kill 5\n")
    counts = read_oom_counts(7, root=root, proc=proc)
    assert sorted(counts.values()) == [2, 5]
    assert count_new_oom_kills(counts) == 0
    (two / "memory.events").write_text("low 0\noom 2\noom_kill 6\n")
    assert count_new_oom_kills(counts) == 1
    assert read_oom_counts(8, root=root, proc=proc) == {}
    secret = tmp_path / "secret"
    secret.write_text("oom_kill 9\n")
    assert count_new_oom_kills({str(secret): 0}) == 0, "only a cgroup's counter is opened"
