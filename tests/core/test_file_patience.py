"""Work on files that a file system holds up."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import pytest
from tests.alone import alone

from mlflow_perf.core import file_patience
from mlflow_perf.core.file_patience import FilePatience, find_patience, patiently


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Yield what a network's file system waits for before it answers."""
    answers = threading.Event()
    monkeypatch.setattr(file_patience, "is_remote", lambda _: True)
    monkeypatch.setattr(file_patience, "_PATIENCE_SEC", 0.05)
    yield answers
    answers.set()


def test_work_that_is_held_up_goes_on_without_its_caller(
    answers: threading.Event, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """And what follows is not begun until it has ended; one line says so."""
    patience, done = FilePatience(tmp_path), list[str]()

    def hang() -> str:
        answers.wait()
        done.append("first")
        return "first"

    assert patience.do(hang, "none") == "none"
    assert patience.do(lambda: done.append("second"), None) is None
    assert done == []
    answers.set()
    while patience.do(lambda: "third", "none") == "none":
        pass
    assert done == ["first"]
    assert patience.do(hang, "none") == "first"
    assert [f"journals in {tmp_path} does not" in text for text in caplog.messages] == [True]


def test_a_file_system_that_is_away_is_as_one_that_does_not_answer(
    answers: threading.Event, tmp_path: Path
) -> None:
    def fail(error: Exception) -> NoReturn:
        raise error

    assert FilePatience(tmp_path).do(lambda: fail(OSError(116, "stale")), "none") == "none"
    with pytest.raises(ValueError, match="a fault"):
        FilePatience(tmp_path).do(lambda: fail(ValueError("a fault")), "none")


def test_a_disk_of_this_machine_is_used_at_once(tmp_path: Path) -> None:
    assert FilePatience(tmp_path).do(threading.get_ident, 0) == threading.get_ident()
    assert find_patience(tmp_path) is find_patience(tmp_path)


def test_a_method_is_patient(answers: threading.Event, tmp_path: Path) -> None:
    class Writer:
        patience = FilePatience(tmp_path)

        @patiently(False)
        def write(self, text: str, *, hangs: bool) -> bool:
            """Write."""
            if hangs:
                answers.wait()
            return bool(text)

    assert Writer().write("a", hangs=False)
    assert not Writer().write("a", hangs=True)
    assert Writer.write.__doc__ == "Write."


@alone
def test_a_forked_child_waits_for_no_thread_of_its_parent() -> None:
    """It does not have it."""
    vars(file_patience).update(is_remote=lambda _: True, _PATIENCE_SEC=0.05)
    patience = FilePatience(Path("/shared"))
    assert not patience.do(lambda: threading.Event().wait(), False)
    if (child := os.fork()) == 0:
        os._exit(patience.do(lambda: 7, 1))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    os._exit(0)
