"""Fixtures for all tests: nothing leaks out of one, and nothing of this machine leaks in."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from tests.faults.nursery import Job, Nursery

import mlflow_perf
from mlflow_perf.core.thread_list import list_threads

os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
os.environ.setdefault("GIT_PYTHON_REFRESH", "quiet")
# A name that is first used while a test replaces a function of Python has no effect there.
_LOADED = [getattr(mlflow_perf, name) for name in mlflow_perf.__all__]

# The tests start hundreds of interpreters: without bytecode files each of them compiles our
# modules and MLflow's anew, which is a third of its CPU time.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# A shell without job control starts what it runs in the background with SIGINT and SIGQUIT ignored,
# `nohup` with SIGHUP, and so would be every process that a test starts to interrupt it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
for number in (signal.SIGHUP, signal.SIGQUIT):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, signal.SIG_DFL)

# The machines that run the tests are shared: a slow example is no fault.
settings.register_profile("shared", deadline=None, max_examples=50)
settings.load_profile("shared")


def pytest_configure(config: pytest.Config) -> None:
    """Keep the order below: xdist would put the files of many tests first, however short."""
    config.option.loadscopereorder = False


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Let two processes begin with the files of many real parts, so that they end together."""
    if hasattr(config, "workerinput"):
        real = Counter(item.path for item in items if item.get_closest_marker("e2e"))
        items.sort(key=lambda item: -real[item.path])


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print what each fault led to, and which tests needed a second run."""
    _print_faults(terminalreporter)
    _print_second_runs(terminalreporter)


def _print_faults(terminalreporter: pytest.TerminalReporter) -> None:
    reports = terminalreporter.stats.get("passed", [])
    rows = {tuple(row) for r in reports for name, row in r.user_properties if name == "fault"}
    if not rows:
        return
    terminalreporter.section("faults")
    table = [("fault", "outcome", "data lost"), *sorted(rows)]
    widths = [max(len(row[i]) for row in table) for i in range(2)]
    for row in table:
        terminalreporter.line(f"{row[0]:<{widths[0]}}  {row[1]:<{widths[1]}}  {row[2]}")


def _print_second_runs(terminalreporter: pytest.TerminalReporter) -> None:
    names = sorted({report.nodeid for report in terminalreporter.stats.get("rerun", [])})
    terminalreporter.section("second runs")
    terminalreporter.line(f"{len(names)} tests failed at first and ran a second time")
    for name in names:
        terminalreporter.line(f"  {name}")


def _clean(patch: pytest.MonkeyPatch, folder: Path) -> None:
    """Take our own and MLflow's run variables out of the environment; keep state in the folder."""
    for name in list(os.environ):
        if name.startswith("MLFLOW_PERF_") or name in ("MLFLOW_RUN_ID", "MLFLOW_TRACKING_URI"):
            patch.delenv(name)
    patch.setenv("MLFLOW_PERF_DIR", str(folder / "mlflow-perf-journal"))
    # Only the tests of it pay for the stack sampler, and those of harm: it is on by default.
    patch.setenv("MLFLOW_PERF_PROFILE", "0")
    # Importing MLflow has taken half a minute on a machine that others use too.
    patch.setenv("MLFLOW_PERF_EXIT_TIMEOUT", "100")


@pytest.fixture(scope="session", autouse=True)
def _clean_environment_of_fixtures(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What fixtures of a module or session start has the same environment as a test's processes."""
    with pytest.MonkeyPatch.context() as patch:
        _clean(patch, tmp_path_factory.mktemp("state"))
        yield


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Nothing of this machine's environment, and no test's state, leaks into another test."""
    _clean(monkeypatch, tmp_path)
    yield
    # Only where a test imported it, and has no stand-in for it.
    if (take := getattr(sys.modules.get("mlflow"), "set_tracking_uri", None)) is not None:
        take(None)


@pytest.fixture(autouse=True)
def _no_leaked_sampler() -> Iterator[None]:
    """Fail the test that leaves a sampler thread alive."""
    yield
    left = [t.name for t in list_threads() if t.name.startswith("mlflow-perf")]
    assert not left, f"threads left alive: {left}"


@pytest.fixture(scope="session")
def _migrated_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return an empty MLflow database; making one takes five seconds, copying it none."""
    path = tmp_path_factory.mktemp("store") / "mlflow.db"
    command = "from mlflow import MlflowClient; MlflowClient().search_experiments()"
    environ = {**os.environ, "MLFLOW_TRACKING_URI": f"sqlite:///{path}"}
    subprocess.run([sys.executable, "-c", command], env=environ, cwd=path.parent, check=True)
    return path


@pytest.fixture
def store(tmp_path: Path, _migrated_store: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Make a fresh sqlite store the tracking store of the test, and return its URI."""
    import mlflow

    path = tmp_path / "mlflow.db"
    shutil.copy(_migrated_store, path)
    uri = f"sqlite:///{path}"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    mlflow.set_tracking_uri(uri)
    experiment = mlflow.MlflowClient().create_experiment("test", (tmp_path / "artifacts").as_uri())
    monkeypatch.setenv("MLFLOW_EXPERIMENT_ID", experiment)
    yield uri
    _leave_mlflow()


def _leave_mlflow() -> None:
    """Check that the test left no run open, and take back what it set for the whole process."""
    import mlflow
    from mlflow.tracking import fluent

    left = mlflow.active_run()
    fluent._active_experiment_id = None  # set_experiment has no opposite
    assert left is None, "the test left an MLflow run open"


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait_for(url: str, process: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + 200
    while time.monotonic() < until and process.poll() is None:
        try:
            urllib.request.urlopen(url, timeout=2).close()
            return
        except (urllib.error.URLError, OSError):
            time.sleep(0.2)
    raise RuntimeError(f"no server at {url}; it ended with {process.poll()}")


@pytest.fixture(scope="session")
def _server(_migrated_store: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Run a real MLflow server on a loopback port, once for all tests."""
    folder = tmp_path_factory.mktemp("server")
    shutil.copy(_migrated_store, folder / "mlflow.db")
    port = _free_port()
    environ = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("MLFLOW_") or name == "MLFLOW_DISABLE_TELEMETRY"
    }
    environ["MLFLOW_SERVER_ENABLE_JOB_EXECUTION"] = "false"
    with (folder / "server.log").open("wb") as log:
        process = subprocess.Popen(
            [
                sys.executable, "-m", "mlflow", "server", "--workers", "1",
                "--host", "127.0.0.1", "--port", str(port),
                "--backend-store-uri", f"sqlite:///{folder / 'mlflow.db'}",
                "--artifacts-destination", str(folder / "artifacts"),
            ],
            env=environ, cwd=folder, stdout=log, stderr=log, start_new_session=True,
        )  # fmt: skip
    try:
        _wait_for(f"http://127.0.0.1:{port}/health", process)
        yield f"http://127.0.0.1:{port}"
    finally:
        os.killpg(process.pid, 15)
        process.wait(20)


@pytest.fixture
def server(_server: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Make the running MLflow server the tracking store of the test, and return its URI."""
    import mlflow

    monkeypatch.setenv("MLFLOW_TRACKING_URI", _server)
    mlflow.set_tracking_uri(_server)
    yield _server
    _leave_mlflow()


@pytest.fixture(scope="session")
def _nursery(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nursery]:
    root = Path(__file__).parents[1]
    environ = {k: v for k, v in os.environ.items() if not k.startswith("MLFLOW_")}
    environ |= {
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "MLFLOW_PERF_START_TIMEOUT": "60",
        "PYTHONPATH": os.pathsep.join([str(root), *filter(None, [environ.get("PYTHONPATH")])]),
    }
    nursery = Nursery(environ, tmp_path_factory.mktemp("nursery"))
    yield nursery
    nursery.close()


@pytest.fixture
def python(
    _nursery: Nursery, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., Job]:
    """Return a function that acts like `python ARGUMENTS`, in a fork that has MLflow imported.

    An interpreter that imports MLflow takes three seconds to start. The fork has the test's
    environment and folder, and a standard error of its own.
    """

    def start(*argv: str, stdin: str | None = None, **environ: str) -> Job:
        given = {k: v for k, v in os.environ.items() if k.startswith("MLFLOW_")} | environ
        arguments = (str(tmp_path), *argv)
        errors = str(tmp_path_factory.mktemp("python") / "stderr")
        start = "tests.faults.nursery:run_python"
        return _nursery.start(start, *arguments, stdin=stdin, stderr=errors, **given)

    return start


class _NoCredential:
    """Asks nobody: what validates offline needs no token."""

    def get_token(self, *scopes: str, **options: Any) -> Any:
        raise AssertionError("the validation asked the network")


@pytest.fixture(scope="session")
def offline_client() -> Any:
    """azure-ai-ml's own client, whose validation is public and needs no network."""
    from azure.ai.ml import MLClient

    return MLClient(_NoCredential(), "subscription", "group", "workspace")
