"""What is not reported, because a test of the job has replaced functions that a report calls."""

from __future__ import annotations

import sys

from mlflow_perf.core.replaced import explain_replaced, is_mock
from mlflow_perf.session.closing_line import write_line

_told: set[tuple[str, str]] = set()


def meets_stand_in(kind: str, name: str, *, at_end: bool = False) -> bool:
    """Return whether a block or a run is not to be reported now, and say so once for each cause.

    Args:
        kind: `block` or `run`.
        name: Its name or id.
        at_end: Whether it has begun, and is reported when the mocks are gone.
    """
    replaced = explain_replaced()
    verb = "is reported later" if at_end else "is not reported"
    if replaced and (verb, replaced) not in _told:
        _told.add((verb, replaced))
        if not is_mock(sys.stderr):  # `logging` would call a dozen functions of Python
            write_line(f"mlflow-perf: the {kind} {name!r} {verb}: {replaced}")
    return bool(replaced)
