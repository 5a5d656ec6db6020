"""Reads the stack of another thread of this process, in one piece."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import accumulate, chain, compress, repeat, starmap, takewhile, tee
from operator import attrgetter, methodcaller, truth
from types import CodeType
from typing import Any

from mlflow_perf.core.originals import gc, sys

Place = tuple[CodeType, int]
"""The code of a frame and its last instruction."""
Call = tuple[Callable[..., Any], tuple[Any, ...]]
"""A function and its arguments."""

_get_place = attrgetter("f_code", "f_lasti")
_get: Callable[[Any, Any], Any] = getattr


def can_read_stacks() -> bool:
    """Return whether other threads stand still while one runs: not in a free-threaded build."""
    return bool(getattr(sys, "_is_gil_enabled", lambda: True)())


def read_stack(ident: int) -> list[Place]:
    """Return the place of each frame of a thread, the innermost first; empty for one that is gone.

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


def _walk(ident: int) -> Iterator[Place]:
    """Return an iterator over the frames' places that runs no Python code."""
    of_threads = starmap(sys._current_frames, ((),))  # noqa: SLF001 - documented nevertheless
    innermost: Iterator[Any] = map(methodcaller("get", ident), of_threads)
    frames = accumulate(chain(innermost, repeat("f_back")), _get)
    return map(_get_place, takewhile(truth, frames))


if sys.version_info[:2] == (3, 11):
    from operator import call

    def _follow(ident: int, first: Iterable[None]) -> list[Place]:
        """Follow the frames while no garbage is collected.

        Python 3.11 makes the frame objects now. A collection in the midst of that can run the
        job's finalizers, which lets the other thread go on: then the interpreter writes into the
        memory of a frame that has ended. Whether the job has switched the collector off is found
        out within the same call into C, where the job cannot change it.
        """
        was_on, is_on = tee(map(call, (gc.isenabled,)))
        switch_on = map(call, compress((gc.enable,), is_on))
        try:
            return [
                *filter(None, chain(
                    first, map(call, compress((gc.disable,), was_on)), _walk(ident), switch_on
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
