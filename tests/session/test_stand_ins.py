"""Blocks in tests of the job, whose mocks count its calls or have one value for each."""

from __future__ import annotations

import builtins
import contextlib
import importlib
import os
import pathlib
import pkgutil
import signal
import subprocess
import sys
import threading
import time
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import mlflow
import pytest

import mlflow_perf
from mlflow_perf.core.replaced import explain_replaced, is_mock
from mlflow_perf.publish.recovery import read_journal
from mlflow_perf.reports.html import load_modules
from mlflow_perf.session import autolog as autolog_module
from mlflow_perf.session import report as report_module
from mlflow_perf.session import stand_ins

MOCKED = [
    "builtins.open", "getpass.getuser", "json.dumps", "logging.getLogger", "os.cpu_count",
    "os.fork", "os.getcwd", "os.getpid", "os.listdir", "os.makedirs", "os.path.exists",
    "os.replace", "os.sched_getaffinity", "os.stat", "os.statvfs", "pathlib.Path.exists",
    "pathlib.Path.mkdir", "random.random", "requests.Session.request", "shutil.rmtree",
    "signal.signal", "socket.gethostname", "socket.socket", "subprocess.Popen",
    "tempfile.mkdtemp", "threading.Thread", "time.monotonic", "time.perf_counter",
    "time.process_time", "time.sleep", "time.time", "time.time_ns", "uuid.uuid4",
]  # fmt: skip


@pytest.fixture(autouse=True)
def _nothing_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stand_ins, "_told", set())


@pytest.mark.parametrize("name", MOCKED)
def test_no_call_of_ours_takes_a_value_of_a_mock(name: str) -> None:
    """Neither the block's begin nor its end nor the line about it."""
    importlib.import_module(name.partition(".")[0])
    with mock.patch(name, side_effect=[]) as mocked:
        with mlflow_perf.report("job") as perf, mlflow_perf.report("inner"):
            pass
        assert mocked.call_count == 0
    assert perf.run_id is None


def test_a_mock_with_a_signature_counts_too() -> None:
    """With `autospec` it is a function."""
    with mock.patch("time.sleep", autospec=True) as sleep:
        with mlflow_perf.report("job") as perf:
            time.sleep(1.0)
        sleep.assert_called_once_with(1.0)
    assert perf.run_id is None


def test_a_mock_in_the_place_of_mlflow_is_not_called(monkeypatch: pytest.MonkeyPatch) -> None:
    """A test may do without it altogether."""
    fake = mock.MagicMock()
    monkeypatch.setitem(sys.modules, "mlflow", fake)
    with mlflow_perf.report("job") as perf:
        pass
    assert (fake.mock_calls, perf.run_id) == ([], None)


def test_one_line_says_what_is_replaced(capsys: pytest.CaptureFixture[str]) -> None:
    """A suite of a thousand tests with the same mock needs it once."""
    for _ in range(2):
        with mock.patch("time.sleep"), mlflow_perf.report("job"):
            pass
    said = "mlflow-perf: the block 'job' is not reported: a mock replaces time.sleep\n"
    assert capsys.readouterr().err == said


def test_a_mock_of_the_standard_error_hears_nothing() -> None:
    """The line has no other place."""
    with mock.patch("sys.stderr") as stream, mlflow_perf.report("job") as perf:
        pass
    assert (stream.mock_calls, perf.run_id) == ([], None)


def _next_of(values: Iterator[float]) -> list[Callable[[], float]]:
    return [values.__next__, lambda: next(values)]


@pytest.mark.parametrize("kind", [0, 1])
def test_a_clock_with_few_values_keeps_them(kind: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A test may replace a clock without a mock."""
    values = iter([1.0, 3.5])
    monkeypatch.setattr(time, "time", _next_of(values)[kind])
    with mlflow_perf.report("job") as perf:
        took_sec = -(time.time() - time.time())
    assert (took_sec, perf.run_id) == (2.5, None)


def test_a_block_that_mocks_inside_is_reported(store: str) -> None:
    """It began, and ended, with the functions of the system."""
    with mlflow_perf.report("job") as perf:
        with mock.patch("os.getpid", side_effect=[1, 2]):
            assert (os.getpid(), os.getpid()) == (1, 2)
        with mock.patch.object(pathlib.Path, "exists", side_effect=[True]):
            assert pathlib.Path("x").exists()
    assert perf.run_id is not None


def test_a_run_of_autolog_that_meets_a_mock_is_not_reported(
    store: str, capsys: pytest.CaptureFixture[str], request: Any
) -> None:
    """Its figures would cost calls of the job's own functions."""
    mlflow_perf.autolog()
    request.addfinalizer(lambda: mlflow_perf.autolog(disable=True))
    with mock.patch("time.sleep") as sleep, mlflow.start_run() as run:
        pass
    assert sleep.call_count == 0
    said = f"the run {run.info.run_id!r} is not reported: a mock replaces time.sleep"
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    "name",
    [
        "copy.deepcopy", "fcntl.fcntl", "hashlib.sha256", "math.sqrt", "mmap.mmap", "numpy.array",
        "os.fspath", "re.compile", "resource.getrlimit", "resource.getrusage", "sys.intern",
        "threading.Thread.start", "threading.current_thread", "threading.get_ident", "weakref.ref",
    ],
)  # fmt: skip
def test_a_mock_anywhere_in_python_is_noticed(name: str) -> None:
    """Nobody keeps a list of what a report and MLflow call."""
    with mock.patch(name) as mocked:
        with mlflow_perf.report("job") as perf:
            pass
        assert mocked.call_count == 0
    assert perf.run_id is None


@pytest.mark.parametrize("name", ["re.compile", "os.getpid", "time.monotonic"])
def test_nothing_is_imported_under_a_mock(name: str) -> None:
    """Its answers would stay in our modules; the name has its effect later."""
    code = f"""
import os, re, time
from unittest import mock
import mlflow_perf
with mock.patch({name!r}) as mocked:
    with mlflow_perf.report("job"):
        pass
    print(mocked.call_count)
print(mlflow_perf.report.__module__)
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ended.stdout.split() == ["0", "mlflow_perf.session.report"]
    assert ended.stderr == f"mlflow_perf.report has no effect: a mock replaces {name}.\n"


@pytest.mark.parametrize("in_test", [True, False])
def test_a_function_of_a_test_is_noticed_in_a_test(
    in_test: bool, monkeypatch: pytest.MonkeyPatch, store: str
) -> None:
    """Pytest's `monkeypatch` is as usual as mocks; a job in use may have good reasons for one."""
    if not in_test:
        monkeypatch.delenv("PYTEST_CURRENT_TEST")
    original, calls = os.path.isfile, list[object]()

    def is_file(path: Any) -> bool:
        calls.append(path)
        return original(path)

    monkeypatch.setattr(os.path, "isfile", is_file)
    with mlflow_perf.report("job") as perf:
        pass
    assert (perf.run_id is None) == in_test
    assert not (in_test and calls)


def test_what_python_and_libraries_have_replaced_is_no_stand_in() -> None:
    """Otherwise no block of this process would be reported."""
    assert explain_replaced() == ""
    kept = mock.MagicMock()  # of a module of the job's
    assert explain_replaced() == ""
    assert is_mock(kept)


def test_a_clock_of_freezegun_is_not_moved(monkeypatch: pytest.MonkeyPatch) -> None:
    """With `auto_tick_seconds` each look at it moves it."""
    looks: list[int] = []
    code = compile(
        "def fake_time():\n    looks.append(1)\n    return 0.0", "site-packages/f.py", "exec"
    )
    names: dict[str, Any] = {"looks": looks, "__name__": "freezegun.api"}
    exec(code, names)
    monkeypatch.setattr(time, "time", names["fake_time"])
    with mlflow_perf.report("job") as perf:
        pass
    assert (looks, perf.run_id) == ([], None)
    assert explain_replaced() == "freezegun replaces time.time"


@pytest.mark.parametrize(
    "name",
    [
        "fcntl.fcntl", "json.dumps", "logging.getLogger", "os.getpid", "os.listdir", "os.makedirs",
        "os.open", "os.unlink", "pathlib.Path.mkdir", "shutil.rmtree", "tempfile.mkdtemp",
        "threading.Event", "threading.Thread.is_alive", "threading.current_thread",
        "time.process_time",
    ],
)  # fmt: skip
@pytest.mark.parametrize("end_first", ["block", "exit"])
def test_the_report_of_a_block_that_a_mock_outlives_comes_later(
    name: str, end_first: str, store: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """pytest-mock starts it in the block, and stops it when the test has ended."""
    patcher = mock.patch(name)
    with mlflow_perf.report("job") as perf:
        mocked = patcher.start()
        time.sleep(0.01)
    shown = pkgutil.resolve_name(name.replace(".", ":", 1))
    patcher.stop()
    assert (mocked.call_count, shown) == (0, mocked)
    assert not is_mock(pkgutil.resolve_name(name.replace(".", ":", 1)))
    assert not perf.summary
    time.sleep(0.3)  # of no block
    if end_first == "exit":
        report_module._finish_at_exit()
    else:
        with mlflow_perf.report("next"):
            assert perf.summary
    assert 0.01 < perf.summary["duration_sec"] < 0.25
    run = mlflow.get_run(str(perf.run_id))
    assert (run.info.status, "duration_sec" in run.data.metrics) == ("FINISHED", True)
    assert f"mlflow-perf: the block 'job' is reported later: a mock replaces {name}" in (
        capfd.readouterr().err
    )


@pytest.mark.parametrize(("raised", "status"), [(None, "FINISHED"), (KeyError, "FAILED")])
def test_a_block_whose_mock_stays_to_the_exit_has_its_end_in_the_journal(
    raised: type[Exception] | None,
    status: str,
    store: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A forgotten `addCleanup`; or a child of multiprocessing, which has no exit handlers."""
    monkeypatch.setenv("MLFLOW_PERF_DIR", str(tmp_path / "own"))
    patcher = mock.patch("os.open")
    with contextlib.suppress(KeyError), mlflow_perf.report("job") as perf:
        mocked = patcher.start()
        time.sleep(0.2)
        if raised is not None:
            raise raised
    report_module._finish_at_exit()
    count = mocked.call_count
    patcher.stop()
    assert (count, len([*(tmp_path / "own").glob("*.journal")])) == (0, 1)
    data = next((tmp_path / "own").glob("*.journal")).read_bytes()
    delivery, cause = read_journal(data)
    found = delivery.document
    told = delivery.tags.get("mlflow_perf.cause")
    assert (found.status, told) == (status, raised and "KeyError")
    assert found.summary["duration_sec"] == pytest.approx(0.25, abs=0.15)
    assert cause == "the process ended before its report was sent"
    report_module._finish_postponed()
    assert mlflow.get_run(str(perf.run_id)).info.status == status


def test_a_block_that_is_open_at_the_exit_calls_no_mock(
    store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`mlflow_perf.start()` without `stop()`: its report is in the journal."""
    monkeypatch.setenv("MLFLOW_PERF_DIR", str(tmp_path / "own"))
    session = mlflow_perf.start("job")
    with mock.patch("os.open") as mocked:
        report_module._finish_at_exit()
    assert (mocked.call_count, session.summary) == (0, {})
    data = next((tmp_path / "own").glob("*.journal")).read_bytes()
    assert read_journal(data)[0].document.status == "KILLED"
    report_module._finish_postponed()
    assert session.summary


def test_a_signal_that_ends_a_block_among_mocks_calls_none(
    store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its report is in the journal, as after a kill, with the signal."""
    monkeypatch.setenv("MLFLOW_PERF_DIR", str(tmp_path / "own"))
    with mlflow_perf.report("job") as perf:
        with mock.patch("os.open") as mocked:
            perf._on_fatal(signal.SIGTERM)
        data = next((tmp_path / "own").glob("*.journal")).read_bytes()
    assert mocked.call_count == 0
    assert read_journal(data)[0].tags["mlflow_perf.cause"] == "SIGTERM"


def test_a_run_that_is_open_at_the_exit_calls_no_mock(store: str) -> None:
    """It is the job's own, which MLflow ends."""
    mlflow_perf.autolog()
    try:
        with mlflow.start_run() as run, mock.patch("os.open") as mocked:
            autolog_module.finish_at_exit()
        assert mocked.call_count == 0
    finally:
        mlflow_perf.autolog(disable=True)
    assert "duration_sec" not in mlflow.get_run(run.info.run_id).data.metrics


def test_the_same_object_begins_again_after_a_block_that_is_reported_later(store: str) -> None:
    """A module's own, in a loop of tests."""
    session, runs = mlflow_perf.report("job"), []
    for _ in range(3):
        with session, contextlib.ExitStack() as later:
            runs.append(str(session.run_id))
            later.enter_context(mock.patch("os.open"))
            kept = later.pop_all()
        assert report_module.current() is None
        kept.close()
    with mlflow_perf.report("last"):
        pass
    assert {mlflow.get_run(run).info.status for run in runs} == {"FINISHED"}
    assert len({*runs}) == 3


def test_a_mock_is_in_its_place_for_other_threads_while_a_block_ends(store: str) -> None:
    """One that was put aside meanwhile would let them delete what the test protects."""
    real, is_over = list[str](), threading.Event()

    def clean() -> None:
        while not is_over.is_set():
            if os.getcwd() != "mocked":
                real.append(os.getcwd())

    with contextlib.ExitStack() as later, mlflow_perf.report("job"):
        later.enter_context(mock.patch("os.getcwd", return_value="mocked"))
        cleaner = threading.Thread(target=clean)
        cleaner.start()
        later.callback(cleaner.join)
        later.callback(is_over.set)
    assert not real


@pytest.mark.parametrize("name", ["builtins.open", "os.open", "os.unlink", "psutil.Process"])
def test_a_run_that_ends_among_mocks_has_no_report(name: str, store: str) -> None:
    """The job ends it itself; `mlflow_perf.autolog()` leaves it as it is."""
    autolog = mlflow_perf.autolog
    autolog(interval=2)  # with a journal from its start
    try:
        with contextlib.ExitStack() as later, mlflow.start_run() as run:
            mocked = later.enter_context(mock.patch(name))
        count = mocked.call_count
    finally:
        autolog(disable=True)
    found = mlflow.get_run(run.info.run_id)
    assert (count, found.info.status) == (0, "FINISHED")
    assert "duration_sec" not in found.data.metrics


def test_another_environment_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a report sets for child processes would be in the job's own dict."""
    monkeypatch.setattr(os, "environ", {"A": "1"})
    with mlflow_perf.report("job") as perf:
        pass
    assert perf.run_id is None
    assert list(os.environ) == ["A"]


class _Finder:
    def find_spec(self, name: str, *_: object) -> None:
        if name == "yaml":
            raise ImportError(name)


def _import(name: str, *args: Any, real: Any = builtins.__import__, **options: Any) -> Any:
    if name == "yaml":
        raise ImportError(name)
    return real(name, *args, **options)


def test_a_hidden_module_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """MLflow, imported meanwhile, would be without it for good."""
    assert explain_replaced() == ""
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "yaml", None)
        assert explain_replaced() == "the job hides the module yaml"
    with monkeypatch.context() as patch:
        patch.setattr(builtins, "__import__", _import)
        assert explain_replaced() == "the job replaces builtins.__import__"
    with monkeypatch.context() as patch:
        patch.setattr(sys, "meta_path", [_Finder(), *sys.meta_path])
        assert explain_replaced() == "the job's _Finder finds modules"
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "git", mock.MagicMock())
        assert explain_replaced() == "a mock replaces git"


HIDES = """
import sys
import mlflow_perf
hidden = sys.argv[1]
sys.modules[hidden] = None
with mlflow_perf.report("without"):
    pass
del sys.modules[hidden]
import mlflow
with mlflow.start_run():
    mlflow.log_metric("a", 1)
with mlflow_perf.report("with") as perf:
    pass
print(bool(perf.summary))
"""


@pytest.mark.parametrize("hidden", ["sqlalchemy", "sqlparse"])
def test_mlflow_is_whole_after_a_module_was_hidden(hidden: str, store: str) -> None:
    """Whether the job's own test noticed that or not."""
    environ = {name: value for name, value in os.environ.items() if name != "PYTEST_CURRENT_TEST"}
    done = subprocess.run(
        [sys.executable, "-c", HIDES, hidden],
        env={**environ, "MLFLOW_TRACKING_URI": store},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == "True\n", done.stderr
    assert done.stderr.count("hides the module sqlalchemy") == 2 * (hidden == "sqlalchemy")


def test_modules_that_a_test_sets_back_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is imported meanwhile would be lost; where all is imported, nothing is."""
    said = "a test's patch.dict replaces sys.modules"
    hides: dict[str, Any] = {"no_such_module": None}

    @mock.patch.dict("sys.modules", hides)
    def decorated() -> str:
        return explain_replaced()

    monkeypatch.setattr("mlflow_perf.core.replaced._whole", set())
    assert decorated() == said
    assert explain_replaced() == ""
    with mock.patch.dict(sys.modules):
        assert explain_replaced() == said
        load_modules()
        assert explain_replaced() == ""


SETS_BACK = """
import sys
from unittest import mock
import mlflow_perf
with mock.patch.dict(sys.modules, {"no_such_module": None}):
    with mlflow_perf.report("within"):
        pass
import numpy, mlflow
with mlflow.start_run():
    mlflow.log_metric("a", numpy.float64(1))
with mlflow_perf.report("after") as perf:
    pass
print(bool(perf.summary))
"""


def test_modules_are_imported_once_where_a_test_sets_them_back(store: str) -> None:
    """NumPy cannot be imported twice."""
    done = subprocess.run(
        [sys.executable, "-c", SETS_BACK],
        env={**os.environ, "MLFLOW_TRACKING_URI": store},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == "True\n", done.stderr
    assert "HTML" not in done.stderr


def test_a_class_of_a_test_is_noticed_and_a_hook_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hooks are there to be set."""

    class Popen:
        """Starts nothing."""

    monkeypatch.setattr(sys, "excepthook", lambda *_: None)
    monkeypatch.setattr(threading, "excepthook", lambda *_: None)
    assert explain_replaced() == ""
    monkeypatch.setattr(subprocess, "Popen", Popen)
    assert explain_replaced() == "the job replaces subprocess.Popen"


def test_a_lazy_module_stays_unloaded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever asks it for an attribute loads it."""

    class Lazy(types.ModuleType):
        def __getattribute__(self, name: str) -> Any:
            raise AssertionError(name)

    monkeypatch.setitem(sys.modules, "sunau", Lazy("sunau"))
    assert explain_replaced() == ""
