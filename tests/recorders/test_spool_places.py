"""Where spool folders are: never where a file system may stop to answer."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from mlflow_perf.node.place import Node
from mlflow_perf.recorders import spool_places
from mlflow_perf.recorders.spool_folder import SpoolFolder


def test_records_are_not_mapped_from_a_networks_file_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would hold up the job; `recover` on this machine finds the folder where it is."""
    shared, local = tmp_path / "shared", tmp_path / "local"
    local.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(local))
    monkeypatch.setattr(spool_places, "is_remote", shared.__eq__)
    folder = SpoolFolder(Node(0, 1, 0, 0, 1, "h", "local"), "run", parent=shared)
    assert folder.path is not None
    assert folder.path.parent.parent == local
    assert not shared.exists()
    assert spool_places.find_own(folder.path.name, shared) == folder.path
    assert spool_places.find_own("mlflow-perf-spool-other", shared) is None
    folder.remove()
    assert not folder.path.exists()


def test_temporary_files_on_a_networks_file_system_are_no_place_either(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared, local = tmp_path / "shared", tmp_path / "local"
    local.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(shared))
    monkeypatch.setattr(spool_places, "_LOCAL", (tmp_path / "none", local))
    monkeypatch.setattr(spool_places, "is_remote", shared.__eq__)
    assert spool_places.choose_place(shared) == local / f"mlflow-perf-{os.getuid()}"


def test_without_another_place_they_are_beside_the_journal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(spool_places, "is_remote", lambda _: True)
    assert spool_places.choose_place(tmp_path / "state") == tmp_path / "state"


def test_what_dead_processes_left_in_either_place_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    left = [tmp_path / "state", spool_places.find_base(make=True)]
    left = [place / f"{spool_places.name_machine()}{2**22 + 1}_x" for place in left]
    for folder in left:
        folder.mkdir(parents=True)
    for place in spool_places.list_places(tmp_path / "state"):
        spool_places.remove_left_over(place)
    assert not any(folder.exists() for folder in left)
