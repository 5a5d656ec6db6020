"""Notes between a pipeline's runner and a step's wrapper are read as they were written."""

from pathlib import Path

import pytest

from mlflow_perf.node.exit_cause import End
from mlflow_perf.node.step_notes import (
    ENDED,
    STOP_NOTE_VARIABLE,
    read_end,
    read_status,
    read_stop_note,
    write_end,
    write_stop_note,
)

WHY = "took longer than its limit of 2 s"


@pytest.mark.parametrize("status", ["FAILED", "KILLED"])
def test_a_step_reads_why_its_runner_ends_it(
    status: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    note = tmp_path / "stopped-1"
    monkeypatch.setenv(STOP_NOTE_VARIABLE, str(note))
    assert read_stop_note() is None  # nothing ends it yet
    write_stop_note(note, status, WHY)
    assert read_stop_note() == read_stop_note(str(note)) == End(status, WHY)


@pytest.mark.parametrize("name", ["passwd", "stopped-", "stopped-1.txt"])
def test_a_journal_from_elsewhere_has_no_other_file_read(name: str, tmp_path: Path) -> None:
    write_stop_note(tmp_path / name, "FAILED", WHY)
    assert read_stop_note(str(tmp_path / name)) is None


@pytest.mark.parametrize("said", ["", "FAILED", "FINISHED well", "FAILED \n"])
def test_half_a_note_says_nothing(said: str, tmp_path: Path) -> None:
    note = tmp_path / "stopped-1"
    note.write_text(said)
    assert read_stop_note(str(note)) is None


def test_a_note_that_cannot_be_written_harms_nothing(tmp_path: Path) -> None:
    write_stop_note(tmp_path / "gone" / "stopped-1", "FAILED", WHY)
    assert not (tmp_path / "gone").exists()


@pytest.mark.parametrize(
    ("status", "end", "known"),
    [
        ("FINISHED", End("FINISHED"), End("FINISHED")),
        ("FAILED", End("FAILED", "exit code 3"), End("FAILED", "exit code 3")),
        ("FAILED", None, None),
        ("KILLED", None, None),
    ],
)
def test_how_a_command_ended_is_known_later(
    status: str, end: End | None, known: End | None, tmp_path: Path
) -> None:
    """Its journal may be cut off by a full disk, on which the file keeps its place."""
    assert (read_status(tmp_path), read_end(str(tmp_path / "stopped-1"))) == ("", None)
    (tmp_path / ENDED).write_text("STARTED" * 99)
    place = (tmp_path / ENDED).stat().st_ino
    write_end(tmp_path, status, end)
    assert (tmp_path / ENDED).stat().st_ino == place
    assert read_status(tmp_path) == status
    assert read_end(str(tmp_path / "stopped-1")) == known
    assert read_end(str(tmp_path / "stopped-2")) is None
    assert read_end(str(tmp_path / ENDED)) is None
    (tmp_path / "logs" / "attempt-2").mkdir(parents=True)
    assert read_end(str(tmp_path / "stopped-1")) is None
    assert read_end(str(tmp_path / "stopped-2")) == known


def test_an_end_that_cannot_be_noted_harms_nothing(tmp_path: Path) -> None:
    write_end(tmp_path / "gone", "FINISHED", None)
    assert not (tmp_path / "gone").exists()
    write_end(tmp_path, "FINISHED", None)  # it was not begun
    assert read_status(tmp_path) == "FINISHED"
