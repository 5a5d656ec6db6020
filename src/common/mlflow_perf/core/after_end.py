"""Replaces a public name that is first used while the interpreter ends and imports nothing more.

Finalizers run code then. It runs as it would without us.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from typing import Any


class NotReported:
    """Does nothing in place of `report`, `time`, `steps`: as a block, a decorator or a loop.

    Args:
        items: What a loop over it goes through.
    """

    def __init__(self, items: Iterable[Any] = ()) -> None:
        self._items = items

    def __call__(self, first: Any = None, *_: Any, **__: Any) -> Any:
        """Return a decorated function as it is, else something that does nothing."""
        if callable(first):
            return first
        return NotReported(first if isinstance(first, Iterable) else ())

    def __getattr__(self, name: str) -> NotReported:
        if name.startswith("__"):
            raise AttributeError(name)
        return self

    def __iter__(self) -> Iterator[Any]:
        return iter(self._items)

    def __enter__(self) -> NotReported:
        return self

    def __exit__(self, *_: object) -> None:
        pass


def warn_of_end(name: str) -> NotReported:
    """Say in one line that a name came too late, and return what does nothing."""
    if sys.stderr is not None:
        try:  # noqa: SIM105 - contextlib would be one more import of each `import mlflow_perf`
            sys.stderr.write(f"mlflow_perf.{name} has no effect: the interpreter is ending.\n")
        except (OSError, ValueError):  # closed
            pass
    return NotReported()
