"""The job's mocks are called by the job alone, never by a thread of ours."""

from __future__ import annotations

import builtins
import os
import resource
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import mlflow_perf
from mlflow_perf.core import originals, replaced
from mlflow_perf.readers import defaults
from mlflow_perf.session import stand_ins

_MOCKED = (
    (builtins, "open"), (os, "getpid"), (os, "listdir"), (os, "statvfs"), (os, "open"),
    (os, "read"), (os, "write"), (os, "close"), (os, "fsync"), (os, "replace"), (time, "time"),
    (time, "monotonic"), (time, "thread_time"), (time, "clock_gettime"), (sys, "_current_frames"),
    (resource, "getrusage"),
)  # fmt: skip


class _Counting:
    """A reader that says when a number of samples was taken."""

    name, columns = "counting", ()

    def __init__(self, enough: threading.Event, count: int) -> None:
        self._enough, self._left = enough, count

    def read(self, report: Any) -> None:
        self._left -= 1
        if not self._left:
            self._enough.set()

    def close(self) -> None:
        pass


def test_no_thread_of_ours_calls_a_mock_of_the_job(
    store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mock with `side_effect=[…]` was used up by our samplers, and the job then failed."""
    monkeypatch.setenv("MLFLOW_PERF_PROFILE", "50")
    enough, me, called = threading.Event(), threading.get_ident(), set[str]()
    monkeypatch.setattr(defaults, "_added", [lambda: _Counting(enough, 20)])
    with mlflow_perf.report("mocks", interval=0.05), monkeypatch.context() as patch:
        for module, name in _MOCKED:
            original = getattr(module, name)

            def spy(*args: Any, of: Any = original, called_as: str = name, **options: Any) -> Any:
                if threading.get_ident() != me:
                    called.add(called_as)
                return of(*args, **options)

            patch.setattr(module, name, spy)
        assert enough.wait(120)
    assert called == set()


_JOB = """\
import atexit, builtins, gc, os, sys, threading, time
wait, now, list_folder, me = time.sleep, time.monotonic, os.listdir, threading.get_ident
called, main = set(), me()

def replace(module, name, original):
    def spy(*args, **options):
        if me() != main:
            called.add(f"{module.__name__}.{name}")
        return original(*args, **options)
    setattr(module, name, spy)

shown = {sys: ("_current_frames", "getswitchinterval", "setswitchinterval"), builtins: ("open",),
         threading: ("RLock", "main_thread")}
for module in (atexit, gc, os, time, *shown):
    for name, one in [*vars(module).items()]:
        if callable(one) and not isinstance(one, type) and name in shown.get(module, vars(module)):
            replace(module, name, one)
end = now() + 60
while now() < end and not any(n.startswith("stacks-") for n in list_folder(sys.argv[1])):
    wait(0.01)
print(now() < end, sorted(called), sorted({"logging", "pathlib", "random"} & sys.modules.keys()))
"""


def test_nor_does_the_thread_in_a_command_under_run(
    store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is loaded while the command works, so what it imports may call what the job replaced."""
    monkeypatch.setenv("MLFLOW_PERF_PROFILE", "50")
    script = tmp_path / "job.py"
    script.write_text(_JOB, encoding="utf-8")
    job = ["sh", "-c", f'{sys.executable} {script} "$MLFLOW_PERF_SPOOL"']
    wrapped = [sys.executable, "-m", "mlflow_perf", "run", "--", *job]
    done = subprocess.run(wrapped, capture_output=True, text=True, timeout=100, check=False)
    assert (done.returncode, done.stdout) == (0, "True [] []\n"), done.stderr


def test_a_module_that_was_patched_before_is_loaded_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """So a clock that was replaced before mlflow-perf was imported is not called either."""
    monkeypatch.setattr(time, "monotonic", lambda: 0.0)
    assert originals.load_native("time", "monotonic").monotonic() > 0.0
    assert originals.load_native("gc", "collect").collect is not None


def test_the_environment_is_the_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy of `os` has the same `environ`, and Python's own functions."""
    monkeypatch.setenv("MINE", "1")
    assert originals.os.environ["MINE"] == "1"
    assert originals.os.environ is os.environ
    assert originals.os.path.join is os.path.join


def test_a_block_in_replaced_files_says_that_it_is_not_reported(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its run and document would be in files that nobody sees; the job goes on."""

    class FakeOs:
        """What pyfakefs puts into each module."""

    monkeypatch.setattr(replaced, "os", FakeOs())
    monkeypatch.setattr(stand_ins, "_told", set())
    with mlflow_perf.report("job") as perf:
        assert perf.run_id is None
    by = FakeOs.__module__.partition(".")[0]
    said = f"mlflow-perf: the block 'job' is not reported: {by} replaces the system's files\n"
    assert capsys.readouterr().err == said
