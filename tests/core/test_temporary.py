"""Temporary folders that go even when the process ends without waiting for its threads."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from mlflow_perf.core.temporary import (
    find_temporary_folder,
    forget_temporary_folder,
    remove_temporary_folders,
    temporary_folder,
)


def test_a_folder_goes_after_its_block_and_before_an_exit_inside_it() -> None:
    """An upload that hangs leaves nothing on the disk when the process ends."""
    with temporary_folder() as folder:
        (folder / "node-0.json").write_text("{}")
    assert not folder.exists()
    with temporary_folder() as folder:
        (folder / "node-0.json").write_text("{}")
        remove_temporary_folders()
        assert not folder.exists()


_UPLOAD = """
import atexit, os, sys, threading
from mlflow_perf.core.temporary import temporary_folder
inside, go, done = threading.Event(), threading.Event(), threading.Event()
def upload():
    with temporary_folder() as folder:
        inside.set()
        go.wait(60)
        print(folder.exists())
    done.set()
def finish():
    go.set()
    done.wait(60)
atexit.register(finish)
threading.Thread(target=upload, daemon=True).start()
inside.wait(60)
"""
_FORK = """
if os.fork() == 0:
    go.wait = done.wait = lambda timeout: None
    sys.exit()
os.wait()
"""


@pytest.mark.parametrize("and_then", ["", _FORK], ids=["exit", "a forked child's exit"])
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_an_upload_that_the_exit_waits_for_keeps_its_folder(and_then: str) -> None:
    """Python's own folder goes first, and MLflow uploads in silence what is left of it."""
    # From Python 3.12 on, a fork beside a thread warns.
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", _UPLOAD + and_then]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("True\n", "")


def test_the_job_finds_its_own_folder_for_temporary_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python looks for it once; the job may name another after a block."""
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setenv("TMPDIR", str(first := tmp_path / "first"))
    first.mkdir()
    assert find_temporary_folder() == first
    with temporary_folder() as folder:
        assert folder.parent == first
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    assert tempfile.gettempdir() == str(tmp_path)
    tempfile.tempdir = str(first)  # set by the job
    forget_temporary_folder()
    assert find_temporary_folder() == Path(tempfile.tempdir) == first
