"""Files that appear as a whole, and what is no file."""

from __future__ import annotations

import errno
import os
import re
from pathlib import Path

import pytest

from mlflow_perf.core.json_io import write_text
from mlflow_perf.core.new_file import replacing


def test_a_file_appears_as_a_whole_or_not_at_all(tmp_path: Path) -> None:
    """After an error the old one is there, and nothing else."""
    path = tmp_path / "figures"
    for text in ("old", "new"):
        with replacing(path) as begun:
            begun.write_text(text)
            assert not path.exists() or path.read_text() == "old"

    def fail() -> None:
        with replacing(path) as begun:
            begun.write_text("half")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert path.read_text() == "new"
    assert os.listdir(tmp_path) == ["figures"]


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    """What it leads to is replaced, also where that is not there yet."""
    (tmp_path / "link").symlink_to("target")
    for text in ("1", "2"):
        write_text(tmp_path / "link", text)
        assert (tmp_path / "link").is_symlink()
        assert (tmp_path / "target").read_text() == text


def test_a_link_to_itself_is_refused(tmp_path: Path) -> None:
    """It leads to no file; as any program's open, and it stays what it is."""
    link = tmp_path / "link"
    link.symlink_to("link")
    with pytest.raises(OSError, match=re.escape(f"[Errno {errno.ELOOP}]")) as raised:
        write_text(link, "lost")
    assert raised.value.filename == str(link)
    assert link.is_symlink()


def test_an_error_names_the_file_that_was_asked_for(tmp_path: Path) -> None:
    """The name of the unfinished file says nothing to a user."""
    folder = tmp_path / "folder"
    for path in (folder / "figures.json", tmp_path / ("x" * 300)):
        with pytest.raises(OSError, match="Errno") as raised:
            write_text(path, "lost")
        assert raised.value.filename == str(path)
        assert raised.value.filename2 is None

    def make_it_a_folder() -> None:
        with replacing(folder) as begun:
            begun.write_text("figures")
            folder.mkdir()

    with pytest.raises(IsADirectoryError) as raised:
        make_it_a_folder()
    assert (raised.value.filename, raised.value.filename2) == (str(folder), None)
    assert os.listdir(tmp_path) == ["folder"]


def test_a_pipe_is_written_to(tmp_path: Path) -> None:
    """As is a device: as root, `/dev/null` would become a file."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    write_text(pipe, "through")
    assert os.read(reader, 100) == b"through"
    os.close(reader)
    assert pipe.is_fifo()
    assert os.listdir(tmp_path) == ["pipe"]
