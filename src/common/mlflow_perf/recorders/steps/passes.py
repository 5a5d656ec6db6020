"""`steps`: times each pass over a loader, and passes all other attributes through."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from time import perf_counter_ns
from typing import Any, Generic, TypeVar

from mlflow_perf.recorders.steps.loop import Loop, enter, leave, open_loop

T = TypeVar("T")


class Steps(Generic[T]):
    """Items of a loop whose passes are timed; everything else is asked of the items themselves."""

    def __init__(self, items: Any, name: str) -> None:
        self._items = items
        self._name = name

    def __iter__(self) -> Iterator[T]:
        loop = open_loop(self._name)
        # Without a session, the items' own iterator: no cost at all.
        return iter(self._items) if loop is None else self._iterate(loop)

    def _iterate(self, loop: Loop) -> Iterator[T]:
        enter(loop)
        end, clock, held = loop.end, perf_counter_ns, list[T]()
        try:
            loop.wait()
            for item in self._items:
                loop.begun_ns = clock()  # `begin`, in line
                loop.is_in_step = True
                held.append(item)
                del item  # the body may free it
                yield held.pop()
                end()
        finally:
            leave(loop)

    async def __aiter__(self) -> AsyncIterator[T]:
        loop = open_loop(self._name)
        if loop is None:
            async for item in self._items:
                yield item
            return
        enter(loop)
        held = list[T]()
        try:
            loop.wait()
            async for item in self._items:
                loop.begin()
                held.append(item)
                del item
                yield held.pop()
                loop.end()
        finally:
            leave(loop)

    def __len__(self) -> int:
        return len(self._items)

    def __bool__(self) -> bool:
        return True

    def __getitem__(self, index: Any) -> Any:
        return self._items[index]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or "_items" not in self.__dict__:  # a copy that is being made
            raise AttributeError(name)
        return getattr(self._items, name)


def steps(items: Any, name: str = "step") -> Steps[Any]:
    """Time each pass of a loop over these items: `for item in mlflow_perf.steps(items)`.

    The time to the next item is the step's `input`, the rest its `compute`; `part` divides that.
    The passes are recorded into the current session, from any process of the job; without a session
    nothing is measured. `async for` works likewise.

    Args:
        items: What to iterate over. Its length and attributes are passed through.
        name: Name of the loop; loops of the same name add up.

    Example:
        >>> for batch in steps([1, 2, 3]):
        ...     with part("forward"):
        ...         pass
    """
    return Steps(items, name)
