"""What is not reported, because a test of the job has replaced functions that a report calls."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from mlflow_perf.core.replaced import explain_replaced, is_called, is_mock
from mlflow_perf.session.closing_line import write_line

_told: set[str] = set()


def meets_stand_in(kind: str, name: str) -> bool:
    """Return whether a block or a run is not to be reported, which one line says for each cause.

    Args:
        kind: `block` or `run`.
        name: Its name or id.
    """
    replaced = explain_replaced()
    if replaced and replaced not in _told:
        _told.add(replaced)
        if not is_mock(sys.stderr):  # `logging` would call a dozen functions of Python
            write_line(f"mlflow-perf: the {kind} {name!r} is not reported: {replaced}")
    return bool(replaced)


@contextmanager
def mocks_aside() -> Iterator[None]:
    """Put back for a while what started mocks replace in the modules that a report calls.

    One that a block has started outlives it, as those of pytest-mock and of `setUp` do: at the
    block's end a mock of `os.open` would be asked for files of ours, and answer with the job's.
    """
    patcher = getattr(sys.modules.get("unittest.mock"), "_patch", None)
    aside: list[tuple[Any, str, Any]] = []
    try:
        for one in list(getattr(patcher, "_active_patches", ())):
            target = getattr(one, "target", None)
            name = getattr(target, "__module__" if isinstance(target, type) else "__name__", "")
            if is_called(str(name)) and hasattr(one, "temp_original"):
                aside.append((target, one.attribute, getattr(target, one.attribute)))
                setattr(target, one.attribute, one.temp_original)
        yield
    finally:
        for target, attribute, mock in reversed(aside):
            setattr(target, attribute, mock)
