"""py-spy as the engine: what it finds, and what is said where it cannot."""

from __future__ import annotations

import os
import shutil
import signal
import stat
import sys
import threading
import time
from pathlib import Path

import pytest
from tests.alone import alone

from mlflow_perf.errors import DocumentError, SettingError
from mlflow_perf.model.samples import RawStacks
from mlflow_perf.recorders.profile import py_spy
from mlflow_perf.recorders.profile.py_spy import (
    FoldedStack,
    Piece,
    PySpyEngine,
    _weigh_samples,
    find_py_spy,
    read_folded,
)
from mlflow_perf.session.stack_recording import StackEngine, open_engine


def compute(seconds: float) -> None:
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        sum(range(100))


def rest(seconds: float) -> None:
    time.sleep(seconds)


def _seconds(raws: list[RawStacks], name: str, place: int) -> float:
    return sum(
        float(cell[place])
        for raw in raws
        for cell in raw.cells
        if any(raw.functions[one].name == name for one in raw.stacks[cell[2]][2])
    )


@pytest.mark.parametrize("name", ["own", "py-spy", "python"])
def test_each_engine_tells_computing_and_waiting_apart(name: str, tmp_path: Path) -> None:
    """Both follow one protocol, and a thread that has ended or sleeps counts no further."""
    if name == "py-spy" and shutil.which("py-spy", path=Path(sys.executable).parent) is None:
        pytest.skip("py-spy is not installed: pip install -e .[pyspy]")
    if name == "py-spy" and sys.version_info[1] < 11:
        with pytest.raises(SettingError, match=r"from Python 3\.11 on; this is"):
            open_engine(name, 100.0)
        return
    if name == "python" and sys.version_info < (3, 15):
        pytest.skip("Python has a sampler from 3.15 on")
    engine: StackEngine = open_engine(name, 100.0)
    engine.offer(None, is_command=False)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # as `mlflow-perf run` does
    engine.begin()
    signal.pthread_sigmask(signal.SIG_SETMASK, before)
    if isinstance(engine, PySpyEngine) and engine._beside is not None:
        logs = [engine._beside.folder / f"{one}.log" for one in ("all", "computing")]
        deadline = time.monotonic() + 20
        while not all(log.exists() and log.stat().st_size for log in logs):
            assert time.monotonic() < deadline
            time.sleep(0.02)
    time.sleep(0.0 if name == "own" else 0.5)  # they begin soon after they have said so
    engine.note_begin()
    thread = threading.Thread(target=rest, args=(1.0,))
    thread.start()
    begin = time.monotonic()
    compute(0.5)
    took = time.monotonic() - begin
    thread.join()
    time.sleep(0.7)
    engine.note_end()
    engine.end()
    engine.collect()
    found = engine.list_stacks()
    near = 0.3 + 0.1 * took  # others may have the CPUs
    assert _seconds(found, "compute", 3) == pytest.approx(took, abs=near)
    assert _seconds(found, "compute", 4) > 0.2
    assert _seconds(found, "rest", 3) == pytest.approx(1.0, abs=near)
    assert _seconds(found, "rest", 4) < near
    assert not any("mlflow_perf" in one.file for raw in found for one in raw.functions)


def _run(folder: Path, script: str, *, is_command: bool = False) -> list[RawStacks]:
    """Let a program stand for py-spy, and return what the engine makes of what it does."""
    program = folder / "py-spy"
    program.write_text(f"#!/bin/sh\nfor output; do :; done\n{script}\nexit 1\n", encoding="utf-8")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    engine = PySpyEngine(None, str(program))
    engine.offer(None, is_command=is_command)
    engine.begin()
    deadline = time.monotonic() + 10
    assert engine._beside is not None
    while any(engine._beside.list_running()) and time.monotonic() < deadline:
        time.sleep(0.01)
    engine.end()
    return engine.list_stacks()


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        (
            "echo 'Error: x'; echo 'Permission Denied: Try again with sudo'; exit 1",
            "Permission Denied",
        ),
        ("echo 'Failed to find python version from target process'; exit 1", "with symbols"),
        ('echo \'{"$schema": "speedscope", "profiles": []}\' > $output', "another one's"),
    ],
)
def test_where_py_spy_cannot_the_profile_is_left_out_with_one_line(
    script: str, reason: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Without the right to trace, without symbols, and for a damaged or foreign file."""
    assert _run(tmp_path, script) == []
    (record,) = [one for one in caplog.records if one.levelname == "WARNING"]
    assert reason in record.getMessage()
    assert "\n" not in record.getMessage()


def test_the_time_in_which_py_spy_gets_ready_belongs_to_no_sample(tmp_path: Path) -> None:
    """Beside a process with many children that takes it seconds: its samples weigh no more."""
    me = os.getpid()
    stack = f'process {me}:"x";thread ({me}): MainThread;fit (/x/job.py:3) 5'
    said = "py-spy> Sampling process 50 times a second"
    (raw,) = _run(tmp_path, f"sleep 0.6; echo '{said}'; sleep 0.1; echo '{stack}' > $output")
    assert 0.09 < _seconds([raw], "fit", 3) < 0.5


def test_the_time_between_two_pieces_belongs_to_the_threads_that_are_in_both() -> None:
    """A thread that has ended meanwhile did not live then."""
    stays, ended = FoldedStack(1, 1, (), 100), FoldedStack(1, 2, (), 50)
    pieces = [Piece(10.0, 12.0, (stays, ended)), Piece(13.0, 15.0, (stays,))]
    first, last = _weigh_samples(pieces)
    assert first == {(1, 1): 0.025, (1, 2): 0.02}
    assert last == {(1, 1): 0.025}


@alone
def test_py_spy_is_no_child_of_the_job() -> None:
    """A job that waits for all its children does not wait for it, and finds none."""
    engine = PySpyEngine(None, shutil.which("sleep") or "")
    engine.begin()
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)
    engine.end()


def test_an_engine_that_is_not_installed_is_a_setting_that_cannot_be_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One line that says what to install."""
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(SettingError, match=r"pyspy|from Python 3\.11 on; this is"):
        find_py_spy()


def test_the_wrapper_and_what_it_forked_are_not_in_the_profile_of_its_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Signals are told apart by a fork of the wrapper, which py-spy samples, too."""
    ours, command, helper = os.getpid(), 10**8 + 1, 10**8 + 2
    monkeypatch.setattr(py_spy, "own_children", {helper})
    stacks = [
        f'process {pid}:"x";thread ({pid}): MainThread;{name} (/x/job.py:3) 4'
        for pid, name in ((ours, "wrap"), (helper, "wrap"), (command, "fit"))
    ]
    written = "\\n".join(stacks)
    first = f"echo 'Sampling process'; sleep 0.3; printf '{written}\\n' > $output; exit 0"
    script = f"case $output in *.1) {first};; esac"
    found = _run(tmp_path, script, is_command=True)
    assert {one.name for raw in found for one in raw.functions} == {"fit"}


def test_folded_stacks_have_functions_and_no_command_line() -> None:
    """py-spy's frames include command lines and names of threads, which may hold a secret."""
    process = 'process 7:"python -c import os\n#a;b (c) 5\nprint(1) --token=abc"'
    text = (
        f"{process};thread (7): MainThread;fit (/x/job.py:3);fit (/x/job.py:3) 4\n"
        f'{process};process 9:"sh;x 3";thread (12): se;cret 1\nb;<lambda> (/x/my job.py:8) 2\n'
    )
    first, second = read_folded(text)
    assert (first.pid, first.thread, first.count) == (7, 7, 4)
    assert [one.name for one in first.functions] == ["fit"]
    assert (second.pid, second.thread, second.count) == (9, 12, 2)
    assert [one.name for one in second.functions] == ["<lambda>"]
    with pytest.raises(DocumentError):
        list(read_folded("[1]"))
