"""Opens a database as MLflow's store without harm to those who use it, or SQLAlchemy, as well."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

from mlflow_perf.core.uris import is_database
from mlflow_perf.tracking.migration_turns import migrating_alone
from mlflow_perf.tracking.new_store import OTHER_SCHEMA
from mlflow_perf.tracking.unheard_sql import leave_engine_unheard, leave_sessions_unheard

most_attempts = 5  # in 3 s
"""How often to try to connect to a database. MLflow's own ten attempts take 102 s."""
_opening: dict[int, int] = {}  # native id of a thread → how often it has tried to connect


@contextlib.contextmanager
def opening_store(uri: str) -> Iterator[None]:
    """Leave alone what MLflow does besides, while this thread makes a client of a store.

    - MLflow configures all models of SQLAlchemy in the process. One of the job's may refer to
      another that is yet to come, and would fail for good.
    - An older MLflow sets loggers when it makes tables, that of the root among them.
    - MLflow waits for minutes for a database that refuses, and holds up other calls.
    - MLflow migrates a database of an older version without a question; that version, perhaps the
      one of the job, could not open it any more.
    - What in the job listens to all of SQLAlchemy would hear our statements.

    Args:
        uri: The store.
    """
    if not is_database(uri):
        yield
        return
    from logging import config

    from mlflow.store.db import utils
    from sqlalchemy import orm

    thread = threading.get_native_id()
    _opening[thread] = 0
    try:
        with (
            _replaced(orm, "configure_mappers", _configure_own_models),
            _replaced(config, "fileConfig", _leave_loggers),
            _replaced(utils, "_initialize_tables", _refuse_to_migrate),
            _replaced(utils, "create_sqlalchemy_engine", _connect_at_last),
            _replaced(utils, "_get_managed_session_maker", _make_unheard_sessions),
        ):
            yield
    finally:
        _opening.pop(thread, None)


@contextlib.contextmanager
def _replaced(module: Any, name: str, stand_in: Callable[..., Any]) -> Iterator[None]:
    """Replace a function of a module for the threads that open a store."""
    original = getattr(module, name, None)
    if original is None:  # another version, which does without
        yield
        return

    def call(*args: Any, **options: Any) -> Any:
        if threading.get_native_id() in _opening:
            return stand_in(original, *args, **options)
        return original(*args, **options)

    setattr(module, name, call)
    try:
        yield
    finally:
        if getattr(module, name) is call:
            setattr(module, name, original)


def _configure_own_models(_: Callable[[], None]) -> None:
    """Configure the models of MLflow alone."""
    from mlflow.store.db.base_sql_model import Base

    Base.registry.configure(cascade=True)


def _connect_at_last(create_engine: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """Return the engine with which MLflow tries to connect; in the last attempt, connect here.

    MLflow would try again after what fails in its own hands.
    """
    engine = create_engine(*args, **options)
    with contextlib.suppress(Exception):  # another SQLAlchemy: the job hears us
        leave_engine_unheard(engine)
    _opening[thread := threading.get_native_id()] += 1
    if _opening[thread] >= most_attempts:
        import sqlalchemy

        sqlalchemy.inspect(engine)
    return engine


def _make_unheard_sessions(make: Callable[..., Any], make_session: Any, *rest: Any) -> Any:
    with contextlib.suppress(Exception):  # another SQLAlchemy
        leave_sessions_unheard(make_session)
    return make(make_session, *rest)


def _leave_loggers(*_: object, **__: object) -> None:
    pass


def _refuse_to_migrate(initialize: Callable[[Any], None], engine: Any) -> None:
    """Make the tables in an empty database alone.

    Raises:
        MlflowException: When there are those of another version of MLflow.
    """
    from mlflow.exceptions import MlflowException
    from mlflow.store.db import utils
    from mlflow.version import VERSION

    private: Any = utils  # as MLflow looks it up
    found = private._get_schema_version(engine)  # noqa: SLF001
    if found not in (None, private._get_latest_schema_revision()):  # noqa: SLF001
        raise MlflowException(
            f"The store has an {OTHER_SCHEMA} ({found}), and is left to the MLflow that uses it; "
            f"to migrate it to {VERSION}, run: mlflow db upgrade"
        )
    with migrating_alone():
        initialize(engine)
