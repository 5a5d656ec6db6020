"""Real control groups with a memory limit."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from mlflow_perf.pipelines.launch import Rank
from mlflow_perf.pipelines.memory_group import limit_memory
from mlflow_perf.readers.cgroup.groups import Group

EAT = "b = bytearray({mb} << 20); print(len(b))"


@pytest.mark.parametrize(("mb", "killed"), [(20, False), (200, True)])
def test_the_kernel_kills_what_exceeds_the_limit(mb: int, killed: bool) -> None:
    """A real process in a real group: what fits ends well, and what does not is counted."""
    with limit_memory(100.0) as group:
        if group is None:
            pytest.skip("no control group for memory can be made here")
        (rank,) = group.enter([Rank((sys.executable, "-c", EAT.format(mb=mb)), {}, "log")])
        done = subprocess.run(rank.command, capture_output=True, check=False, timeout=60)
        assert (done.returncode != 0) == killed
        assert (group.count_kills() > 0) == killed
    assert not group.folder.exists()


class Cgroup2:
    """A tree of the second version in a folder: new groups get the files that the kernel makes."""

    def __init__(self, top: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.top = top
        self.own = top / "user" / "session"
        make, remove = Path.mkdir, Path.rmdir

        def mkdir(folder: Path, *args: Any, **options: Any) -> None:
            make(folder, *args, **options)
            if top in folder.parents:
                (folder / "cgroup.procs").touch()
                (folder / "cgroup.subtree_control").touch()
                if "memory" in (folder.parent / "cgroup.subtree_control").read_text().split():
                    (folder / "memory.max").write_text("max")
                    (folder / "memory.swap.max").write_text("max")
                    (folder / "memory.events").write_text("max 9\noom 2\noom_kill 0\n")

        def rmdir(folder: Path) -> None:
            if top in folder.parents:
                for file in folder.iterdir():
                    file.unlink()
            remove(folder)

        monkeypatch.setattr(Path, "mkdir", mkdir)
        monkeypatch.setattr(Path, "rmdir", rmdir)
        (top / "cgroup.subtree_control").write_text("memory")
        (top / "user").mkdir()

    def enter(self, controllers: str) -> Group:
        """Make the group of this process; its parent hands these controllers down."""
        (self.own.parent / "cgroup.subtree_control").write_text(controllers)
        self.own.mkdir()
        return Group(2, self.own, self.top, "/user/session")


@pytest.fixture
def cgroup2(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cgroup2:
    """The second version of control groups, without a kernel behind it."""
    return Cgroup2(tmp_path, monkeypatch)


def test_a_group_of_the_second_version_is_made_beside_our_own(cgroup2: Cgroup2) -> None:
    """A group with processes cannot have limited groups below it, but its parent can."""
    own = cgroup2.enter("cpu memory")
    with limit_memory(100.5, own=own) as group:
        assert group is not None
        assert group.folder.parent == own.folder.parent
        assert (group.folder / "memory.max").read_text() == str(int(100.5 * 2**20))
        assert (group.folder / "memory.swap.max").read_text() == "0"
        (rank,) = group.enter([Rank(("/bin/sh", "-c", "echo $$"), {}, "log")])
        done = subprocess.run(rank.command, capture_output=True, check=True, timeout=60)
        assert (group.folder / "cgroup.procs").read_text() == done.stdout.decode()
        assert group.count_kills() == 0
        (group.folder / "memory.events").write_text("max 9\noom 2\noom_kill 3\noom_group_kill 1\n")
        assert group.count_kills() == 3
    assert sorted(p.name for p in own.folder.parent.iterdir() if p.is_dir()) == ["session"]
    assert [p for p in own.folder.iterdir() if p.is_dir()] == []


def test_without_the_controller_no_group_of_the_second_version_is_left(cgroup2: Cgroup2) -> None:
    """Where memory is not handed down, as in many containers, there is no limit and no trace."""
    own = cgroup2.enter("cpu")
    with limit_memory(100.0, own=own) as group:
        assert group is None
    assert [p for p in own.folder.parent.iterdir() if p.is_dir()] == [own.folder]


def test_where_no_group_can_be_made_nothing_is_limited(tmp_path: Path) -> None:
    """A folder that is no control group takes no limit, and is left as it was."""
    (tmp_path / "own").mkdir()
    own = Group(2, tmp_path / "own" / "gone", tmp_path / "own", "/gone")
    with limit_memory(100.0, own=own) as group:
        assert group is None
    assert list((tmp_path / "own").iterdir()) == []
    with limit_memory(None) as group:
        assert group is None
