"""Stores that are databases, and who else uses them."""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
import sys
from logging import config
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from mlflow.exceptions import MlflowException
from mlflow.store.db import utils
from sqlalchemy import orm
from sqlalchemy.exc import NoInspectionAvailable

from mlflow_perf.core.background_call import BackgroundCall
from mlflow_perf.errors import RunNotFoundError
from mlflow_perf.tracking import opened_store
from mlflow_perf.tracking.client import open_client
from mlflow_perf.tracking.load import make_client
from mlflow_perf.tracking.opened_store import opening_store


@pytest.fixture
def old(tmp_path: Path, _migrated_store: Path) -> Path:
    """Return the file of a store of an older MLflow, which lacks a table of today's."""
    file = Path(shutil.copy(_migrated_store, tmp_path / "old.db"))
    with contextlib.closing(sqlite3.connect(file)) as database, database:
        database.execute("DROP TABLE trace_info")
        database.execute("UPDATE alembic_version SET version_num = '867495a8f9d4'")
    return file


def test_a_store_of_an_older_mlflow_is_not_migrated(
    old: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """MLflow would do so without a question, and the older one could not open it any more."""
    before = old.read_bytes()
    with pytest.raises(MlflowException, match=r"\(867495a8f9d4\).* left to .* db upgrade"):
        open_client(f"sqlite:///{old}")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{old}")
    with pytest.raises(RunNotFoundError, match="867495a8f9d4"):
        make_client()
    assert old.read_bytes() == before


def test_a_database_that_refuses_is_not_asked_for_minutes(monkeypatch: pytest.MonkeyPatch) -> None:
    """MLflow tries ten times, in 102 s, and keeps other calls waiting meanwhile."""
    slept: list[float] = []
    monkeypatch.setattr(utils, "create_sqlalchemy_engine", lambda _: object())
    monkeypatch.setattr(utils, "MAX_RETRY_COUNT", 10)
    monkeypatch.setattr(utils, "time", SimpleNamespace(sleep=slept.append))
    monkeypatch.setattr(opened_store, "most_attempts", 5)  # commands take fewer
    connect: Any = utils.create_sqlalchemy_engine_with_retry
    with opening_store("mysql://x"), pytest.raises(NoInspectionAvailable):
        connect("mysql://x")
    assert slept == pytest.approx([0.1, 0.3, 0.7, 1.5])
    with pytest.raises(NoInspectionAvailable):
        connect("mysql://x")
    assert len(slept) == 4 + 9


def test_only_the_thread_that_opens_is_kept_from_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread of the job does meanwhile as it would without us."""
    called = []
    monkeypatch.setattr(orm, "configure_mappers", lambda: called.append("models"))
    private: Any = utils
    monkeypatch.setattr(private, "_initialize_tables", lambda _: called.append("tables"))
    monkeypatch.setattr(config, "fileConfig", lambda *_, **__: called.append("loggers"))
    before = orm.configure_mappers, private._initialize_tables

    def use() -> None:
        orm.configure_mappers()
        private._initialize_tables(None)
        config.fileConfig("alembic.ini", disable_existing_loggers=False)

    with opening_store("sqlite:///mlflow.db"):
        orm.configure_mappers()
        config.fileConfig("alembic.ini", disable_existing_loggers=False)
        BackgroundCall(use, name="of the job").result(30)
    assert called == ["models", "tables", "loggers"]
    assert (orm.configure_mappers, private._initialize_tables) == before


@pytest.mark.parametrize("uri", ["http://127.0.0.1:5000", "file:///tmp/mlruns", "databricks"])
def test_other_stores_need_no_database(uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """MLflow's client alone has no SQLAlchemy."""
    monkeypatch.setitem(sys.modules, "sqlalchemy", None)
    with opening_store(uri):
        pass
