"""The file of a journal: who may use it, and what is not taken for one."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
import threading
from pathlib import Path

import pytest
from tests.alone import alone
from tests.publish.test_journal import new_journal, rows
from tests.publish.test_recovery import ROW, journal_of, sent

from mlflow_perf.core import file_patience, originals
from mlflow_perf.model.document import NodeDocument
from mlflow_perf.publish import journal_file
from mlflow_perf.publish.recovery import read_journal, recover, recover_each
from mlflow_perf.tracking.delivery import Delivery

__all__ = ["sent"]  # the fixture of those tests


def test_a_large_file_a_pipe_and_a_link_are_not_read(
    sent: list[Delivery],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """None of them is opened to the end, followed or removed; each is one line."""
    monkeypatch.setattr(journal_file, "_MAX_BYTES", 1000)
    outside = tmp_path / "outside"
    outside.write_bytes(journal_of(ROW))
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "large.journal").write_bytes(journal_of(ROW) + b"\n" * 1000)
    os.mkfifo(folder / "pipe.journal")
    (folder / "link.journal").symlink_to(outside)
    assert list(recover(folder)) == []
    assert sent == []
    assert len([r for r in caplog.records if "is skipped" in r.getMessage()]) == 3
    assert len(list(folder.iterdir())) == 3
    assert outside.exists()


@pytest.mark.skipif(not hasattr(os, "getuid") or os.getuid() != 0, reason="only root may give away")
def test_a_journal_of_another_user_is_skipped(
    sent: list[Delivery], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A file that somebody else put there is not ours to send."""
    path = tmp_path / "theirs.journal"
    path.write_bytes(journal_of(ROW))
    os.chown(path, 12345, 12345)
    assert list(recover(tmp_path)) == []
    assert sent == []
    assert "belongs to another user" in caplog.text
    assert path.exists()


def test_a_read_only_file_system_is_no_dead_end(
    sent: list[Delivery],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The line says what to do, and that works."""
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "a.journal").write_bytes(journal_of(ROW))
    really_open = os.open

    def open_there(path: str | Path, flags: int) -> int:
        if "there" in str(path) and flags & os.O_RDWR:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))
        return really_open(path, flags)

    monkeypatch.setattr(originals.os, "open", open_there)
    assert [one.outcome for one in recover_each(tmp_path / "there")] == ["kept"]
    assert "is read-only" in caplog.text
    assert "send the copy: mlflow-perf recover COPY" in caplog.text
    shutil.copytree(tmp_path / "there", tmp_path / "copy")
    assert [one.outcome for one in recover_each(tmp_path / "copy")] == ["sent"]
    assert len(sent) == 1


def test_without_a_home_each_user_has_a_folder_of_his_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the home cannot be made: a report would be lost where another user was first."""
    monkeypatch.delenv("MLFLOW_PERF_DIR", raising=False)
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    monkeypatch.setattr(tempfile, "gettempdir", lambda: str(tmp_path))
    home = tmp_path / "home"
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to(tmp_path / "absent")
    for place, expected in (
        (tmp_path / "link", tmp_path / f"mlflow-perf-{os.getuid()}"),
        (Path("/proc/self/fdinfo/home"), tmp_path / f"mlflow-perf-{os.getuid()}"),
        (home, home / ".local" / "state" / "mlflow-perf"),
        (tmp_path / "file" / "home", tmp_path / f"mlflow-perf-{os.getuid()}"),
        (None, tmp_path / f"mlflow-perf-{os.getuid()}"),
    ):

        def find_home(place: Path | None = place) -> Path:
            if place is None:
                raise RuntimeError("no home")
            return place

        monkeypatch.setattr(Path, "home", find_home)
        assert journal_file.find_state_folder() == expected


_ROOT_ONLY = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give up its rights")


@_ROOT_ONLY
@alone
def test_a_journal_that_the_job_may_no_longer_delete_has_nothing_to_send(tmp_path: Path) -> None:
    """As after `os.setuid`; the open file is emptied, and `recover` deletes it without a word."""
    folder = tmp_path / "journals"
    journal = new_journal(folder)
    journal.append(rows(1)[0])
    journal.flush()
    os.seteuid(54321)
    journal.remove()
    os.seteuid(0)
    assert b"mem_percent" not in journal.path.read_bytes()
    assert list(recover_each(folder)) == []
    assert list(folder.iterdir()) == []


@_ROOT_ONLY
@pytest.mark.parametrize("is_sent", [False, True])
@alone
def test_a_journal_stays_outside_a_new_root(tmp_path: Path, is_sent: bool) -> None:
    """After `os.chroot` none is made inside: `recover` would call the one outside killed."""
    folder, inside = tmp_path / "journals", tmp_path / "root"
    inside.mkdir()
    journal, outside = new_journal(folder), os.open("/", os.O_RDONLY)
    os.chroot(inside)
    assert journal.secure(Delivery(NodeDocument(component="train", status="FINISHED")))
    (journal.remove if is_sent else journal.leave)()
    os.fchdir(outside)
    os.chroot(".")
    assert list(inside.iterdir()) == []
    if is_sent:
        assert list(recover_each(folder)) == []
        assert list(folder.iterdir()) == []
    else:
        assert read_journal(journal.path.read_bytes())[0].document.status == "FINISHED"


def test_a_home_that_does_not_answer_holds_up_no_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its journals are among the temporary files then."""
    answers = threading.Event()
    monkeypatch.delenv("MLFLOW_PERF_DIR", raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(file_patience, "is_remote", lambda _: True)
    monkeypatch.setattr(file_patience, "_PATIENCE_SEC", 0.05)
    monkeypatch.setattr(journal_file, "_make_writable", lambda _: answers.wait())
    place = journal_file.find_state_folder()
    answers.set()
    assert place.name == f"mlflow-perf-{os.getuid()}"
    assert place.parent == Path(tempfile.gettempdir())
