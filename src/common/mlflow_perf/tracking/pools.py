"""Calls of MLflow beside each other, for one caller."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import TypeVar

from mlflow_perf.tracking.mlflow_call import MlflowCall

S = TypeVar("S")
T = TypeVar("T")


def map_beside(call: Callable[[S], T], items: Iterable[S], *, threads: int) -> Iterator[T]:
    """Yield what a call returns for each item, in their order.

    The calls work in the workspace of the caller, and what is wrong with one of them is wrong with
    the caller's own. The end of the process does not wait for their threads, as it would for those
    of a `ThreadPoolExecutor`.

    Args:
        call: Asks MLflow for an item.
        items: The items.
        threads: How many calls go on at a time.

    Raises:
        Exception: Whatever the call raises, at its item's turn.
    """
    running: deque[MlflowCall[T]] = deque()
    for item in items:
        if len(running) == threads:
            yield _finish(running.popleft())
        running.append(MlflowCall(partial(call, item), name="item"))
    while running:
        yield _finish(running.popleft())


def _finish(call: MlflowCall[T]) -> T:
    call.done_or_told(math.inf, "")
    return call.result(0.0)
