"""What is not reported, because a test of the job has replaced functions that a report calls."""

from __future__ import annotations

import sys

from mlflow_perf.core.replaced import explain_replaced, is_mock
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
