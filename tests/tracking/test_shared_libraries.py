"""What a call of MLflow shares with the job."""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import sys
import threading
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import thread as pools
from pathlib import Path
from typing import Any

import pytest
import requests
from mlflow import MlflowClient
from mlflow.utils import request_utils
from tests.tracking.own_calls import call_as_own

from mlflow_perf.core.background_call import BackgroundCall
from mlflow_perf.tracking import shared_libraries
from mlflow_perf.tracking.mlflow_call import MlflowCall
from mlflow_perf.tracking.shared_libraries import is_own_call, own_call


@pytest.fixture(autouse=True)
def no_other_call() -> None:
    """Let the calls of other tests end, which may still try to reach a server."""
    until = time.monotonic() + 120
    while shared_libraries._calling and time.monotonic() < until:
        time.sleep(0.05)


def _warn() -> str:
    warnings.warn("noload is deprecated", DeprecationWarning, stacklevel=2)
    return "answer"


def test_its_warnings_are_ignored_and_those_of_the_job_are_not() -> None:
    """A job run with `-W error` gets its own errors, and we none."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        before = list(warnings.filters)
        with own_call():
            assert BackgroundCall(lambda: call_as_own(_warn), name="test").result(30) == "answer"
            assert _warn() == "answer"
            with pytest.raises(DeprecationWarning, match="noload"):
                BackgroundCall(_warn, name="another").result(30)
        assert warnings.filters == before
        with pytest.raises(DeprecationWarning, match="noload"):
            _warn()


def test_a_job_is_warned_as_often_as_without_it() -> None:
    """What Python says once is not said again because a call of ours has come in between."""
    known: Any = {}
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("default")
        for _ in range(3):
            warnings.warn_explicit("once", UserWarning, "job.py", 1, registry=known)
            call_as_own(_warn)
    assert len(said) == 1


def test_no_filter_stays_where_the_job_comes_and_goes() -> None:
    """A `catch_warnings` of the job copies the filters while a call goes on."""
    before = list(warnings.filters)
    caught = warnings.catch_warnings()
    with own_call():
        caught.__enter__()
    assert warnings.filters == before
    caught.__exit__(None, None, None)
    assert warnings.filters == before


def test_what_libraries_log_in_it_is_not_shown(caplog: pytest.LogCaptureFixture) -> None:
    """A job that logs its SQL gets its own statements alone, and each line of ours."""
    caplog.set_level(logging.INFO)
    handle = logging.Logger.callHandlers

    def log() -> None:
        for name in ("a.library", "mlflow_perf.test"):
            logging.getLogger(name).info("a line")

    call_as_own(log)
    assert [record.name for record in caplog.records] == ["mlflow_perf.test"]
    log()
    assert len(caplog.records) == 3
    assert logging.Logger.callHandlers is handle


@pytest.mark.parametrize("is_jobs", [False, True])
def test_what_mlflows_telemetry_logs_is_shown_only_to_a_job_that_uses_mlflow(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, is_jobs: bool
) -> None:
    """Its threads outlive the call that imports MLflow."""
    monkeypatch.setattr(shared_libraries, "is_unused", lambda _: not is_jobs)
    caplog.set_level(logging.DEBUG)
    MlflowCall(lambda: None, name="first").result(60)  # watches the logger from now on

    def ask() -> None:
        logging.getLogger("urllib3.connectionpool").debug("Starting new connection")

    def log_in_thread() -> None:
        thread = threading.Thread(target=ask, name="GetTelemetryConfig")
        thread.start()
        thread.join()

    log_in_thread()
    with own_call():
        log_in_thread()
    assert len(caplog.records) == 2 * is_jobs


def test_what_the_job_puts_around_its_logging_stays(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Sentry replaces the same function, perhaps while a call of ours goes on."""
    handle = logging.Logger.callHandlers
    monkeypatch.setattr(logging.Logger, "callHandlers", handle)
    seen = []
    with own_call():
        within = logging.Logger.callHandlers

        def note(logger: logging.Logger, record: logging.LogRecord) -> None:
            seen.append(record.getMessage())
            within(logger, record)

        monkeypatch.setattr(logging.Logger, "callHandlers", note)
    for _ in range(2):
        with own_call():
            pass
        assert logging.Logger.callHandlers is note
        logging.getLogger("job").warning("a line")
    assert seen == caplog.messages == ["a line"] * 2


def test_no_spans_are_made_of_it() -> None:
    """A job whose requests are traced finds only its own in the trace."""
    context = pytest.importorskip("opentelemetry.context")
    assert call_as_own(lambda: context.get_value("suppress_instrumentation")) is True
    with own_call():
        pass
    assert context.get_value("suppress_instrumentation") is None


def test_a_fork_ends_what_its_parent_does() -> None:
    """A child has no call of ours, whatever its parent was about."""
    handle = logging.Logger.callHandlers
    with own_call():
        child = os.fork()
        if child == 0:
            is_clean = logging.Logger.callHandlers is handle and not is_own_call()
            os._exit(0 if is_clean else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_pools_work_at_the_exit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Boto3 uploads by a pool, which Python closes before `atexit`; closed for the job again."""
    monkeypatch.setattr(pools, "_shutdown", True)

    def use_pool() -> int:
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(threading.get_native_id).result(30)

    with own_call():
        assert call_as_own(use_pool)
        assert use_pool()  # the one that ends first does not close them
    with pytest.raises(RuntimeError, match="cannot schedule"):
        use_pool()


_MODELS = """
from sqlalchemy import Column, ForeignKey, Integer, orm
Base = orm.declarative_base()
class Parent(Base):
    __tablename__ = "parent"
    id = Column(Integer, primary_key=True)
    children = orm.relationship("Child")
configure = orm.configure_mappers
import mlflow_perf
with mlflow_perf.report("job", quiet=True) as perf:
    pass
class Child(Base):
    __tablename__ = "child"
    id = Column(Integer, primary_key=True)
    parent = Column(Integer, ForeignKey("parent.id"))
print(Parent(children=[Child()]).children[0].id, orm.configure_mappers is configure)
"""


@pytest.fixture
def store(tmp_path: Path, _migrated_store: Path) -> str:
    """Return the address of an empty store."""
    return f"sqlite:///{shutil.copy(_migrated_store, tmp_path / 'mlflow.db')}"


_IN_A_THREAD = """
import threading, time
def work():
    threading.main_thread().join()  # Python waits for this thread, and has closed its pools
    import mlflow_perf
    with mlflow_perf.report("job", quiet=True):
        pass
threading.Thread(target=work).start()
print("None True")
"""


_NO_THREADS_AT_THE_END = pytest.mark.skipif(
    sys.version_info[:2] == (3, 12), reason="Python 3.12 starts no thread then: the report is kept"
)
_LOGGERS = """
import logging, sys
loggers = [logging.getLogger(name) for name in ("sqlalchemy.engine", "alembic")]
loggers[0].setLevel(logging.INFO)
logging.basicConfig(level=logging.INFO, stream=sys.stdout, format="%(message)s")
import mlflow_perf
with mlflow_perf.report("job", quiet=True):
    pass
assert [(one.level, one.propagate) for one in loggers] == [(20, True), (0, True)]
logging.getLogger("sqlalchemy.engine.Engine").info("None True")
import mlflow
from mlflow.utils import logging_utils
now = [(one.level, one.propagate) for one in loggers]
logging_utils._configure_mlflow_loggers("mlflow")
assert [(one.level, one.propagate) for one in loggers] == now
"""
_DISABLED = """
import logging.config, sys
import requests
assert "sqlalchemy" not in sys.modules
logging.getLogger("sqlalchemy.engine")
import mlflow_perf
with mlflow_perf.report("job", quiet=True):
    logging.config.dictConfig({"version": 1})
    names = ("urllib3", "mlflow_perf", "sqlalchemy.pool", "sqlalchemy.engine")
    before = [logging.getLogger(name).disabled for name in names]
    import sqlalchemy
    logging.config.dictConfig({"version": 1})
    assert [logging.getLogger(name).disabled for name in names] == [True, False, True, True]
print(None, before == [True, False, False, True])
"""


@pytest.mark.parametrize(
    ("code", "options"),
    [
        pytest.param(_MODELS, (), id="models"),
        pytest.param(_MODELS, ("-W", "error"), id="warnings"),
        pytest.param(_IN_A_THREAD, (), id="thread", marks=_NO_THREADS_AT_THE_END),
        pytest.param(_LOGGERS, (), id="loggers"),
        pytest.param(_DISABLED, (), id="disabled"),
        pytest.param("import mlflow" + _DISABLED, (), id="disabled-beside-mlflow"),
    ],
)
def test_a_job_and_its_report_do_not_disturb_each_other(
    code: str, options: tuple[str, ...], store: str, tmp_path: Path
) -> None:
    """A model may refer to one that is yet to come, warnings be errors, the main thread be over."""
    environ = {**os.environ, "MLFLOW_TRACKING_URI": store}
    command = [sys.executable, *options, "-c", code]
    done = subprocess.run(
        command, env=environ, cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (done.stdout, done.stderr) == ("None True\n", "")
    [run] = MlflowClient(store).search_runs(["0"])
    assert run.data.metrics["run_node_count"] == 1.0


def test_a_cache_of_the_job_has_none_of_our_answers(
    server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such a library puts a class of its own below that of `requests`."""
    sent: list[str] = []

    class CachedSession(requests.Session):
        def send(self, request: requests.PreparedRequest, **options: Any) -> requests.Response:
            sent.append(str(request.url))
            return super().send(request, **options)

    monkeypatch.setattr("requests.Session", CachedSession)
    monkeypatch.setattr("requests.sessions.Session", CachedSession)
    request_utils._cached_get_request_session.cache_clear()
    MlflowCall(MlflowClient(server).search_experiments, name="test").result(60)
    assert not sent
    assert vars(request_utils)["requests"] is requests
    requests.get(f"{server}/health", timeout=60)
    assert sent == [f"{server}/health"]
