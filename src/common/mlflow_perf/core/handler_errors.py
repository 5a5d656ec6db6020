"""Errors that a signal handler of the job raised while the main thread was in our code."""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # typeshed does not have it
import functools
from types import CodeType
from typing import Any


def is_from_handler(error: BaseException) -> bool:
    """Return whether a signal handler raised an error, for example to enforce a time limit.

    Python runs a handler between any two instructions of the main thread, so its error appears in
    whatever runs there. It is the job's error: code of ours that catches every exception must raise
    it again.

    Args:
        error: The error; its traceback names the functions that it passed.
    """
    # Those of `signal` make each number an `Enum`: slower, and a handler's error is lost.
    handlers = {_find_code(_signal.getsignal(n)) for n in _signal.valid_signals()} - {None}
    seen: list[BaseException] = []
    cause: BaseException | None = error
    while cause is not None and not any(cause is one for one in seen):
        trace = cause.__traceback__
        while trace is not None:
            if trace.tb_frame.f_code in handlers:
                return True
            trace = trace.tb_next
        seen.append(cause)
        cause = cause.__cause__  # a codec wraps whatever is raised in it
    return False


def _find_code(handler: Any) -> CodeType | None:
    """Return the code of a function, a method, a partial or an object with `__call__`."""
    while isinstance(handler, functools.partial):
        handler = handler.func
    for callable_ in (handler, getattr(handler, "__call__", None)):  # noqa: B004 - its code
        code = getattr(getattr(callable_, "__func__", callable_), "__code__", None)
        if isinstance(code, CodeType):
            return code
    return None
