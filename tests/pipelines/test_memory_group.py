"""Real control groups with a memory limit."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

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


def test_where_no_group_can_be_made_nothing_is_limited(tmp_path: Path) -> None:
    """A folder that is no control group takes no limit, and is left as it was."""
    (tmp_path / "own").mkdir()
    own = Group(2, tmp_path / "own" / "gone", tmp_path / "own", "/gone")
    with limit_memory(100.0, own=own) as group:
        assert group is None
    assert list((tmp_path / "own").iterdir()) == []
    with limit_memory(None) as group:
        assert group is None
