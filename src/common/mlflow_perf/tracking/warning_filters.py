"""Lets the filters of warnings that come with MLflow's libraries give way to the job's.

A library puts its filters before all others when it is imported. Where that import is ours, they go
behind those of the job, so that what the job makes an error stays one. When the job comes to use
the library, they go to the front, as its own import would have put them.

Python forgets what it has warned of once when the filters change: not for a change of ours.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

from mlflow_perf.core.own_cost import call_when_imported, is_unused

_private = vars(warnings)
_ADD = "_add_filter"
_NOTES = "_filters_mutated", "_filters_mutated_lock_held"  # the second from Python 3.14 on


def put_behind(is_own: Callable[[], bool]) -> Callable[[], None]:
    """Put the filters that calls of ours add behind the job's, from now on; return what ends that.

    Args:
        is_own: Returns whether this thread is in a call of ours.
    """
    lasting, add = warnings.filters, _private.get(_ADD)
    if add is None:  # Python may call it otherwise one day
        return lambda: None

    def add_filter(*item: Any, append: bool) -> None:
        if append or not is_own():
            add(*item, append=append)
            return
        caller = sys._getframe(2)  # noqa: SLF001 - of `filterwarnings` or `simplefilter`
        package = str(caller.f_globals.get("__name__")).partition(".")[0]
        is_behind = is_unused(package)
        add(*item, append=is_behind)
        if is_behind and warnings.filters is lasting:  # not a library's own `catch_warnings`
            call_when_imported(package, partial(_bring_forward, item))

    def leave_to_job(note: Callable[[], None]) -> Callable[[], None]:
        return lambda: None if is_own() else note()

    before = {name: _private[name] for name in (_ADD, *_NOTES) if name in _private}
    ours = {name: add_filter if name == _ADD else leave_to_job(before[name]) for name in before}

    def end() -> None:
        for name, function in before.items():
            if _private[name] is ours[name]:
                _private[name] = function

    _private.update(ours)
    return end


def _bring_forward(item: tuple[Any, ...]) -> None:
    _private[_ADD](*item, append=False)
