"""Libraries draw random numbers in our calls without changing those that the job draws.

A client waits a random time before it repeats a request, and takes that from Python's `random`. A
job that has called `random.seed` would get other numbers after a fault of its server. MLflow and
OpenTelemetry draw identifiers, too.
"""

from __future__ import annotations

import os as _shown_os
import random
import sys
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType
from typing import Any
from uuid import UUID

from mlflow_perf.core.originals import is_native, os
from mlflow_perf.core.threads import Lock
from mlflow_perf.tracking.shared_libraries import is_own_call

_USERS = frozenset(
    {
        "azure",
        "botocore",
        "databricks",
        "google",
        "mlflow",
        "opentelemetry",
        "s3transfer",
        "urllib3",
    }
)
_modules = 0
"""How many modules there were at the last look."""


class _Random:
    """The module `random` for a library: of the system's numbers in our calls, else the job's."""

    def __getattr__(self, name: str) -> Any:
        return getattr(_own if is_own_call() and hasattr(_own, name) else random, name)

    def __setattr__(self, name: str, value: object) -> None:
        setattr(random, name, value)  # a test of the job's replaces a function

    def __delattr__(self, name: str) -> None:
        delattr(random, name)


_shared: Any = _Random()
_own = random.SystemRandom()  # it has no state, which forked processes would share
_FUNCTIONS: tuple[tuple[Any, str, Callable[..., object]], ...] = (
    (uuid, "uuid4", lambda: UUID(bytes=os.urandom(16), version=4)),
    (_shown_os, "urandom", os.urandom),
)
"""What a job replaces to have the same identifiers each time; and Python's own."""
_calls = 0
_replaced: list[_Replaced] = []
"""While calls of ours go on."""
_lock = Lock()


@dataclass
class _Replaced:
    """A function that a job has put in the place of one of Python's; in our calls, Python's own."""

    module: Any
    name: str
    own: Callable[..., object]
    of_job: Callable[..., object]

    def __call__(self, *args: Any) -> object:
        return (self.own if is_own_call() else self.of_job)(*args)


@contextmanager
def drawing_apart() -> Iterator[None]:
    """Let a call of ours draw no random number and no identifier that the job would draw."""
    global _calls  # noqa: PLW0603 - of the process
    separate_loaded()
    with _lock:
        _calls += 1
        for module, name, own in _FUNCTIONS if _calls == 1 else ():
            found = getattr(module, name)
            if not is_native(found) and getattr(found, "__globals__", None) is not vars(module):
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


def uses_random(module: str) -> bool:
    """Return whether a module belongs to a library that MLflow sends by."""
    return module.partition(".")[0] in _USERS


def separate_random(module: ModuleType) -> None:
    """Let a module draw numbers of the system's in our calls."""
    own = vars(module)
    if own.get("random") is random:
        own["random"] = _shared


def separate_loaded() -> None:
    """Let all modules of such libraries do so that are loaded already, by the job too."""
    global _modules  # noqa: PLW0603 - of the process
    count = len(sys.modules)
    if count == _modules:  # a look at all of them takes 2 ms
        return
    _modules = count
    for name, module in list(sys.modules.items()):
        if uses_random(name) and isinstance(module, ModuleType):
            separate_random(module)


def _forget_in_child() -> None:
    global _calls, _lock
    _calls, _lock = 0, Lock()
    _put_back()


if hasattr(_shown_os, "register_at_fork"):
    _shown_os.register_at_fork(after_in_child=_forget_in_child)
