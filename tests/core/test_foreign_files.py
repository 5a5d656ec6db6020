"""Files of others: what is no file, and what is too large, is refused by its reason."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from mlflow_perf.core.foreign_files import open_foreign, read_foreign


def test_a_file_is_read_through_a_link(tmp_path: Path) -> None:
    """A regular file of at most the limit is read, also by a link to it."""
    (tmp_path / "a").write_bytes(b"x" * (1 << 20))
    (tmp_path / "b").symlink_to(tmp_path / "a")
    assert read_foreign(tmp_path / "b", most_mb=1) == b"x" * (1 << 20)


def test_what_is_no_file_is_refused_at_once(tmp_path: Path) -> None:
    """A pipe, a socket, a device, a folder and a link to one never keep the reader waiting."""
    os.mkfifo(tmp_path / "pipe")
    with socket.socket(socket.AF_UNIX) as one:
        one.bind(str(tmp_path / "socket"))
    (tmp_path / "zero").symlink_to("/dev/zero")
    (tmp_path / "folder").mkdir()
    for name, reason in {"pipe": "pipe", "zero": "device", "folder": "folder"}.items():
        with pytest.raises(OSError, match="it is a") as caught:
            read_foreign(tmp_path / name, most_mb=1)
        assert reason in str(caught.value.strerror)
    with pytest.raises(OSError, match="such device"):
        read_foreign(tmp_path / "socket", most_mb=1)


def test_a_file_beyond_the_limit_is_not_read(tmp_path: Path) -> None:
    """The size is looked at before anything is read; the message names the limit."""
    with (tmp_path / "a").open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(OSError, match="more than 2 MB"):
        open_foreign(tmp_path / "a", most_mb=2)
