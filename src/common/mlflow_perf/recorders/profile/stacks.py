"""Reads the stack of another thread of this process, in one piece."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from importlib import import_module
from itertools import accumulate, chain, compress, islice, repeat, starmap, takewhile, tee
from operator import attrgetter, methodcaller, truth
from types import CodeType
from typing import Any

from mlflow_perf.core.originals import gc, sys

# Before Python 3.12, all interpreters of a process share one lock.
_list_interpreters: Callable[[], Sequence[object]] = partial(list, (None,))
is_main_interpreter = True
if sys.version_info >= (3, 12):
    # Private; the public module is of Python 3.14, and written in Python.
    for _name in ("_interpreters", "_xxsubinterpreters"):
        with suppress(ImportError):
            _module = import_module(_name)
            _list_interpreters = _module.list_all
            is_main_interpreter = _module.get_current() == _module.get_main()
            break

Place = tuple[CodeType, int]
"""The code of a frame and its last instruction."""
Call = tuple[Callable[..., Any], tuple[Any, ...]]
"""A function and its arguments."""

# Each frame that is looked at becomes an object of some 300 bytes in the job's memory. By default
# Python ends a recursion at 1,000.
_MOST_FRAMES = 2_000

_call: Callable[[Callable[[], Any]], Any] = methodcaller("__call__")
_get_place = attrgetter("f_code", "f_lasti")
_get: Callable[[Any, Any], Any] = getattr


def find_obstacle() -> str:
    """Return why stacks cannot be read, as words after "in"; nothing where they can.

    Other threads stand still while one runs, but for these: there, to read can end the process.
    """
    if not getattr(sys, "_is_gil_enabled", lambda: True)():
        return "a free-threaded interpreter"
    return "a process with sub-interpreters" if len(_list_interpreters()) > 1 else ""


def list_idents() -> list[int]:
    """Return the idents of Python's threads, the newest first; none where stacks cannot be read."""
    return [*chain.from_iterable(_list_frames())]


def read_stack(ident: int) -> list[Place]:
    """Return the places of a thread's 2,000 innermost frames, innermost first; empty if it is gone.

    The frames are followed within one call into C, during which no other thread runs. So the stack
    is of one moment, and no frame is kept, with the job's variables in it.

    Args:
        ident: The thread's ident.
    """
    return _follow(ident, ())


def read_stack_after(ident: int, calls: Iterable[Call], returned: list[Any]) -> list[Place]:
    """Call functions written in C, and read a stack in the same call into C.

    So the other thread does not go on between the moment at which this one gets the interpreter's
    lock, in one of these functions, and the reading of its stack.

    Args:
        ident: The thread's ident.
        calls: The functions, and their arguments.
        returned: Gets what they return, also if one of them raises.
    """
    first = chain(*[starmap(function, (arguments,)) for function, arguments in calls])
    return _follow(ident, map(returned.append, first))


def _list_frames() -> Iterator[dict[int, Any]]:
    """Return an iterator over one item, the innermost frame of each thread.

    Python lists the threads of all interpreters. So whether there are others is found out within
    the same call into C.
    """
    counts = map(len, starmap(_list_interpreters, ((),)))
    choices = map({1: sys._current_frames}.get, counts, repeat(dict))  # noqa: SLF001 - documented
    return map(_call, choices)


def _walk(ident: int) -> Iterator[Place]:
    """Return an iterator over the frames' places that runs no Python code."""
    innermost: Iterator[Any] = map(methodcaller("get", ident), _list_frames())
    frames = accumulate(chain(innermost, repeat("f_back")), _get)
    return map(_get_place, takewhile(truth, islice(frames, _MOST_FRAMES)))


if sys.version_info[:2] == (3, 11):

    def _follow(ident: int, first: Iterable[None]) -> list[Place]:
        """Follow the frames while no garbage is collected.

        Python 3.11 makes the frame objects now. A collection in the midst of that can run the
        job's finalizers, which lets the other thread go on: then the interpreter writes into the
        memory of a frame that has ended. Whether the job has switched the collector off is found
        out within the same call into C, where the job cannot change it.
        """
        was_on, is_on = tee(map(_call, (gc.isenabled,)))
        switch_on = map(_call, compress((gc.enable,), is_on))
        try:
            return [
                *filter(None, chain(
                    first, map(_call, compress((gc.disable,), was_on)), _walk(ident), switch_on
                ))
            ]  # fmt: skip
        except BaseException:
            list(switch_on)
            raise
else:

    def _follow(ident: int, first: Iterable[None]) -> list[Place]:
        return [*filter(None, chain(first, _walk(ident)))]


def find_line(place: Place) -> int:
    """Return the line of a place; 0 where the compiler added code that has none."""
    code, last = place
    if last < 0:
        return code.co_firstlineno
    for begin, end, line in code.co_lines():
        if begin <= last < end:
            return line or 0
    return 0
