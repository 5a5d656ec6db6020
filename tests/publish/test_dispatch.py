"""Sending a report within its time, or keeping it in the journal."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from unittest.mock import Mock

import pytest
from mlflow import MlflowClient
from tests.publish.test_journal import new_journal, refuse_writes

from mlflow_perf.errors import NotUploadedError
from mlflow_perf.model.document import NodeDocument
from mlflow_perf.publish import dispatch as module
from mlflow_perf.publish.dispatch import dispatch, sent_if_interrupted
from mlflow_perf.publish.recovery import read_journal, recover_each
from mlflow_perf.tracking import new_store
from mlflow_perf.tracking.delivery import Delivery
from mlflow_perf.tracking.reporting_notes import ReportingNotes, gathering_notes
from mlflow_perf.tracking.run_handle import Claim, RunHandle


@pytest.fixture
def delivery() -> Delivery:
    """Return a finished report."""
    document = NodeDocument(component="train", status="FINISHED", summary={"duration_sec": 1.0})
    return Delivery(document, RunHandle(run_name="train"))


def test_a_report_that_was_sent_leaves_no_journal(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, delivery: Delivery
) -> None:
    """The journal goes with the report."""
    monkeypatch.setattr(module, "write_node", lambda delivery, claim: "r1")
    assert dispatch(delivery, new_journal(tmp_path), deadline=time.monotonic() + 60)
    assert list(tmp_path.iterdir()) == []


def test_a_report_that_cannot_be_sent_is_kept_with_one_warning(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    tmp_path: Path,
    delivery: Delivery,
) -> None:
    """The journal holds the finished report, and the warning says how to send it."""

    def fail(delivery: Delivery, claim: Claim) -> str:
        raise OSError("the store said no to me:hush@host")

    monkeypatch.setattr(module, "write_node", fail)
    with caplog.at_level(logging.WARNING):
        assert not dispatch(delivery, new_journal(tmp_path), deadline=time.monotonic() + 60)
    (line,) = [record.getMessage() for record in caplog.records]
    assert f"mlflow-perf recover {tmp_path}" in line
    (journal,) = tmp_path.iterdir()
    kept, cause = read_journal(journal.read_bytes())
    assert kept.document.summary == {"duration_sec": 1.0}
    assert cause == "its report was not sent: OSError: the store said no to me:hush@host"


def test_a_kept_report_of_a_groups_step_says_what_we_took(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, delivery: Delivery
) -> None:
    """Its run, which only `recover` creates, is in no note of the group."""
    monkeypatch.setattr(module, "write_node", Mock(side_effect=OSError("away")))
    delivery.document.started, delivery.document.duration_sec = time.time() - 11.0, 10.0
    with gathering_notes(tmp_path / "notes"):
        assert not dispatch(delivery, new_journal(tmp_path), deadline=time.monotonic() + 60)
    (journal,) = tmp_path.iterdir()
    kept, _ = read_journal(journal.read_bytes())
    note = ReportingNotes({}, [("r", kept.tags)]).find("r")
    assert note.before_sec == 0.0
    assert 1.0 <= note.after_sec < 120.0


@pytest.mark.parametrize(("patience_sec", "is_sent"), [(60.0, True), (0.0, False)])
def test_a_database_that_restarts_is_tried_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, delivery: Delivery,
    patience_sec: float, is_sent: bool,
) -> None:  # fmt: skip
    """It takes connections and refuses each, for as long as a port that refuses is tried."""
    answers = ["FATAL:  the database system is starting up"] * 2

    def write(delivery: Delivery, claim: Claim) -> str:
        if answers:
            raise OSError(answers.pop())
        return "r1"

    monkeypatch.setattr(module, "write_node", write)
    monkeypatch.setattr(module, "_KNOCK_EVERY_SEC", 0.0)
    monkeypatch.setattr(module, "_KNOCK_SEC", patience_sec)
    journal = new_journal(tmp_path)
    assert dispatch(delivery, journal, deadline=time.monotonic() + 60) is is_sent
    assert len(answers) == (0 if is_sent else 1)
    assert journal.path.exists() is not is_sent


def test_without_a_journal_the_warning_says_that_the_report_is_lost(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, delivery: Delivery
) -> None:
    """Nothing is promised that is not on disk."""
    monkeypatch.setattr(module, "is_refused", lambda uri, **_: True)
    assert not dispatch(delivery, None, deadline=time.monotonic())
    assert "was not sent and is lost: ConnectionRefusedError" in caplog.text


def test_what_is_sent_again_later_is_not_lost(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, delivery: Delivery
) -> None:
    """A job that was asked to end sends its report so far; its end says what became of it."""
    monkeypatch.setattr(module, "is_refused", lambda uri, **_: True)
    assert not dispatch(delivery, None, deadline=time.monotonic(), is_last=False)
    assert caplog.messages == []


def test_where_the_disk_is_full_the_warning_says_what_was_kept(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    tmp_path: Path,
    delivery: Delivery,
) -> None:
    """`recover` sends what was written before: that is not lost."""
    monkeypatch.setattr(module, "is_refused", lambda uri, **_: True)
    journal = new_journal(tmp_path)
    refuse_writes(monkeypatch)
    assert not dispatch(delivery, journal, deadline=time.monotonic())
    assert journal.path.exists()
    assert "is lost" not in caplog.text
    assert f"what was written before, as of a killed job, with: mlflow-perf recover {tmp_path}" in (
        caplog.text
    )


def test_a_run_that_is_created_after_the_deadline_is_not_adopted(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, delivery: Delivery
) -> None:
    """A slow report is on disk meanwhile, and `recover` creates the run then."""
    free, done = threading.Event(), threading.Event()
    adopted: list[bool] = []

    def create_late(delivery: Delivery, claim: Claim) -> str:
        free.wait(60)
        adopted.append(claim.adopt("late", own=True, experiment_id=None))
        done.set()
        raise TimeoutError

    monkeypatch.setattr(module, "write_node", create_late)
    assert not dispatch(delivery, new_journal(tmp_path), deadline=time.monotonic() + 0.05)
    free.set()
    assert done.wait(60)
    assert adopted == [False]
    assert delivery.run.run_id is None
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize("secure", [False, True])
def test_a_new_database_is_finished_after_the_deadline(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, delivery: Delivery, secure: bool
) -> None:
    """To end while MLflow makes a database would leave one that nobody can open."""
    free = threading.Event()

    def look(_uri: str) -> bool:
        free.set()  # the deadline is over
        return True

    monkeypatch.setattr(module, "write_node", lambda delivery, claim: free.wait(60) and "r1")
    monkeypatch.setattr(new_store, "is_unmade", look)
    journal, deadline = new_journal(tmp_path), time.monotonic() + 0.05
    assert dispatch(delivery, journal, deadline=deadline, secure=secure) is not secure
    assert len(list(tmp_path.iterdir())) == secure
    free.set()


def test_the_warning_names_a_new_store_that_was_not_ready(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    delivery: Delivery,
) -> None:
    """The reason is the database that MLflow still makes, not a server without an answer."""
    free = threading.Event()
    delivery.run.tracking_uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    monkeypatch.setattr(module, "write_node", lambda delivery, claim: free.wait(60) and "r1")
    monkeypatch.setattr(module, "await_new_store", lambda *_: None)
    assert not dispatch(delivery, new_journal(tmp_path), deadline=time.monotonic() + 0.05)
    free.set()
    # It arrives after all, as the store is made by now and this process lives.
    assert "was not ready in time). It is kept; if it does not arrive, send it with" in caplog.text


def test_an_interrupt_that_leaves_too_little_time_is_the_reason(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    delivery: Delivery,
) -> None:
    """After a Ctrl-C a report has a second to be sent: no server was slow."""
    free, journal = threading.Event(), new_journal(tmp_path)
    monkeypatch.setattr(module, "write_node", lambda delivery, claim: free.wait(60) and "r1")
    monkeypatch.setattr(module, "_INTERRUPTED_SEC", 0.05)
    with pytest.raises(KeyboardInterrupt), sent_if_interrupted(lambda: delivery, journal):
        raise KeyboardInterrupt
    assert "was not sent (it was interrupted). It is kept; send it with" in caplog.text
    assert b"its report was not sent: it was interrupted" in journal.path.read_bytes()
    free.set()


def test_a_document_that_is_lost_leaves_no_journal(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture,
    tmp_path: Path, delivery: Delivery,
) -> None:  # fmt: skip
    """Its run has its figures and its end; `recover` would call it killed."""

    def fail(delivery: Delivery, claim: Claim) -> str:
        raise NotUploadedError("no room")

    monkeypatch.setattr(module, "write_node", fail)
    journal = new_journal(tmp_path)
    refuse_writes(monkeypatch)
    assert not dispatch(delivery, journal, deadline=time.monotonic() + 60)
    assert "are in MLflow; its document is lost: NotUploadedError" in caplog.text
    assert list(tmp_path.iterdir()) == []


_GIVES_UP_ITS_RIGHTS = """
import os, sys, time
import mlflow
from mlflow_perf import report
os.chmod(".", 0o755)
with report("j", profile=False) as perf:
    if sys.argv[1] == "setuid":
        os.setgid(54321)
    getattr(os, sys.argv[1])(54321)
"""


def run_without_rights(folder: Path, call: str, store: str) -> str:
    """Run a job that becomes another user in its block; return what it says."""
    folder.mkdir(mode=0o700)
    env = {
        **os.environ, "MLFLOW_TRACKING_URI": store, "MLFLOW_PERF_DIR": str(folder),
        "MLFLOW_PERF_EXIT_TIMEOUT": "5", "MLFLOW_PERF_START_TIMEOUT": "1",
    }  # fmt: skip
    job = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", _GIVES_UP_ITS_RIGHTS, call],
        capture_output=True, text=True, env=env, cwd=folder.parent, check=True,
    )  # fmt: skip
    assert "is lost" not in job.stderr
    assert "crash-safe journal" not in job.stderr
    return job.stderr


_ROOT_ONLY = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")


@_ROOT_ONLY
@pytest.mark.parametrize("call", ["setuid", "seteuid"])
def test_a_job_that_gives_up_its_rights(call: str, tmp_path: Path) -> None:
    """Its whole report is kept in the journal, which is still open; nothing is said to be lost."""
    folder = tmp_path / "journals"
    said = run_without_rights(folder, call, "http://127.0.0.1:9")
    hint = "as the user that the job began as, with: mlflow-perf recover"
    assert f"It is kept; send it, {hint} {folder}" in said
    (journal,) = folder.glob("*.journal")
    kept, _ = read_journal(journal.read_bytes())
    assert kept.document.status == "FINISHED"
    assert kept.document.summary["duration_sec"] > 0


@_ROOT_ONLY
@pytest.mark.e2e
def test_a_job_that_gives_up_its_rights_and_reaches_the_server(
    server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is left to send: `recover` says nothing, and deletes what the job could not."""
    folder = tmp_path / "journals"
    with tempfile.TemporaryDirectory() as artifacts:  # pytest's own folders are root's alone
        os.chmod(artifacts, 0o777)
        client = MlflowClient()
        experiment = client.create_experiment("rights", Path(artifacts).as_uri())
        monkeypatch.setenv("MLFLOW_EXPERIMENT_ID", experiment)
        said = run_without_rights(folder, "setuid", server)
    assert "was not sent" not in said
    assert list(folder.glob("*.journal"))
    assert list(recover_each(folder)) == []
    assert list(folder.iterdir()) == []
    (run,) = client.search_runs([experiment])
    assert run.info.status == "FINISHED"
