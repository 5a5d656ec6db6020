"""Replaces a public name that cannot be loaded, so that the job runs as it would without us.

That is so while the interpreter ends, and where a module that we need is broken: a file of the job
may have the name of a standard module, such as `uuid.py`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from typing import Any

from mlflow_perf.core.replaced import is_mock


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


_said: set[str] = set()


def warn_no_effect(name: str, reason: str) -> NotReported:
    """Say in one line why a name has no effect, once for each reason, and return what does nothing.

    Args:
        name: The public name.
        reason: Why, without a full stop.
    """
    if reason not in _said and sys.stderr is not None and not is_mock(sys.stderr):
        _said.add(reason)
        try:  # noqa: SIM105 - contextlib would be one more import of each `import mlflow_perf`
            sys.stderr.write(f"mlflow_perf.{name} has no effect: {reason}.\n")
        except (OSError, ValueError):  # closed
            pass
    return NotReported()


def is_from_handler(error: BaseException) -> bool:
    """As `handler_errors.is_from_handler`, which a `signal.py` of the job may keep from loading."""
    try:
        from mlflow_perf.core import handler_errors

        return handler_errors.is_from_handler(error)
    except Exception:  # noqa: BLE001 - then the job has no handlers
        return False


def explain_import(error: BaseException) -> str:
    """Return why an import failed; the file tells a module of the job from the standard one."""
    file = getattr(getattr(error, "obj", None), "__file__", None)
    return f"{type(error).__name__}: {error}" + (f" ({file})" if file else "")
