"""A line that says how far a long command is: on a terminal, after two seconds."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TextIO

__all__ = ["watched"]

_AFTER_SEC = 2.0
_EVERY_SEC = 0.1
_BAR = 30


def watched(
    items: Iterable[Any],
    count: int,
    *,
    out: TextIO | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[Any]:
    """Yield the items; where that takes long and somebody watches, show how many there were.

    Args:
        items: What goes by.
        count: How many there will be.
        out: Where the line is drawn; default: the standard error.
        clock: What tells the time.
    """
    stream = sys.stderr if out is None else out
    if not stream.isatty():
        yield from items
        return
    start = clock()
    due = start + _AFTER_SEC
    for done, item in enumerate(items, 1):
        if clock() >= due:
            filled = _BAR * done // max(1, count)
            stream.write(f"\r[{'#' * filled}{'.' * (_BAR - filled)}] {done:,}/{count:,}")
            stream.flush()
            due = clock() + _EVERY_SEC
        yield item
    if due > start + _AFTER_SEC:
        stream.write("\r\x1b[K")
        stream.flush()
