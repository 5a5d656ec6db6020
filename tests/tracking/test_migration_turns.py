"""Migrations of ours beside those of the job."""

from __future__ import annotations

import threading
from contextlib import AbstractContextManager
from types import SimpleNamespace
from typing import Any, cast

import pytest
from alembic import context
from alembic.config import Config
from alembic.operations import Operations
from alembic.runtime.environment import EnvironmentContext

from mlflow_perf.tracking import migration_turns
from mlflow_perf.tracking.migration_turns import migrating_alone


def _begin() -> EnvironmentContext:
    return EnvironmentContext(Config(), cast("Any", None))


def _operate() -> AbstractContextManager[Operations]:
    """Begin the part within a migration that changes tables."""
    return Operations.context(cast("Any", SimpleNamespace(impl=None)))


def test_a_migration_of_the_jobs_waits_for_ours() -> None:
    order: list[str] = []

    def migrate() -> None:
        with _begin():
            order.append("the job's")
            assert context.config is not None

    job = threading.Thread(target=migrate)
    with migrating_alone():
        job.start()
        with _begin(), _operate():
            job.join(0.1)
            order.append("ours")
        assert job.is_alive()
    job.join(60)
    assert order == ["ours", "the job's"]
    assert "install_alone" not in EnvironmentContext._install_proxy.__name__


def test_ours_waits_for_one_of_the_jobs_which_goes_on() -> None:
    """It began before anybody could make it wait, and needs a further turn."""
    begun, waits, order = threading.Event(), threading.Event(), list[str]()

    def migrate() -> None:
        with _begin():
            begun.set()
            waits.wait(60)
            with _operate():
                order.append("the job's")

    job = threading.Thread(target=migrate)
    job.start()
    begun.wait(60)
    threading.Timer(0.1, waits.set).start()
    with migrating_alone():
        order.append("ours")
    job.join(60)
    assert order == ["the job's", "ours"]


def test_nobody_waits_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(migration_turns, "_MOST_SEC", 0.05)
    with _begin(), migrating_alone():
        job = threading.Thread(target=lambda: _begin().__enter__())
        job.start()
        job.join(60)
        assert not job.is_alive()
