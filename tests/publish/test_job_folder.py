"""A report goes where its job would have sent it, whatever folder `recover` runs in."""

from __future__ import annotations

import re
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from mlflow_perf.errors import DocumentError
from mlflow_perf.publish.job_folder import find_default_store, settle_store
from mlflow_perf.tracking.run_handle import RunHandle


def test_a_job_without_a_store_has_the_one_of_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not the one that `recover` is told; and a script beside it is no part of Python."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:1")
    monkeypatch.chdir(tmp_path)
    job = tmp_path / "job"
    job.mkdir()
    (job / "secrets.py").write_text("raise SystemExit(1)")
    run = RunHandle(folder=str(job), run_id="0" * 32, experiment_id="0")
    assert settle_store(run) == run.tracking_uri
    if run.tracking_uri == f"file://{job}/mlruns":  # the default of an older MLflow
        return
    assert run.tracking_uri == f"sqlite:///{job}/mlflow.db"
    with closing(sqlite3.connect(job / "mlflow.db")) as database:
        ((place,),) = database.execute("select artifact_location from experiments")
    assert place.removeprefix("file://") == f"{job}/mlruns/0"


def test_what_is_made_in_a_store_is_relative_to_the_jobs_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """MLflow resolves the place of the artifacts when it makes an experiment."""
    monkeypatch.chdir(tmp_path)
    job = tmp_path / "job"
    job.mkdir()
    uri = f"sqlite:///{tmp_path}/store.db"
    run = RunHandle(uri, folder=str(job), experiment_name="mine")
    assert settle_store(run) == uri
    with closing(sqlite3.connect(tmp_path / "store.db")) as database:
        rows = dict(database.execute("select name, artifact_location from experiments"))
    assert set(rows) == {"Default", "mine"}
    assert all(
        place.removeprefix("file://").startswith(f"{job}/mlruns/") for place in rows.values()
    )


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    """Its store was in it; a report that has another store needs no folder."""
    gone = str(tmp_path / "gone")
    with pytest.raises(DocumentError, match=re.escape(f"default store of {gone}, which is not")):
        settle_store(RunHandle(folder=gone))
    assert settle_store(RunHandle("http://host", folder=gone)) == "http://host"
    assert settle_store(RunHandle(folder="")) == ""


def test_a_folder_that_cannot_be_entered_is_an_error(tmp_path: Path) -> None:
    """What MLflow's process said last is the reason."""
    (tmp_path / "file").touch()
    with pytest.raises(DocumentError, match=r"does not find its store .*: NotADirectory"):
        find_default_store(str(tmp_path / "file"))
