"""Notes between a pipeline's runner and a step's wrapper are read as they were written."""

from pathlib import Path

import pytest

from mlflow_perf.node.exit_cause import End
from mlflow_perf.node.step_notes import STOP_NOTE_VARIABLE, read_stop_note, write_stop_note

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
