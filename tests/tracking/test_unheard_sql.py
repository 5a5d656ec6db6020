"""Listeners of the job to all of SQLAlchemy, and calls of ours."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from mlflow import MlflowClient
from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore
from sqlalchemy import create_engine, event, text
from sqlalchemy.engine import Engine
from sqlalchemy.orm import Mapper, Query, Session
from sqlalchemy.pool import Pool
from tests.tracking.own_calls import call_as_own

from mlflow_perf.tracking.client import open_client

_EVENTS = (
    (Engine, "before_cursor_execute"),  # to count statements
    (Engine, "handle_error"),
    (Engine, "connect"),  # to set pragmas
    (Pool, "checkout"),
    (Session, "before_commit"),
    (Session, "do_orm_execute"),
    (Mapper, "before_insert"),  # to keep who changed what
    (Mapper, "load"),
    (Query, "before_compile"),  # to leave out what is marked as deleted
)


@pytest.fixture
def uri(tmp_path: Path, _migrated_store: Path) -> str:
    """Return a store that nobody has opened."""
    return f"sqlite:///{shutil.copy(_migrated_store, tmp_path)}"


@pytest.fixture
def heard() -> Iterator[list[str]]:
    """Return the events that the job's listeners to whole classes have heard."""
    found: list[str] = []
    listeners = [(kind, name, lambda *_, name=name: found.append(name)) for kind, name in _EVENTS]
    for one in listeners:
        event.listen(*one)
    yield found
    for one in listeners:
        event.remove(*one)


def _use(uri: str) -> None:
    client = open_client(uri)
    run = client.create_run("0")
    client.set_tag(run.info.run_id, "a", "b")
    client.get_run(run.info.run_id)
    with pytest.raises(Exception, match="nothing"):
        client.get_run("nothing")


def test_the_job_hears_nothing_of_own_calls_and_all_of_its_own(uri: str, heard: list[str]) -> None:
    call_as_own(lambda: _use(uri))
    assert heard == []
    client = MlflowClient(uri)  # the job's, on the engine that we opened
    client.set_tag(client.create_run("0").info.run_id, "a", "b")
    assert {"before_cursor_execute", "checkout", "before_commit", "before_insert", "load"} <= {
        *heard
    }
    engine = create_engine("sqlite://")
    heard.clear()
    with engine.connect() as connection:
        connection.execute(text("select 1"))
    assert heard == ["connect", "checkout", "before_cursor_execute"]


def test_what_listens_later_and_pools_that_follow_make_no_difference(uri: str) -> None:
    call_as_own(lambda: _use(uri))
    SqlAlchemyStore._engine_map[uri].dispose()
    heard: list[str] = []

    def hear(*_: Any) -> None:
        heard.append("connect")

    event.listen(Pool, "connect", hear)
    try:
        call_as_own(lambda: _use(uri))
        assert heard == []
        SqlAlchemyStore._engine_map[uri].dispose()
        MlflowClient(uri).search_experiments()
        assert heard == ["connect"]
    finally:
        event.remove(Pool, "connect", hear)


def test_the_listeners_of_mlflow_itself_are_called(uri: str) -> None:
    """It teaches SQLite to match regular expressions, and sets how long to wait for others."""
    call_as_own(lambda: _use(uri))

    def ask() -> list[Any]:
        with SqlAlchemyStore._engine_map[uri].connect() as connection:
            return [*connection.execute(text("select 'abc' regexp 'b'"))]

    assert call_as_own(ask) == [(1,)]


def test_a_listener_that_refuses_does_not_refuse_ours(uri: str) -> None:
    def refuse(*_: Any) -> None:
        raise PermissionError("read only")

    event.listen(Session, "before_flush", refuse)
    try:
        call_as_own(lambda: _use(uri))
    finally:
        event.remove(Session, "before_flush", refuse)
