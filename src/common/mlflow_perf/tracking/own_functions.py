"""Calls of ours use Python's own functions where the job has put others in their place.

A job replaces `uuid.uuid4` to have the same identifiers each time, `time.sleep` to simulate time,
or `tempfile.mkdtemp` to keep its files: MLflow and its libraries would draw the job's identifiers,
move its clock, and delete its folder. A wrapper around all requests would print or count ours, too.
Where `unittest.mock` replaces one, there is no call of ours.
"""

from __future__ import annotations

import os
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple
from uuid import UUID

from mlflow_perf.core.originals import load_native
from mlflow_perf.core.threads import Lock
from mlflow_perf.core.tokens import make_folder
from mlflow_perf.tracking.job_requests import list_wrappers
from mlflow_perf.tracking.shared_libraries import is_own_call

_read_random = load_native(os.name, "urandom").urandom
_FUNCTIONS: tuple[tuple[Any, str, Callable[..., object]], ...] = (
    (os, "urandom", _read_random),
    (tempfile, "mkdtemp", make_folder),
    (time, "sleep", load_native("time", "sleep").sleep),
    (uuid, "uuid4", lambda: UUID(bytes=_read_random(16), version=4)),
)
"""Module, function, and what our calls use for it."""
_calls = 0
_divided: list[_Divided] = []
"""While calls of ours go on."""
_lock = Lock()


class _Divided(NamedTuple):
    """A function that the job has put in the place of another, for the job alone."""

    holder: Any
    name: str
    now: Callable[..., object]
    of_job: Any


@contextmanager
def own_functions() -> Iterator[None]:
    """Let the block, a call of ours in this thread, use no function of the job's for Python's."""
    global _calls  # noqa: PLW0603 - of the process
    with _lock:
        _calls += 1
        if _calls == 1:
            _divide_all()
    try:
        yield
    finally:
        with _lock:
            _calls -= 1
            if not _calls:
                _put_back()


def _divide_all() -> None:
    for module, name, own in _FUNCTIONS:
        found = getattr(module, name)
        if found is not own and getattr(found, "__globals__", None) is not vars(module):
            of_module = _Choice(own, found)
            _divided.append(_Divided(module, name, of_module, found))
            setattr(module, name, of_module)
    for sender in list_wrappers():
        of_kind = _choose_method(sender.wrapped, sender.found)
        _divided.append(_Divided(sender.kind, sender.name, of_kind, sender.found))
        setattr(sender.kind, sender.name, of_kind)


class _Choice:
    """Python's function in calls of ours; in all others the job's, whose attributes it has."""

    def __init__(self, own: Callable[..., object], of_job: Callable[..., object]) -> None:
        self._own, self._of_job = own, of_job

    def __call__(self, *args: Any, **options: Any) -> object:
        return (self._own if is_own_call() else self._of_job)(*args, **options)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._of_job, name)


def _choose_method(own: Any, of_job: Any) -> Callable[..., object]:
    def call(self: Any, *args: Any, **options: Any) -> object:
        one = own if is_own_call() else of_job
        return one.__get__(self, type(self))(*args, **options)

    call.__wrapped__ = own  # type: ignore[attr-defined]
    return call


def _put_back() -> None:
    while _divided:
        one = _divided.pop()
        if vars(one.holder).get(one.name) is one.now:
            setattr(one.holder, one.name, one.of_job)


def _forget_in_child() -> None:
    global _calls, _lock
    _calls, _lock = 0, Lock()
    _put_back()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_in_child)
