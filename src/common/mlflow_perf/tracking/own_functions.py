"""Calls of ours use Python's own functions where the job has put others in their place.

A job replaces `uuid.uuid4` to have the same identifiers each time, `time.sleep` to simulate time,
or `tempfile.mkdtemp` to keep its files: MLflow and its libraries would draw the job's identifiers,
move its clock, and delete its folder. Where `unittest.mock` replaces one, there is no call of ours.
"""

from __future__ import annotations

import os
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from mlflow_perf.core.originals import load_native
from mlflow_perf.core.threads import Lock
from mlflow_perf.core.tokens import make_folder
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
_replaced: list[_Replaced] = []
"""While calls of ours go on."""
_lock = Lock()


@dataclass
class _Replaced:
    """A function that the job has put in the place of one of Python's, for the job alone."""

    module: Any
    name: str
    own: Callable[..., object]
    of_job: Callable[..., object]

    def __call__(self, *args: Any, **options: Any) -> object:
        return (self.own if is_own_call() else self.of_job)(*args, **options)


@contextmanager
def own_functions() -> Iterator[None]:
    """Let the block, a call of ours in this thread, use no function of the job's for Python's."""
    global _calls  # noqa: PLW0603 - of the process
    with _lock:
        _calls += 1
        for module, name, own in _FUNCTIONS if _calls == 1 else ():
            found = getattr(module, name)
            if found is not own and getattr(found, "__globals__", None) is not vars(module):
                _replaced.append(one := _Replaced(module, name, own, found))
                setattr(module, name, one)
    try:
        yield
    finally:
        with _lock:
            _calls -= 1
            if not _calls:
                _put_back()


def _put_back() -> None:
    while _replaced:
        one = _replaced.pop()
        if getattr(one.module, one.name) is one:
            setattr(one.module, one.name, one.of_job)


def _forget_in_child() -> None:
    global _calls, _lock
    _calls, _lock = 0, Lock()
    _put_back()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_in_child)
