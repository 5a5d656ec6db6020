"""What is not reported, because a test of the job has replaced functions that a report calls."""

from __future__ import annotations

from mlflow_perf.core.originals import explain_replaced
from mlflow_perf.core.safe_log import get_logger

_log = get_logger(__name__)
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
        _log.warning("The %s %r is not reported: %s.", kind, name, replaced)
    return bool(replaced)
