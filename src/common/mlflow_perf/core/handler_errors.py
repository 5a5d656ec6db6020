"""Errors that the job raised while its thread was in our code: by a handler, or another thread."""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # typeshed does not have it
import functools
import opcode
import sys
from types import CodeType
from typing import Any

_RAISING = {opcode.opmap[name] for name in ("RAISE_VARARGS", "RERAISE")}

_getsignal = _signal.getsignal  # that of the module hides a handler of ours during a block


def is_from_handler(error: BaseException) -> bool:
    """Return whether the job raised an error in our code, for example to enforce a time limit.

    Python runs a signal handler between any two instructions of the main thread, so its error
    appears in whatever runs there; as does, in any thread, what another one throws into it. It is
    the job's error: code of ours that catches every exception must raise it again.

    Args:
        error: The error; its traceback names the functions that it passed.
    """
    # Those of `signal` make each number an `Enum`: slower, and a handler's error is lost.
    handlers = {_find_code(_getsignal(n)) for n in _signal.valid_signals()} - {None}
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
    return _is_thrown_in(error)


def _is_thrown_in(error: BaseException) -> bool:
    """Return whether another thread threw an error in (`PyThreadState_SetAsyncExc`).

    It is made of its class alone, and there without a `raise`. So is what C raises, but that says
    why, or has a class of Python's library.
    """
    last = error.__traceback__
    is_python = type(error).__module__.partition(".")[0] in sys.stdlib_module_names
    if last is None or is_python or error.args or error.__cause__ is not None:
        return False
    while last.tb_next is not None:
        last = last.tb_next
    return last.tb_frame.f_code.co_code[last.tb_lasti] not in _RAISING


def _find_code(handler: Any) -> CodeType | None:
    """Return the code of a function, a method, a partial or an object with `__call__`."""
    while isinstance(handler, functools.partial):
        handler = handler.func
    for callable_ in (handler, getattr(handler, "__call__", None)):  # noqa: B004 - its code
        code = getattr(getattr(callable_, "__func__", callable_), "__code__", None)
        if isinstance(code, CodeType):
            return code
    return None
