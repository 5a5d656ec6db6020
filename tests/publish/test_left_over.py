"""What recovery removes beside the journals that it sends."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from mlflow_perf.node.place import Node
from mlflow_perf.publish.left_over import remove_what_is_left
from mlflow_perf.publish.recovery import recover
from mlflow_perf.recorders.spool_folder import SpoolFolder


def test_recovery_removes_what_killed_ranks_and_processes_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ranks of a node share a folder beside that of the journals."""
    monkeypatch.setattr(tempfile, "gettempdir", lambda: str(tmp_path))
    place = tmp_path / "perf"
    for node in (
        Node(0, 1, 0, 0, 2, "h", "mpich", local_size=2),
        Node(0, 1, 0, 0, 1, "h", "local"),
    ):
        pid = os.fork()
        if pid == 0:
            try:
                SpoolFolder(node, "run", parent=place)
            finally:
                os._exit(0)
        os.waitpid(pid, 0)
    ranks = next(tmp_path.glob("mlflow-perf-*"))
    parts = [*ranks.iterdir(), *place.iterdir()]
    assert len(parts) == 3  # a folder and its turn, and a folder
    assert [*recover(place)] == []
    assert [*ranks.iterdir(), *place.iterdir()] == []
    remove_what_is_left(tmp_path / "none")
