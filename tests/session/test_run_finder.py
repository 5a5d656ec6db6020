"""Which run a job reports to: never at the price of the job's start."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.faults.nursery import Job

from mlflow_perf.core.settings import Settings
from mlflow_perf.errors import SettingError
from mlflow_perf.node.place import detect
from mlflow_perf.session import run_finder
from mlflow_perf.session.recording import Recording
from mlflow_perf.session.run_finder import RunFinder
from mlflow_perf.tracking import new_store
from mlflow_perf.tracking.run_handle import PipelineStep, RunHandle


@pytest.mark.parametrize("uri", ["http://127.0.0.1:9/", "postgresql://me:hush@127.0.0.1:9/runs"])
def test_a_server_that_does_not_answer_holds_a_start_up_for_its_time_only(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, uri: str
) -> None:
    """A tracking server's and a database's: the job starts without its run, with one warning."""
    release = threading.Event()

    def no_answer(*_: object, **__: object) -> None:
        release.wait(10)
        raise OSError("gone")

    monkeypatch.delenv("MLFLOW_RUN_ID", raising=False)
    monkeypatch.setattr(run_finder, "is_refused", lambda *_: False)
    monkeypatch.setattr(run_finder, "has_page", lambda *_: False)
    monkeypatch.setattr(run_finder, "create_run", no_answer)
    run = RunHandle(uri, run_name="train")
    finder = RunFinder(run, detect({}), start_timeout_sec=0.05)
    try:
        finder.find()
        assert run.run_id is None
        assert "is slow; the job starts without its run" in caplog.text
        assert "hush" not in caplog.text
        assert finder.is_hanging is uri.startswith("http"), "a database fails, it does not hang"
    finally:
        release.set()
    finder.settle(5)
    assert not finder.is_hanging


@pytest.mark.parametrize("is_postponed", [True, False])
def test_the_page_of_a_server_is_looked_for_when_the_run_is_made(
    monkeypatch: pytest.MonkeyPatch, is_postponed: bool
) -> None:
    """A command's run is made when the command has ended: its description has the link, too."""
    asked: list[str] = []

    def has_page(uri: str) -> bool:
        asked.append(uri)
        return True

    monkeypatch.delenv("MLFLOW_RUN_ID", raising=False)
    monkeypatch.setattr(run_finder, "is_refused", lambda *_: False)
    monkeypatch.setattr(run_finder, "has_page", has_page)
    monkeypatch.setattr(RunFinder, "_find_or_create", lambda _: None)
    run = RunHandle("http://127.0.0.1:9", run_name="train")
    finder = RunFinder(run, detect({}), start_timeout_sec=30)
    finder.find(wait=not is_postponed, postpone=is_postponed)
    assert not (is_postponed and asked)
    finder.settle(60)
    assert finder.page_probe is not None
    finder.page_probe.result(60)
    assert (run.has_page, asked) == (True, ["http://127.0.0.1:9"])


@pytest.mark.parametrize("run_id", ["the-steps", None])
def test_a_steps_report_goes_to_its_run_whatever_store_its_script_chose(
    monkeypatch: pytest.MonkeyPatch, run_id: str | None
) -> None:
    """The other store has no such run; one that the script names itself is no step's."""
    step = PipelineStep("the-pipeline", "fit", "http://pipelines", "7", run_id)
    monkeypatch.setenv("MLFLOW_PERF_STEP", json.dumps(asdict(step)))
    monkeypatch.setenv("MLFLOW_RUN_ID", run_id or "")
    run = RunHandle("http://another")
    RunFinder(run, detect({}), start_timeout_sec=0).choose()
    assert (run.tracking_uri, run.run_id, run.is_left) == ("http://pipelines", run_id, not run_id)
    monkeypatch.setenv("MLFLOW_RUN_ID", "its-own")
    run = RunHandle("http://another")
    RunFinder(run, detect({}), start_timeout_sec=0).choose()
    assert (run.tracking_uri, run.run_id) == ("http://another", "its-own")


def test_a_rank_that_samples_nothing_takes_the_run_of_the_one_that_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It waits for it as long as a start may take, and asks no server."""
    monkeypatch.delenv("MLFLOW_RUN_ID", raising=False)
    node = replace(detect({}), local_rank=1, world_size=2)
    run = RunHandle("http://127.0.0.1:9", run_name="train")
    RunFinder(run, node, start_timeout_sec=7.0, await_shared=lambda sec: f"run {sec}").find()
    assert run.run_id == "run 7.0"
    # Of a given run, too: a block that ended before that rank's began would be in no figure.
    waited: list[float] = []
    given = RunHandle("http://127.0.0.1:9", run_id="given")
    RunFinder(given, node, start_timeout_sec=7.0, await_shared=waited.append).find()
    assert (given.run_id, waited) == ("given", [7.0])


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("(sqlite3.OperationalError) database is locked"),
        OSError("No space left on device"),
        RuntimeError("403 Forbidden"),
        RuntimeError("Online migration expected to match one row"),
    ],
)
def test_a_store_that_is_broken_now_is_no_wrong_setting(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    store: str,
    error: Exception,
) -> None:
    """The job starts without its run, whatever kind of store it is."""
    monkeypatch.delenv("MLFLOW_RUN_ID", raising=False)

    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(run_finder, "create_run", fail)
    run = RunHandle(store, run_name="train")
    finder = RunFinder(run, detect({}), start_timeout_sec=0.05)
    finder.find()
    finder.withdraw()  # its thread would try again during the next test
    assert run.run_id is None
    assert "starts without its run" in caplog.text or "could be made yet" in caplog.text


def test_a_process_that_cannotimport_mlflow_is_no_slow_store(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, store: str
) -> None:
    """One warning gives the true reason."""
    monkeypatch.delenv("MLFLOW_RUN_ID", raising=False)

    def fail(_: float) -> None:
        raise RuntimeError("the main thread has ended")

    monkeypatch.setattr(run_finder, "import_mlflow", fail)
    RunFinder(RunHandle(store), detect({}), start_timeout_sec=0.05).find()
    (record,) = caplog.records
    assert record.message.endswith("could be made yet: RuntimeError: the main thread has ended")


def test_an_address_that_no_moment_makes_right_is_a_wrong_setting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The message says what MLflow says of it."""
    monkeypatch.delenv("MLFLOW_RUN_ID", raising=False)
    finder = RunFinder(
        RunHandle("nonsense://x", run_name="train"), detect({}), start_timeout_sec=60
    )
    with pytest.raises(SettingError, match="nonsense"):
        finder.find()


def test_a_new_store_is_left_alone_beside_a_command(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The command may make it itself. Once it has ended, the run is created."""
    monkeypatch.setenv("MLFLOW_RUN_ID", " ")  # names no run
    made = threading.Event()

    def create(*_: object, **__: object) -> None:
        made.set()
        raise OSError("enough")

    monkeypatch.setattr(run_finder, "create_run", create)
    run = RunHandle(f"sqlite:///{tmp_path / 'mlflow.db'}", run_name="train")
    finder = RunFinder(run, detect({}), start_timeout_sec=60)
    finder.find(wait=False)
    assert not made.wait(0.1)
    assert list(tmp_path.iterdir()) == []
    finder.settle(60)
    assert made.is_set()


@pytest.mark.parametrize("is_new", [True, False])
def test_a_command_does_not_wait_until_mlflow_names_its_store(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *, is_new: bool
) -> None:
    """The import goes on beside the command; a new store is left alone until its end."""
    monkeypatch.delenv("MLFLOW_RUN_ID", raising=False)
    imported, named, made = threading.Event(), threading.Event(), threading.Event()
    file = tmp_path / "mlflow.db"
    monkeypatch.setattr(run_finder, "is_unmade", lambda uri: is_new and uri != "")

    def find_store() -> str:
        assert imported.wait(60)
        return f"sqlite:///{file}"

    def create(*_: object, **options: object) -> None:
        assert options["tracking_uri"] == f"sqlite:///{file}"
        made.set()
        raise OSError("enough")

    monkeypatch.setattr(run_finder, "find_tracking_uri", find_store)
    monkeypatch.setattr(run_finder, "create_run", create)
    monkeypatch.setattr(run_finder, "find_current_experiment", lambda _: "0")
    run = RunHandle("", run_name="train")
    finder = RunFinder(run, detect({}), start_timeout_sec=60, on_made=named.set)
    finder.find(wait=False)
    assert not made.is_set()
    imported.set()
    if is_new:
        assert named.wait(60), "the journal learns of the store"
        assert run.tracking_uri == f"sqlite:///{file}"
        assert not made.wait(0.1)
    finder.settle(60)
    assert made.is_set()


def test_a_command_is_recorded_without_an_import_of_mlflow(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Its first output comes as soon as without us: only the environment is asked for a store."""
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setattr(run_finder, "import_mlflow", pytest.fail)
    settings = Settings(dir=str(tmp_path))
    assert Recording("command", settings, is_command=True).run.tracking_uri == ""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    named = Recording("command", settings, is_command=True).run.tracking_uri
    assert named == "http://127.0.0.1:9"


_START = """
import mlflow_perf
with mlflow_perf.report("train") as perf:
    pass
print(perf.run_id is not None)
"""


def _find_as(rank: int, uri: str) -> tuple[RunFinder, RunHandle]:
    node = replace(detect({}), rank=rank, world_size=2, job_key="launch")
    run = RunHandle(uri, run_name="train", job_key=node.shared_key)
    return RunFinder(run, node, start_timeout_sec=0), run


def test_the_first_node_joins_the_run_of_a_node_that_ended_earlier(
    monkeypatch: pytest.MonkeyPatch, store: str
) -> None:
    """A new store is made at the end of a command, and the first node may end last."""
    monkeypatch.delenv("MLFLOW_RUN_ID", raising=False)
    found = []
    with monkeypatch.context() as patch:
        patch.setattr(run_finder, "is_unmade", lambda _uri: True)
        for rank in (1, 0):
            finder, run = _find_as(rank, store)
            finder.find(wait=False)
            found.append((finder, run))
    for finder, _ in found:
        finder.close(60)
    (_, second), (_, first) = found
    assert first.run_id == second.run_id is not None
    assert (first.own_run, second.own_run) == (False, True)


@dataclass
class _Server:
    """Creates runs; what happens `meanwhile` happens before it has created the first one."""

    listed: list[SimpleNamespace] = field(default_factory=list)
    discarded: list[str] = field(default_factory=list)
    meanwhile: list[Callable[[], object]] = field(default_factory=list)
    asked: int = 0

    def create(self, *_: object, **__: object) -> SimpleNamespace:
        self.asked += 1
        run = SimpleNamespace(info=SimpleNamespace(run_id=f"r{self.asked}", experiment_id="0"))
        if self.meanwhile:
            self.meanwhile.pop()()
        self.listed.append(run)
        return run

    def find(self, *_: object, but: str | None = None, **__: object) -> SimpleNamespace | None:
        return next((run for run in self.listed if run.info.run_id != but), None)


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> _Server:
    """The runs of a server that the finders of a test use."""
    server = _Server()
    monkeypatch.delenv("MLFLOW_RUN_ID", raising=False)
    monkeypatch.setattr(run_finder, "is_refused", lambda _uri: False)
    monkeypatch.setattr(run_finder, "create_run", server.create)
    monkeypatch.setattr(run_finder, "find_job_run", server.find)
    monkeypatch.setattr(run_finder, "find_current_experiment", lambda _uri: "0")
    discard = lambda run_id, **_: server.discarded.append(run_id)  # noqa: E731
    monkeypatch.setattr(run_finder, "discard_run", discard)
    return server


def test_the_first_node_joins_the_run_that_another_made_while_it_waited(runs: _Server) -> None:
    """A server that is slow for the first node alone: its own run, which comes later, goes."""
    first, run = _find_as(0, "http://host")
    other, others_run = _find_as(1, "http://host")

    runs.meanwhile.append(other._make)
    first._make()
    assert (run.run_id, others_run.run_id, runs.discarded) == ("r2", "r2", ["r1"])
    assert (run.own_run, others_run.own_run) == (False, True)


def test_several_that_make_the_tables_of_a_database_try_again(
    monkeypatch: pytest.MonkeyPatch, runs: _Server
) -> None:
    """One of them makes those of a new PostgreSQL; the others fail, and find them there then."""
    monkeypatch.setattr(run_finder, "_POLL_SEC", 0.0)

    def fail() -> None:
        raise RuntimeError('(psycopg2.errors.DuplicateTable) relation "runs" already exists')

    run = RunHandle("postgresql://host/runs", run_name="train")
    runs.meanwhile += [fail, fail]
    RunFinder(run, detect({}), start_timeout_sec=60)._make()
    assert (run.run_id, runs.asked) == ("r3", 3)


def test_no_run_is_asked_for_once_the_report_is_sent(runs: _Server) -> None:
    """A start that is still importing MLflow then leaves the run to the sending of the report."""
    run = RunHandle("http://host", run_name="train")
    finder = RunFinder(run, detect({}), start_timeout_sec=0)
    finder.close(0.0)
    with pytest.raises(TimeoutError, match="sending the report"):
        finder._make()
    assert runs.asked == 0


def test_a_run_in_use_is_not_deleted_as_a_late_one(runs: _Server) -> None:
    """The sending of the report may find by its nonce the run that the start has asked for."""
    run = RunHandle("http://host", run_name="train")
    finder = RunFinder(run, detect({}), start_timeout_sec=0)

    def find_by_nonce() -> None:
        assert run.claim().adopt("r1", own=True, experiment_id="0")
        finder.withdraw()

    runs.meanwhile.append(find_by_nonce)
    finder._make()
    assert (run.run_id, runs.discarded) == ("r1", [])


def test_a_node_that_waits_for_the_first_does_not_make_the_store(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """To search in a new database would make it, while the first node waits to do so."""
    monkeypatch.setattr(run_finder, "find_job_run", lambda *_, **__: pytest.fail("it searched"))
    finder, _ = _find_as(1, f"sqlite:///{tmp_path / 'mlflow.db'}")
    assert finder._await_job_run() is None
    assert list(tmp_path.iterdir()) == []


def test_a_new_database_is_finished_for_its_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """The end of a command waits beyond its time while MLflow makes a new database."""
    monkeypatch.delenv("MLFLOW_RUN_ID", raising=False)
    free = threading.Event()
    monkeypatch.setattr(run_finder, "is_unmade", lambda _uri: True)

    def look(_uri: str) -> bool:
        free.set()  # the time is over
        return True

    monkeypatch.setattr(new_store, "is_unmade", look)
    run = RunHandle("sqlite:///x.db", run_name="train")
    finder = RunFinder(run, detect({}), start_timeout_sec=60)
    monkeypatch.setattr(
        finder,
        "_make",
        lambda: free.wait(60) and finder._claim.adopt("r", own=True, experiment_id="0"),
    )
    finder.find(wait=False)
    assert finder.close(0.01, finish_store=True) >= 0
    assert run.run_id == "r"


@pytest.mark.e2e
def test_several_that_start_at_once_share_a_new_store(
    python: Callable[..., Job], tmp_path: Path
) -> None:
    """None of them fails, and each has its run, though they all would make the database."""
    environ = {"MLFLOW_TRACKING_URI": f"sqlite:///{tmp_path / 'mlflow.db'}"}
    jobs = [python("-c", _START, **environ) for _ in range(5)]
    codes = [job.wait() for job in jobs]
    assert [(code, job.output) for code, job in zip(codes, jobs, strict=True)] == [
        (0, "True\n")
    ] * len(jobs), [job.errors for job in jobs]


_USES_MLFLOW = "import mlflow\nwith mlflow.start_run(): mlflow.log_metric('auc', 1)\nprint('done')"


@pytest.mark.e2e
def test_a_command_that_makes_its_own_store_is_unharmed(
    python: Callable[..., Job], tmp_path: Path
) -> None:
    """`mlflow-perf run -- python train.py` on a new store: the first thing that a user tries."""
    environ = {
        "MLFLOW_TRACKING_URI": f"sqlite:///{tmp_path / 'mlflow.db'}",
        "MLFLOW_PERF_DIR": str(tmp_path / "journals"),
        "MLFLOW_PERF_EXIT_TIMEOUT": "120",
    }
    command = (sys.executable, "-c", _USES_MLFLOW)
    job = python("-m", "mlflow_perf", "run", "--", *command, **environ)
    assert job.wait() == 0, job.errors
    assert job.output.splitlines()[-1:] == ["done"]
    assert not list((tmp_path / "journals").glob("*.journal")), job.errors
