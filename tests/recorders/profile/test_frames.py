"""What functions are called: short, without the machine's paths, and cells by their number."""

from __future__ import annotations

import json
from pathlib import Path
from types import CodeType, SimpleNamespace
from typing import Any

import pytest

import mlflow_perf
from mlflow_perf.model.samples import Function
from mlflow_perf.recorders.profile.frames import FrameNames


def _code(file: str, name: str = "work") -> CodeType:
    def work() -> None: ...

    facts: dict[str, Any] = {"co_filename": file, "co_name": name, "co_firstlineno": 9}
    if hasattr(work.__code__, "co_qualname"):
        facts["co_qualname"] = name
    return work.__code__.replace(**facts)


def _name(names: FrameNames, file: str, name: str = "work") -> Function:
    return names.list_functions([_code(file, name)])[0]


def test_a_deleted_folder_names_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job may have been started in a folder that somebody has tidied away."""
    folder = tmp_path / "gone"
    folder.mkdir()
    monkeypatch.chdir(folder)
    folder.rmdir()
    assert _name(FrameNames(), "/home/me/secret/b.py") == Function("work", "b.py", 9, False)


def test_files_are_relative_to_folder_or_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither a user's home nor a customer's name is in a profile."""
    monkeypatch.chdir(tmp_path)
    names = FrameNames()
    assert _name(names, str(tmp_path / "src" / "a.py"))[1:] == ("src/a.py", 9, False)
    assert _name(names, "/home/me/venv/lib/python3.11/site-packages/pandas/io.py").file == (
        "pandas/io.py"
    )
    assert _name(names, "/home/me/secret/b.py") == Function("work", "b.py", 9, False)
    assert _name(names, json.decoder.__file__)[1:] == ("json/decoder.py", 9, True)
    assert _name(names, "<string>").file == "<string>"


def test_the_line_of_a_stack_is_that_of_its_innermost_named_frame() -> None:
    """Where a frame of ours, or a lock that we wait for, is below it: theirs was shown as its."""
    job, comprehension = _code("/home/me/job.py"), _code("/home/me/job.py", "<listcomp>")
    library = _code(json.decoder.__file__, "wait")
    ours = _code(str(Path(mlflow_perf.__file__).parent / "session" / "report.py"))
    names = FrameNames()
    assert names.find_innermost([job]) == 0
    assert names.find_innermost([library, job]) == 0
    assert names.find_innermost([ours, job]) == 1
    assert names.find_innermost([library, ours, library, ours, job]) == 4
    assert names.find_innermost([comprehension, job]) == 0
    assert names.find_innermost([ours, comprehension, job]) == 1
    assert names.find_innermost([ours]) == 0


def test_cells_have_their_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel's own table of cells is asked; IPython's older names say it themselves."""
    file = "/tmp/ipykernel_12/345.py"
    shell = SimpleNamespace(compile=SimpleNamespace(_filename_map={file: 4}))
    module = SimpleNamespace(InteractiveShell=SimpleNamespace(_instance=shell))
    monkeypatch.setitem(__import__("sys").modules, "IPython.core.interactiveshell", module)
    names = FrameNames()
    assert _name(names, file, "<module>")[:2] == ("cell 4", "cell 4")
    assert _name(names, "<ipython-input-7-abc>", "load")[:2] == ("load", "cell 7")
    assert _name(names, "/tmp/ipykernel_12/999.py").file == "cell"


def test_frames_between_functions_are_left_out() -> None:
    """The import system, comprehensions, event loops and mlflow-perf are not the job's."""
    import asyncio.base_events

    import mlflow_perf.session.report

    names = FrameNames()
    codes = [
        _code("/job/inner.py", "inner"),
        _code(asyncio.base_events.__file__, "_run_once"),
        _code("<frozen importlib._bootstrap>", "_load"),
        _code("/job/inner.py", "<listcomp>"),
        _code(mlflow_perf.session.report.__file__, "__enter__"),
        _code("/job/outer.py", "outer"),
    ]
    assert [one.name for one in names.list_functions(codes)] == ["outer", "inner"]


def test_deep_stacks_keep_both_ends() -> None:
    """Of a thousand functions the outermost and the innermost are kept."""
    codes = [_code("/job/a.py", f"f{i}") for i in range(1000)]
    found = [one.name for one in FrameNames().list_functions(codes)]
    assert len(found) <= 121
    assert (found[0], found[-1]) == ("f999", "f0")
    assert "(deeper functions)" in found


def test_waits_at_the_ends_of_a_block_are_left_out() -> None:
    """`__exit__` joins threads: neither it nor the lock that it waits for is the job's work."""
    import threading

    import mlflow_perf.session.report as of_session

    job = _code("/home/me/train.py", "train")
    ours = _code(str(of_session.__file__), "__exit__")
    waiting = _code(str(threading.__file__), "wait")
    found = FrameNames().list_functions([waiting, ours, job])
    assert [function.name for function in found] == ["train"]
