"""Finds the coroutines that an idle event loop waits for."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from itertools import islice
from types import CodeType
from typing import Any

_MOST_TASKS = 32
_MOST_DEPTH = 60
_KINDS = (("cr_code", "cr_await"), ("gi_code", "gi_yieldfrom"), ("ag_code", "ag_await"))


def list_awaiting(thread: int) -> list[list[CodeType]]:
    """Return the chain of coroutines of each task that waits in the loop of a thread.

    Each chain has the innermost coroutine first. A task that waits for another task of the loop is
    left out: the other one says what both wait for.

    Args:
        thread: The thread's ident.
    """
    tasks: Any = sys.modules.get("asyncio.tasks")
    if tasks is None:
        return []
    chains = []
    try:
        for task in islice(_list_tasks(tasks, thread), _MOST_TASKS):
            loop = task.get_loop()
            if (
                task.done()
                or getattr(loop, "_thread_id", thread) != thread
                or not loop.is_running()
            ):
                continue
            waiter = getattr(task, "_fut_waiter", None)
            if isinstance(waiter, (tasks.Task, tasks._GatheringFuture)):  # noqa: SLF001 - see above
                continue
            chain = list(_follow(task.get_coro()))
            if chain:
                chains.append(chain[::-1])
    # The job's thread may have changed the set meanwhile; a task may be a class of a library.
    except (RuntimeError, AttributeError, TypeError, KeyError):
        pass
    return chains


def _list_tasks(tasks: Any, thread: int) -> Iterable[Any]:
    """Return the tasks of the thread's loop, or of all loops.

    Python 3.14 keeps them by loop, where only `all_tasks` finds them.
    """
    if sys.version_info >= (3, 14):
        frame = sys._current_frames().get(thread)  # noqa: SLF001 - the only way to its stack
        while frame is not None and frame.f_code.co_name != "run_forever":
            frame = frame.f_back
        return () if frame is None else tasks.all_tasks(frame.f_locals["self"])
    return getattr(tasks, "_all_tasks", None) or getattr(tasks, "_scheduled_tasks", None) or ()


def _follow(awaited: Any) -> Iterator[CodeType]:
    """Yield the code of a coroutine, of what it awaits, and so on."""
    for _ in range(_MOST_DEPTH):
        for code, inner in _KINDS:
            if hasattr(awaited, code):
                yield getattr(awaited, code)
                awaited = getattr(awaited, inner)
                break
        else:
            return
