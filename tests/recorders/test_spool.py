"""Rules of spool files and their folder."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mlflow_perf.recorders import spool
from mlflow_perf.recorders.spool import BLOB, Record, SpoolWriter


def _writer(folder: Path, snapshot: dict[str, Any] | None = None) -> SpoolWriter:
    return SpoolWriter(folder, "test", lambda: {} if snapshot is None else snapshot)


def test_records_are_in_the_file_at_once(tmp_path: Path) -> None:
    """A reader gets the snapshot and every record in order while the writer is still at work."""
    writer = _writer(tmp_path, {"a": 1})
    writer.append(1, 7, 0.5, 2.0)
    writer.append_blob(BLOB, 8, b"thirty bytes are more than 24.")
    writer.append(2, 9, 1.0, 0.0)
    (file,) = spool.read(tmp_path, "test")
    writer.close()
    assert (file.source, file.snapshot) == (writer.source, {"a": 1})
    assert file.records == [
        Record(1, 7, 0.5, 2.0),
        Record(BLOB, 8, 0.0, 0.0, b"thirty bytes are more than 24."),
        Record(2, 9, 1.0, 0.0),
    ]


_CLOSED = """
import os, sys
from mlflow_perf.recorders.spool import SpoolWriter
out = os.fdopen(os.dup(1), "w")
for number in range(3):
    os.close(number)
writer = SpoolWriter(sys.argv[1], "test", dict)
print([os.open(os.devnull, os.O_RDWR) for _ in range(3)], file=out, flush=True)
"""


@pytest.mark.skipif(os.name == "nt", reason="descriptors of POSIX")
def test_a_file_is_never_the_standard_output_that_a_job_has_closed(tmp_path: Path) -> None:
    """A map keeps the lowest free number: what the job wrote there next would be lost in it."""
    command = [sys.executable, "-c", _CLOSED, str(tmp_path)]
    assert subprocess.check_output(command, text=True) == "[0, 1, 2]\n"


def test_a_full_file_is_replaced(tmp_path: Path) -> None:
    """When the room is used up, one file with a new snapshot takes the place of the old one."""
    snapshot = {"made": 0}
    writer = _writer(tmp_path, snapshot)
    for number in range(1000):
        snapshot["made"] = number + 1
        writer.append(1, number, 0.0, 0.0)
    (file,) = spool.read(tmp_path, "test")
    writer.close()
    assert file.snapshot["made"] + len(file.records) == 1000
    assert len(list(tmp_path.iterdir())) == 1


def test_a_file_that_somebody_truncates_is_replaced(tmp_path: Path) -> None:
    """A write beyond the end of a mapped file is the death of its process."""
    writer = _writer(tmp_path, {"made": 2})
    writer.append(1, 1, 0.0, 0.0)
    (path,) = tmp_path.iterdir()
    assert path.stat().st_mode & 0o222 == 0
    path.chmod(0o600)
    os.truncate(path, 0)
    assert writer.look()
    writer.append(1, 3, 0.0, 0.0)
    (file,) = spool.read(tmp_path, "test")
    assert (file.snapshot, file.records) == ({"made": 2}, [Record(1, 3, 0.0, 0.0)])
    assert not writer.look()
    writer.close()


@pytest.mark.parametrize("write", ["append", "append_blob"])
def test_a_writer_looks_after_a_while(
    tmp_path: Path, write: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A look takes longer than a record."""
    now = [1000.0]
    monkeypatch.setattr(spool, "time", SimpleNamespace(monotonic=lambda: now[0]))
    writer = _writer(tmp_path)
    looks: list[float] = []
    monkeypatch.setattr(writer, "look", lambda: looks.append(now[0]))
    arguments = (1, 1, 0.0, 0.0) if write == "append" else (BLOB, 1, b"x")
    for _ in range(3):
        now[0] += 0.06
        getattr(writer, write)(*arguments)
    assert looks == pytest.approx([1000.12, 1000.18])
    writer.close()


def test_other_kinds_of_files_are_not_read(tmp_path: Path) -> None:
    """A reader gets the files of the kind it asks for."""
    _writer(tmp_path).close()
    assert list(spool.read(tmp_path, "tes")) == []
    assert len(list(spool.read(tmp_path, "test"))) == 1


@pytest.mark.parametrize("size", [2**62, 200])
def test_a_record_longer_than_its_file_is_damage(
    tmp_path: Path, size: int, caplog: pytest.LogCaptureFixture
) -> None:
    """The length in a record of bytes is not trusted."""
    text = b"{}      "
    record = size.to_bytes(8, "little") + bytes(8) + (1).to_bytes(4, "little")
    content = b"MLPERF1\n" + (2).to_bytes(8, "little") + text + record
    (tmp_path / "test-1-x.spool").write_bytes(content + BLOB.to_bytes(4, "little"))
    assert list(spool.read(tmp_path, "test")) == []
    assert "longer than its file" in caplog.text


def test_remove_leaves_what_is_not_ours(tmp_path: Path) -> None:
    """Remove deletes the spool files and keeps all other files."""
    folder = spool.create(tmp_path)
    _writer(folder).close()
    (folder / "notes.txt").write_text("mine")
    spool.remove(folder)
    assert [path.name for path in folder.iterdir()] == ["notes.txt"]


def test_remove_leaves_no_file_of_the_stack_sampler(tmp_path: Path) -> None:
    """The file that asks for samples goes with the folder, as after a killed job."""
    folder = spool.create(tmp_path)
    (folder / spool.SAMPLING).write_text("{}")
    spool.remove(folder)
    assert not folder.exists()


def test_folders_take_the_names_of_earlier_ones(tmp_path: Path) -> None:
    """Many sessions in turn use few names, and never the name of a folder that exists."""
    names = set()
    for _ in range(100):
        folder = spool.create(tmp_path)
        names.add(folder.name)
        spool.remove(folder)
    assert len(names) <= 32
    kept = [spool.create(tmp_path) for _ in range(40)]
    assert len(set(kept)) == 40
    assert all(folder.stat().st_mode & 0o777 == 0o700 for folder in kept)


def test_a_folder_that_cannot_be_listed_holds_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A job may have used up all descriptors; a single warning says so, and the report goes on."""

    def fail(*_: object) -> None:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr("mlflow_perf.core.originals.os.listdir", fail)
    assert not list(spool.read(tmp_path, "operations"))
    assert not list(spool.read(tmp_path, "stacks"))
    assert caplog.text.count("Too many open files") == 1
