"""Temporary folders that go even when the process ends without waiting for its threads."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_open: set[Path] = set()


@contextmanager
def temporary_folder() -> Iterator[Path]:
    """Make a folder, and remove it after the block."""
    with tempfile.TemporaryDirectory(prefix="mlflow-perf-") as name:
        folder = Path(name)
        _open.add(folder)
        try:
            yield folder
        finally:
            _open.discard(folder)


def remove_temporary_folders() -> None:
    """Remove the folders of threads that still work, because `os._exit` follows."""
    for folder in list(_open):
        shutil.rmtree(folder, ignore_errors=True)
