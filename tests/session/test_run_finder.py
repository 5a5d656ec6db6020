"""Which run a job reports to: never at the price of the job's start."""

from __future__ import annotations

import threading

import pytest

from mlflow_perf.node.place import detect
from mlflow_perf.session import run_finder
from mlflow_perf.session.run_finder import RunFinder
from mlflow_perf.tracking.run_handle import RunHandle


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
    finally:
        release.set()
