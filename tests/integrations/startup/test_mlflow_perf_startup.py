"""Rules of being called when a module is imported."""

from __future__ import annotations

import importlib
import inspect
import os
import pstats
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from tests.alone import alone

from mlflow_perf.integrations import startup
from mlflow_perf.integrations.startup import _mlflow_perf_startup

NAME = "mlflow_perf_test_module"


def write_module(folder: Path) -> Path:
    """Put a module that tells its loaders into a folder, and return the folder."""
    text = "def f():\n    return __loader__, __spec__.loader\n"
    (folder / f"{NAME}.py").write_text(text)
    return folder


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The name of a module that can be imported and has not been."""
    monkeypatch.syspath_prepend(write_module(tmp_path))
    yield NAME
    startup.forget(NAME)
    sys.modules.pop(NAME, None)


def test_called_once_when_imported(module: str) -> None:
    """The function gets the module when it is imported, not before, and only once."""
    seen: list[ModuleType] = []
    startup.call(module, seen.append)
    assert seen == []
    imported = importlib.import_module(module)
    importlib.import_module(module)
    assert seen == [imported]


def test_called_at_once_for_what_is_imported_already(module: str) -> None:
    """A module that is there is handed over at once."""
    imported = importlib.import_module(module)
    seen: list[ModuleType] = []
    startup.call(module, seen.append)
    assert seen == [imported]


@alone
def test_module_is_as_without_us(tmp_path: Path) -> None:
    """The module has its own loader and source, and the import system forgets us."""
    # Alone: a library that other tests import, beartype, puts loaders of its own into the process.
    sys.path.insert(0, str(write_module(tmp_path)))
    before = list(sys.meta_path)
    startup.call(NAME, lambda found: None)
    imported = importlib.import_module(NAME)
    assert {type(loader).__name__ for loader in imported.f()} == {"SourceFileLoader"}
    assert "return" in inspect.getsource(imported.f)
    startup.forget(NAME)
    assert sys.meta_path == before


def test_forgotten_before_it_is_imported(module: str) -> None:
    """After forget, importing calls nothing."""
    seen: list[ModuleType] = []
    startup.call(module, seen.append)
    startup.forget(module)
    importlib.import_module(module)
    assert seen == []


@pytest.mark.parametrize("imported", [False, True])
def test_a_fault_of_ours_does_not_stop_an_import(
    module: str, imported: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """A function that raises costs one warning; the module is imported all the same."""

    def fail(found: ModuleType) -> None:
        raise AttributeError("not the module that we know")

    if imported:
        importlib.import_module(module)
    startup.call(module, fail)
    assert importlib.import_module(module).f
    assert len(caplog.records) == 1


def test_module_that_does_not_exist() -> None:
    """A module that is waited for and is not there fails to import as without us."""
    startup.call("mlflow_perf_no_such_module", lambda found: None)
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("mlflow_perf_no_such_module")
    startup.forget("mlflow_perf_no_such_module")


def test_no_thread_of_ours_runs_a_file_of_the_job_that_hides_a_module(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder of scripts with an `opcode.py`: the job that does not import it would run it."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "opcode", raising=False)
    assert not _mlflow_perf_startup._hides_needed()
    (tmp_path / "opcode").mkdir()
    (tmp_path / "statement.py").touch()
    assert not _mlflow_perf_startup._hides_needed()
    (tmp_path / "opcode.py").touch()
    importlib.invalidate_caches()
    assert _mlflow_perf_startup._hides_needed()


def test_the_modules_that_the_sampler_imports_are_known() -> None:
    """Those of Python, which a file of the job could hide."""
    listing = (
        "import os, sys; before = {*sys.modules}; "
        "import mlflow_perf.recorders.profile.live, resource; "
        "new = {name for name in sys.modules.keys() - before if name in sys.stdlib_module_names}; "
        "print(*[name for name in new - {*sys.builtin_module_names} if name[0] != '_'])"
    )
    run = subprocess.run(
        [sys.executable, "-Sc", listing],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        check=True,
    )
    assert {*run.stdout.split()} <= {*_mlflow_perf_startup._NEEDED}


_OWN_IMPORT = """\
import _thread, builtins, sys
sys.path.insert(0, sys.argv[1])
import _mlflow_perf_startup as startup
given, main, asked, done = __import__, _thread.get_ident(), [], _thread.allocate_lock()

def load(name, *args):
    if _thread.get_ident() != main:
        asked.append(name)
    return given(name, *args)

builtins.__import__ = load
done.acquire()
startup._forget_profiler = done.release  # after the import, or without it
startup._begin_sampling()
print(done.acquire(True, 60), asked)
"""


def test_no_thread_of_ours_calls_an_import_function_of_the_job() -> None:
    """A mock of `builtins.__import__` would count the sampler's imports."""
    folder = Path(inspect.getfile(startup)).parent
    command = [sys.executable, "-c", _OWN_IMPORT, str(folder)]
    assert subprocess.check_output(command, text=True, timeout=90) == "True []\n"


_MEETING = """\
import importlib.util, sys, time
sys.path.insert(0, sys.argv[1])
import _mlflow_perf_startup as startup
startup._PATIENCE_SEC = 60.0
sys.meta_path.insert(0, startup._finder)
startup._begin_sampling(60.0)
while not startup._meetings:
    time.sleep(0.01)

def tell():
    print("mlflow_perf.recorders.profile.live" in sys.modules)

importlib.util.find_spec("mlflow_perf_no_such_module")
import json
sys.settrace(lambda *_: None)
import colorsys
sys.settrace(None)
tell()
try:
    import mlflow_perf_no_such_module
except ImportError:
    tell()
before = {*sys.modules}
time.sleep(0.3)
import chunk_of_nothing_else
print(*sys.modules.keys() - before)
"""


def test_the_sampler_is_imported_while_the_job_imports_something(tmp_path: Path) -> None:
    """A loop over `sys.modules` itself cannot run then, and finds nothing of ours later."""
    folder = Path(inspect.getfile(startup)).parent
    (tmp_path / "chunk_of_nothing_else.py").touch()
    output = subprocess.check_output(
        [sys.executable, "-c", _MEETING, str(folder)], text=True, timeout=90,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])},
    )  # fmt: skip
    assert output.split() == ["False", "True", "chunk_of_nothing_else"]


_WAITING = """\
import sys, time
sys.path.insert(0, sys.argv[1])
import _mlflow_perf_startup as startup
sys.meta_path.insert(0, startup._finder)
startup._begin_sampling(60.0)
seen = {len(sys._current_frames())}
while not startup._meetings:
    seen.add(len(sys._current_frames()))
for _ in range(10):
    time.sleep(0.01)
    seen.add(len(sys._current_frames()))
print(seen)
"""


def test_the_thread_that_waits_to_import_has_no_frame() -> None:
    """A child that is forked early, and asks whether it is alone, is."""
    folder = Path(inspect.getfile(startup)).parent
    command = [sys.executable, "-c", _WAITING, str(folder)]
    assert subprocess.check_output(command, text=True, timeout=90) == "{1}\n"


_LONG_CALL = """\
import sys, threading, time
sys.path.insert(0, sys.argv[1])
import _mlflow_perf_startup as startup
sys.setswitchinterval(0.004)
with startup._Hurry():
    seen = [sys.getswitchinterval()]
    for _ in range(3):
        startup._clock = iter([startup._clock() + len(seen)]).__next__
        startup._on_search[0]()
        startup._clock = time.monotonic
        seen.append(sys.getswitchinterval())
print(*[round(one, 6) for one in [*seen, sys.getswitchinterval()]], startup._on_search)
"""


def test_an_import_beside_a_long_call_into_c_asks_less_and_less_often() -> None:
    """Each question for the interpreter's lock took 15 µs, 10,000 times a second."""
    folder = Path(inspect.getfile(startup)).parent
    command = [sys.executable, "-c", _LONG_CALL, str(folder)]
    output = subprocess.check_output(command, text=True, timeout=90)
    assert output == "0.0001 0.001 0.004 0.004 0.004 []\n"


_STREAMS = """
import sys
print("early"); sys.stderr.write("early")
sys.stdout, sys.stderr = open("log", "w"), None
print("to the log")
"""


def test_streams_that_a_command_replaces_are_flushed(tmp_path: Path) -> None:
    """An old stream is flushed as its last holder goes: one that we held lost what was printed."""
    (tmp_path / "job.py").write_text(_STREAMS)
    not_of_users = ("PYTHONUNBUFFERED", "MLFLOW_PERF_PROFILE")
    variables = {k: v for k, v in os.environ.items() if k not in not_of_users}
    done = subprocess.run(
        [sys.executable, "-m", "mlflow_perf", "run", "--", sys.executable, "job.py"],
        cwd=tmp_path, check=True, timeout=120, capture_output=True, text=True,
        env={**variables, "MLFLOW_TRACKING_URI": f"sqlite:///{tmp_path}/runs.db"},
    )  # fmt: skip
    assert done.stdout == "early\n"
    assert done.stderr.startswith("early")
    assert (tmp_path / "log").read_text() == "to the log\n"


_JOB = """\
import time
def alpha(): burn(0.5)
def beta(): burn(0.2)
def burn(seconds):
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass
alpha(); beta()
"""


@pytest.mark.skipif(sys.version_info < (3, 12), reason="cProfile sees all threads from 3.12 on")
def test_cprofile_of_a_command_counts_the_job_alone(tmp_path: Path) -> None:
    """Neither the import of the sampler nor the sampler is in it, nor ends functions of the job."""
    (tmp_path / "job.py").write_text(_JOB)
    command = ["-m", "cProfile", "-o", "found.prof", "job.py"]
    subprocess.run(
        [sys.executable, "-m", "mlflow_perf", "run", "--", sys.executable, *command],
        cwd=tmp_path, check=True, timeout=120, capture_output=True,
        env={**os.environ, "MLFLOW_TRACKING_URI": f"sqlite:///{tmp_path}/runs.db"},
    )  # fmt: skip
    rows = pstats.Stats(str(tmp_path / "found.prof")).stats  # type: ignore[attr-defined]
    assert {file for file, _, _ in rows} == {"job.py", "~"}
    cumulated = {name: row[3] for (_, _, name), row in rows.items()}
    assert cumulated["alpha"] > 0.49
    assert cumulated["beta"] > 0.19


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("limit", ["-v", "-d"])
@pytest.mark.parametrize(("rate", "threads"), [("null", 1), ("50.0", 2)])
def test_no_thread_takes_the_addresses_that_ulimit_leaves(
    tmp_path: Path, rate: str, threads: int, limit: str
) -> None:
    """Its stack and its arena are 76 MB, which a job that just fits would lack."""
    (tmp_path / "profile.json").write_text(f'{{"rate_hz": {rate}, "seccomp_filters": 9}}')
    code = "import os; print(len(os.listdir('/proc/self/task')))"
    environ = {"PYTHONPATH": str(Path(startup.__file__).parent), "MLFLOW_PERF_SPOOL": str(tmp_path)}
    command = ["sh", "-c", f'ulimit {limit} 8000000; exec {sys.executable} -c "{code}"']
    output = subprocess.check_output(command, env={**os.environ, **environ}, text=True)
    assert int(output) == threads


def test_no_thread_of_ours_begins_in_a_sub_interpreter(tmp_path: Path) -> None:
    """It outlived the interpreter, at whose end the process aborted: one with the lock of all."""
    (tmp_path / "profile.json").write_text('{"seccomp_filters": 9}')
    code = (
        "try:\n    import _xxsubinterpreters as they\n    one = they.create(isolated=False)\n"
        "except ImportError:\n    import _interpreters as they\n    one = they.create('legacy')\n"
        "they.run_string(one, 'x = 1')\nthey.destroy(one)\nprint('done')"
    )
    environ = {"PYTHONPATH": str(Path(startup.__file__).parent), "MLFLOW_PERF_SPOOL": str(tmp_path)}
    output = subprocess.check_output(
        [sys.executable, "-c", code], env={**os.environ, **environ}, text=True
    )
    assert output == "done\n"
