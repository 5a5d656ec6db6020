"""Lets calls of ours use a database unheard by the job's listeners of SQLAlchemy.

A job may listen to all engines, pools, sessions or mappers of its process: to count statements, to
trace or to refuse them. `sentry_sdk` does so by itself.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

from mlflow_perf.tracking.shared_libraries import is_own_call

_MARK = "_is_unheard_by_job"


def leave_engine_unheard(engine: Any) -> None:
    """Let what listens to a whole class pass by what calls of ours do with an engine.

    In calls of the job's it is called as before, and what listens to this engine always is.

    Args:
        engine: An engine of SQLAlchemy that has not connected yet.
    """
    for one in (engine, engine.pool, engine.dialect):
        _give_own_listeners(one)
    # Of this class is also the pool that follows when the engine is disposed of.
    engine.pool.__class__ = _make_unheard(engine.pool.__class__)


def leave_sessions_unheard(make_session: Any) -> None:
    """Do the same with MLflow's sessions, and with its models.

    Args:
        make_session: A `sessionmaker` of SQLAlchemy that has made none yet.
    """
    from mlflow.store.db.base_sql_model import Base
    from sqlalchemy.orm import Query

    # The first is of this `sessionmaker` alone. The second is of all, but each query is an object
    # of its own, and SQLAlchemy makes further ones for what belongs to a row.
    for kind in (make_session.class_, Query):
        _divert_listeners(kind)
    for mapper in Base.registry.mappers:
        for one in (mapper, mapper.class_manager):
            _give_own_listeners(one)


class _JobListeners(deque[Callable[..., Any]]):
    """What listens to a class; nothing for calls of ours."""

    def __iter__(self) -> Iterator[Callable[..., Any]]:
        return iter(()) if is_own_call() else super().__iter__()

    def __len__(self) -> int:
        return 0 if is_own_call() else super().__len__()

    def __bool__(self) -> bool:
        return len(self) > 0


def _divert_listeners(kind: Any) -> None:
    """Make new lists of what listens to a class; objects that it has keep those of before."""
    for event in kind.dispatch._event_descriptors:  # noqa: SLF001 - there is no public name
        before = event._clslevel.get(kind, ())  # noqa: SLF001
        if not isinstance(before, _JobListeners):
            event._clslevel[kind] = _JobListeners(before)  # noqa: SLF001
            event.update_subclass(kind)  # those of its base classes
    kind.dispatch._empty_listener_reg.pop(kind, None)  # noqa: SLF001 - keeps those of before


@cache
def _make_unheard(kind: Any) -> Any:
    """Return a class that is as another, with lists of its own of what listens to it."""
    if _MARK in vars(kind):
        return kind
    # SQLAlchemy names loggers by module and class.
    own = type(kind)(kind.__name__, (kind,), {"__module__": kind.__module__, _MARK: True})
    _divert_listeners(own)
    return own


def _give_own_listeners(target: Any) -> None:
    before, kind = target.dispatch, _make_unheard(target.__class__)
    if before._instance_cls is not kind:  # noqa: SLF001
        target.dispatch = kind.dispatch._for_class(kind)  # noqa: SLF001
        target.dispatch._update(before, only_propagate=False)  # noqa: SLF001
