"""Temporary folders that go even when the process ends without waiting for its threads."""

from __future__ import annotations

from mlflow_perf.core.temporary import remove_temporary_folders, temporary_folder


def test_a_folder_goes_after_its_block_and_before_an_exit_inside_it() -> None:
    """An upload that hangs leaves nothing on the disk when the process ends."""
    with temporary_folder() as folder:
        (folder / "node-0.json").write_text("{}")
    assert not folder.exists()
    with temporary_folder() as folder:
        (folder / "node-0.json").write_text("{}")
        remove_temporary_folders()
        assert not folder.exists()
