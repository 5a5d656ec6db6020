"""Reads the stack of another thread of this process, in one piece."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import accumulate, chain, compress, repeat, takewhile, tee
from operator import attrgetter, truth
from types import CodeType
from typing import Any

from mlflow_perf.core.originals import gc, sys

Place = tuple[CodeType, int]
"""The code of a frame and its last instruction."""

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
    return _follow(ident)


def _walk(ident: int) -> Iterator[Place]:
    """Return an iterator over the frames' places that runs no Python code."""
    innermost = sys._current_frames().get(ident)  # noqa: SLF001 - documented, in spite of its name
    frames: Iterator[Any] = accumulate(chain((innermost,), repeat("f_back")), _get)
    return map(_get_place, takewhile(truth, frames))


if sys.version_info[:2] == (3, 11):
    from operator import call

    def _follow(ident: int) -> list[Place]:
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
                    map(call, compress((gc.disable,), was_on)), _walk(ident), switch_on
                ))
            ]  # fmt: skip
        except BaseException:
            list(switch_on)
            raise
else:

    def _follow(ident: int) -> list[Place]:
        return list(_walk(ident))


def find_line(place: Place) -> int:
    """Return the line of a place; 0 where the compiler added code that has none."""
    code, last = place
    if last < 0:
        return code.co_firstlineno
    for begin, end, line in code.co_lines():
        if begin <= last < end:
            return line or 0
    return 0
