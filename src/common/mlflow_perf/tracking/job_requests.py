"""What a job has put around the requests of its process, or in the place of what answers them.

A wrapper, as for a time-out, a log or a count of all requests, calls what it wraps: calls of ours
do so themselves. A test double answers in the place of servers: no call of ours is made.
"""

from __future__ import annotations

import contextlib
import functools
import types
from collections.abc import Iterator
from typing import Any, NamedTuple

from mlflow_perf.core.originals import sys
from mlflow_perf.core.replaced import is_in_library

_SENDERS = (
    ("requests.adapters", "HTTPAdapter", "send"),
    ("requests.sessions", "Session", "send"),
    ("requests.sessions", "Session", "request"),
    ("requests.sessions", "Session", "get_adapter"),
    ("urllib3.connectionpool", "HTTPConnectionPool", "urlopen"),
    ("urllib3.connectionpool", "HTTPConnectionPool", "ConnectionCls"),
    ("urllib3.connectionpool", "HTTPSConnectionPool", "ConnectionCls"),
)
_DEPTH = 5
"""How many wrappers may be around each other."""


class Sender(NamedTuple):
    """A function of a library that sends requests.

    Attributes:
        kind: The class that has it.
        name: Its name there.
        found: What is there now.
        wrapped: The library's own function below the job's wrappers; None where that is not known.
    """

    kind: Any
    name: str
    found: Any
    wrapped: Any


def find_double() -> str:
    """Return the library that answers HTTP in the place of servers; nothing if there is none.

    What adds to the requests, as for tracing, keeps the module's name of what it wraps.
    """
    for one in _list_senders():
        by = str(getattr(_strip(one.found), "__module__", "requests")).partition(".")[0]
        if by not in ("requests", "urllib3") and one.wrapped is None:
            return by
    return ""


def list_wrappers() -> list[Sender]:
    """Return the functions that have a wrapper of the job's own around them."""
    wrapped = (one for one in _list_senders() if one.wrapped not in (None, _strip(one.found)))
    return [one for one in wrapped if not _is_of_library(_strip(one.found))]


def _list_senders() -> Iterator[Sender]:
    for module, kind, name in _SENDERS:
        found = getattr(sys.modules.get(module), kind, None)
        # A cache replaces the whole class by one of its own below it.
        own = next((one for one in getattr(found, "__mro__", ()) if one.__module__ == module), None)
        if own is not None:
            function = vars(own).get(name)
            yield Sender(own, name, function, _find_wrapped(function, own, name, _DEPTH))


def _strip(function: Any) -> Any:
    """Return what a `partial` or `partialmethod` is of: it sets a default, as of a time-out."""
    while isinstance(function, functools.partial | functools.partialmethod):
        function = function.func
    return function


def _is_of_library(function: Any) -> bool:
    return is_in_library(getattr(getattr(function, "__code__", None), "co_filename", ""))


def _find_wrapped(value: Any, kind: Any, name: str, depth: int) -> Any:
    """Return a library's own function, if a function of the job's holds it, to call it."""
    function = _strip(value)
    if not isinstance(function, types.FunctionType) or not depth:
        return None
    # Its module and name may be copied to a wrapper, but not those of its code.
    is_own = function.__globals__.get("__name__") == kind.__module__
    if is_own and function.__code__.co_name == name:
        return function
    held = [getattr(function, "__wrapped__", None)]
    if not _is_of_library(function):  # a library's double keeps the function, too
        names = function.__code__.co_names
        held += [function.__globals__.get(one) for one in names]
        held += [vars(kind).get(one) for one in names if one != name]
        held += [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
        for cell in function.__closure__ or ():
            with contextlib.suppress(ValueError):  # nothing has been put into it yet
                held.append(cell.cell_contents)
    found = (_find_wrapped(one, kind, name, depth - 1) for one in held)
    return next((one for one in found if one is not None), None)
